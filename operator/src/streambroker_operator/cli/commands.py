"""The command line: which commands there are, and how they end."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from streambroker_core.errors import StreambrokerError
from streambroker_operator.cli import (
    applying,
    completing,
    describing,
    explaining,
    getting,
    running,
    setting,
    top,
)
from streambroker_operator.cli.failing import INTERRUPTED, UsageError, exit_code, meant, tell
from streambroker_operator.cli.options import Parser, add_shared

GROUPS = (running, getting, describing, applying, explaining, setting, top, completing)
_WITH_VALUE = ("--url", "-n", "--namespace", "--token-file", "--request-timeout")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code.

    Returns:
        0 done, 1 refused, 2 wrong usage, 3 a what-if would cut routes, 4 the broker does
        not answer, 130 interrupted.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if words[:1] == [completing.HIDDEN]:
            return completing.complete(words[1:])
        _check_command(words)
        options = _parser().parse_args(words)
        code: int = options.run(options)
        return code
    except StreambrokerError as error:
        tell(error)
        return exit_code(error)
    except (KeyboardInterrupt, BrokenPipeError):
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="streambroker", description="Streams between Spark jobs, by subscription.")
    add_shared(parser, root=True)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    for group in GROUPS:
        group.add(commands)
    parser.set_defaults(commands=sorted(commands.choices))
    return parser


def _check_command(words: Sequence[str]) -> None:
    """Refuse a command that there is none of, with the one that was probably meant."""
    command = _first_word(words)
    known: Any = _parser().get_default("commands")
    if command is not None and command not in known:
        raise UsageError(
            f"There is no command {command!r}.{meant(command, known)} "
            "`streambroker --help` lists them."
        )


def _first_word(words: Sequence[str]) -> str | None:
    rest = iter(words)
    for word in rest:
        if word in _WITH_VALUE:
            next(rest, None)
        elif not word.startswith("-"):
            return word
    return None
