"""Requests and responses of an agent's actions, one frozen dataclass each."""
