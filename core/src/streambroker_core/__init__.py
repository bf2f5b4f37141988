"""Expressions, matching, board and wire format: decisions without I/O."""
