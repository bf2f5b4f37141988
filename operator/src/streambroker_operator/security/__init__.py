"""Token file, audit log and local certificates."""
