"""Canonical JSON, merge patches, quantities and field readers."""
