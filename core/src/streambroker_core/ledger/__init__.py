"""Streams, epochs, readers, plans and retention of one export."""
