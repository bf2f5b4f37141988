"""Operators inside Spark tasks."""
