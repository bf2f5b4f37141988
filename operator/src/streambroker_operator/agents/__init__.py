"""Liveness of agents, their reports about ports, and UDP hints."""
