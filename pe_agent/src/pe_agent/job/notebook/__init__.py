"""What a job shows in a notebook."""
