"""Connects the broker with a Kubernetes API server; the rest of the broker does not import it."""
