"""Versioned tables as side inputs."""
