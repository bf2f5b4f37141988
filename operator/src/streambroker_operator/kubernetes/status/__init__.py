"""Compute conditions and write the status of resources."""
