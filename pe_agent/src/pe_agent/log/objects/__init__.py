"""A stream's log in object storage: buckets, chains of parts, uploads, and what to restore."""
