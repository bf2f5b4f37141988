"""The durable log of one stream: segments of checksummed frames, group commit, recovery."""
