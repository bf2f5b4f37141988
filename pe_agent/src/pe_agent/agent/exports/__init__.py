"""Exports of an agent: publishing, backpressure, reading, and the state of their logs."""
