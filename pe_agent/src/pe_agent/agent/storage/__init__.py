"""Exports of an agent in object storage: who owns them, their state, and what a new agent finds."""
