"""The broker of streambroker and its command line."""
