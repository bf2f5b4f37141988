"""Metrics, probes and health."""
