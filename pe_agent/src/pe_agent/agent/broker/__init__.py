"""What an agent has from the broker and tells it."""
