"""Run the rules of one bucket: rows in, matches out."""
