"""Shard agents: other agents of the same job that store and serve parts of an export."""
