"""Rule engine of one bucket: rows in, matches out."""
