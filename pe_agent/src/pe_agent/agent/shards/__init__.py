"""Other agents of the same job: what they keep for an export, and may give to whom."""
