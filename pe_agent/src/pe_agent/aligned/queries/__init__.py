"""Driver-side checks and listeners of queries."""
