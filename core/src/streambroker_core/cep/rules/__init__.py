"""Rule documents and the set of rules that is active."""
