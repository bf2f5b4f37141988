"""The agent's Flight server."""
