"""Entry point of the command line: parser, dispatch and exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import chain
from typing import Any

from streambroker_core.errors import StreambrokerError
from streambroker_operator.cli.io.errors import (
    INTERRUPTED,
    UsageError,
    did_you_mean,
    exit_code,
    print_error,
)
from streambroker_operator.cli.io.options import Parser, add_shared

COMMANDS = {
    "commands.up": ("up", "version"),
    "commands.operator": ("operator",),
    "commands.get": ("get", "watch"),
    "commands.describe": ("describe",),
    "commands.apply": ("apply", "whatif"),
    "commands.delete": ("delete",),
    "commands.diagnose": ("explain", "lint"),
    "commands.set": ("set-filter", "set-subscription", "set-properties"),
    "commands.release": ("release",),
    "commands.emit": ("emit",),
    "commands.patterns": ("patterns",),
    "commands.top": ("top",),
    "commands.graph": ("graph",),
    "commands.peek": ("peek", "schema"),
    "catalog": ("catalog",),
    "snapshot": ("snapshot",),
    "completion": ("completion",),
}
"""The commands of each module: only the module of the command that runs is imported."""
_HELP = "help"
_COMPLETE = "__complete"
"""Hidden command of the shells' completion."""
ALTERNATIVES = {
    "create": "`apply` creates, too.",
    "diff": "`whatif` shows what a file would do.",
    "edit": "`get -o yaml` and `apply` do that, or `set-filter` and the like.",
    "patch": "Use `set-filter`, `set-subscription` or `set-properties`, or REST.",
    "replace": "`apply` replaces, too.",
    "logs": "Agents write agent.log in their data directory.",
}
"""Hints for commands that users know from other tools."""
_WITH_VALUE = (
    "--url",
    "-n",
    "--namespace",
    "--token-file",
    "--ca",
    "--tls-server-name",
    "--request-timeout",
)
BROKERS = ("up", "operator")
"""Commands that run a broker."""
_LOCAL_COMMANDS = (*BROKERS, "completion", _HELP)
_LOCAL_OPTIONS = {"-h", "--help", "--version", "--client"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code.

    Returns:
        0 success, 1 refused, 2 wrong usage, 3 a what-if would cut routes, 4 the broker does
        not answer, 130 interrupted.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if words[:1] == [_COMPLETE]:
            from streambroker_operator.cli import completion

            return completion.complete(_parser(), words[1:])
        command = _check_command(words) or (_HELP if "--version" in words else None)
        try:
            options = _parser(command).parse_args(words)
        except SystemExit as end:  # raised by --help and --version
            return int(end.code or 0)
        code: int = options.run(options)
        return code
    except StreambrokerError as error:
        print_error(error)
        return exit_code(error)
    except (KeyboardInterrupt, BrokenPipeError):
        return INTERRUPTED


def calls_broker(words: Sequence[str]) -> bool:
    """Return whether a command line needs a broker."""
    command = find_command(words)
    return command not in (None, *_LOCAL_COMMANDS) and not _LOCAL_OPTIONS & set(words)


def _parser(command: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of all commands, or of one and its module's others."""
    parser = Parser(prog="streambroker", description="Streams between Spark jobs, by subscription.")
    add_shared(parser, root=True)
    parser.add_argument("--version", action=_VersionAction, nargs=0, help="the release")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    for module, names in COMMANDS.items():
        if command is None or command in names:
            import_module(f"streambroker_operator.cli.{module}").add(commands)
    help_ = commands.add_parser(_HELP, help="show the arguments of a command")
    help_.add_argument("words", nargs="*", metavar="COMMAND")
    help_.set_defaults(run=_help)
    return parser


class _VersionAction(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        sys.stdout.write(f"streambroker {version('streambroker-operator')}\n")
        parser.exit()


def _help(options: argparse.Namespace) -> int:
    if options.words:
        _check_command(options.words)
    return main([*options.words[:1], "--help"])


def _check_command(words: Sequence[str]) -> str | None:
    """Return the command; refuse an unknown one, and suggest the nearest."""
    if not words:
        raise UsageError("Give a COMMAND; `streambroker --help` lists them.")
    command = find_command(words)
    commands = sorted([*chain.from_iterable(COMMANDS.values()), _HELP])
    if command is not None and command not in commands:
        hint = (
            f" {ALTERNATIVES[command]}"
            if command in ALTERNATIVES
            else did_you_mean(command, commands)
        )
        raise UsageError(
            f"There is no command {command!r}.{hint} `streambroker --help` lists them."
        )
    return command


def find_command(words: Sequence[str]) -> str | None:
    """Return the command of a command line, known or not; None if there is none."""
    rest = iter(words)
    for word in rest:
        if word in _WITH_VALUE:
            next(rest, None)
        elif not word.startswith("-"):
            return word
    return None
