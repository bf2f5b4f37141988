"""Paths, parameters, requests and responses of the REST API."""
