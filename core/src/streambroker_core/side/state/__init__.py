"""Keyed state of side inputs and waiting rows."""
