"""The command line: ``streambroker``."""

from streambroker_operator.cli.commands import main

__all__ = ["main"]
