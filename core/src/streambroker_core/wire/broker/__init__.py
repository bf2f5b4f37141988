"""Messages between agents and the broker."""
