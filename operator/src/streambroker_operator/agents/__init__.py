"""Liveness of agents, ended exports and UDP hints."""
