"""Targets, files, options and the client of the REST API."""
