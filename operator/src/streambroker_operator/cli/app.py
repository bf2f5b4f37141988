"""Entry point of the command line: parser, dispatch and exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from streambroker_core.errors import StreambrokerError
from streambroker_operator.cli import completion
from streambroker_operator.cli.commands import (
    apply,
    delete,
    describe,
    emit,
    get,
    operator,
    patterns,
    release,
    top,
    up,
)
from streambroker_operator.cli.commands import diagnose as explain
from streambroker_operator.cli.commands import set as setters
from streambroker_operator.cli.io.errors import (
    INTERRUPTED,
    UsageError,
    did_you_mean,
    exit_code,
    print_error,
)
from streambroker_operator.cli.io.options import Parser, add_shared

COMMAND_MODULES = (
    up,
    operator,
    get,
    describe,
    apply,
    delete,
    explain,
    setters,
    release,
    emit,
    patterns,
    top,
    completion,
)
ALTERNATIVES = {
    "create": "`apply` creates, too.",
    "diff": "`whatif` shows what a file would do.",
    "edit": "`get -o yaml` and `apply` do that, or `set-filter` and the like.",
    "patch": "Use `set-filter`, `set-subscription` or `set-properties`, or REST.",
    "replace": "`apply` replaces, too.",
    "logs": "Agents write agent.log in their data directory.",
}
"""Hints for commands that users know from other tools."""
_WITH_VALUE = ("--url", "-n", "--namespace", "--token-file", "--ca", "--request-timeout")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code.

    Returns:
        0 success, 1 refused, 2 wrong usage, 3 a what-if would cut routes, 4 the broker does
        not answer, 130 interrupted.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if words[:1] == [completion.HIDDEN_COMMAND]:
            return completion.complete(_parser(), words[1:])
        _check_command(words)
        try:
            options = _parser().parse_args(words)
        except SystemExit as end:  # raised by --help and --version
            return int(end.code or 0)
        code: int = options.run(options)
        return code
    except StreambrokerError as error:
        print_error(error)
        return exit_code(error)
    except (KeyboardInterrupt, BrokenPipeError):
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="streambroker", description="Streams between Spark jobs, by subscription.")
    add_shared(parser, root=True)
    version_text = f"streambroker {version('streambroker-operator')}"
    parser.add_argument("--version", action="version", version=version_text, help="the release")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    for module in COMMAND_MODULES:
        module.add(commands)
    help_ = commands.add_parser("help", help="show the arguments of a command")
    help_.add_argument("words", nargs="*", metavar="COMMAND")
    help_.set_defaults(run=_help)
    parser.set_defaults(commands=sorted(commands.choices))
    return parser


def _help(options: argparse.Namespace) -> int:
    if options.words:
        _check_command(options.words)
    return main([*options.words[:1], "--help"])


def _check_command(words: Sequence[str]) -> None:
    """Refuse an unknown command, and suggest the nearest one."""
    if not words:
        raise UsageError("Give a COMMAND; `streambroker --help` lists them.")
    command = _first_word(words)
    commands: Any = _parser().get_default("commands")
    if command is not None and command not in commands:
        hint = (
            f" {ALTERNATIVES[command]}"
            if command in ALTERNATIVES
            else did_you_mean(command, commands)
        )
        raise UsageError(
            f"There is no command {command!r}.{hint} `streambroker --help` lists them."
        )


def _first_word(words: Sequence[str]) -> str | None:
    rest = iter(words)
    for word in rest:
        if word in _WITH_VALUE:
            next(rest, None)
        elif not word.startswith("-"):
            return word
    return None
