"""Clients of agents and brokers: Flight, HTTP, TLS and tokens."""
