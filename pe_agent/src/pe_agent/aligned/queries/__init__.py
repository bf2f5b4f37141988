"""Checks and listeners of queries, beside the driver."""
