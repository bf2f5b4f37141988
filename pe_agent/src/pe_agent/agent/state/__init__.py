"""Durable state of an agent: SQLite, control log and routes."""
