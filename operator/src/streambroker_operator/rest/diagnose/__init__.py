"""Explain routes, preview changes and find mistakes."""
