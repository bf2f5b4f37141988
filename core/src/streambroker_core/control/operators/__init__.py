"""The contract of operators, and their keyed state."""
