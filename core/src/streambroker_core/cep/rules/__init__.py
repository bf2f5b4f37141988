"""Rule documents and the set of active rules."""
