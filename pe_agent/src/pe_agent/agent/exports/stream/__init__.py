"""The streams of one export: frames, manifests, blocks and filters."""
