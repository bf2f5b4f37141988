"""Access to the API server."""
