"""What ties the broker to a Kubernetes API server; nothing else of the broker imports it."""
