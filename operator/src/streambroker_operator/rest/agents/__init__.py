"""Requests of agents: registration, polling, control tuples and reports."""
