"""Command line ``streambroker``."""

from streambroker_operator.cli.app import main

__all__ = ["main"]
