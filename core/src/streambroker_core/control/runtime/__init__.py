"""Runtime of one window of one bucket of an operator."""
