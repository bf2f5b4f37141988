"""``explain`` and ``lint``: why two ports are connected or not, and probable mistakes."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from streambroker_client.answers import Explanation
from streambroker_client.broker import Broker, Port
from streambroker_operator.cli.io.errors import OK, REFUSED, UsageError
from streambroker_operator.cli.io.options import (
    add_everywhere,
    add_output,
    add_remote_command,
    client_for,
    namespace_for,
)
from streambroker_operator.cli.io.targets import KIND_ALIASES, find_port
from streambroker_operator.cli.io.terminal import sanitise
from streambroker_operator.cli.output.table import print_answer

WHAT = "IMPORT [EXPORT] | import X | export X"


def add(commands: Any) -> None:
    """Add the commands."""
    explain = add_remote_command(
        commands, "explain", "show why an import and exports are connected or not"
    )
    explain.add_argument("words", nargs="+", metavar=WHAT, help="each as NAME or JOB/PE/PORT")
    explain.add_argument(
        "--limit", type=int, default=20, help="pairs shown, 1 to 500, the nearest first; default 20"
    )
    add_output(explain, "text", "json", "yaml")
    explain.set_defaults(run=_explain)
    lint = add_remote_command(
        commands, "lint", "find what can never match, and properties with two types"
    )
    add_output(lint, "text", "json", "yaml")
    add_everywhere(lint)
    lint.add_argument("--strict", action="store_true", help="exit with 1 if anything was found")
    lint.set_defaults(run=_lint)


def _explain(options: argparse.Namespace) -> int:
    broker = client_for(options)
    ports = {
        kind: find_port(broker, kind, word, options.namespace)
        for kind, word in read_pair(options.words).items()
    }
    answer = explain_ports(broker, ports, options.limit)
    _print(answer, answer.text, options.output)
    return OK


def _print(answer: Any, text: str, output: str) -> None:
    print_answer(answer, output, sanitise(text.rstrip("\n")) + "\n")


def explain_ports(broker: Broker, ports: Mapping[str, Port], limit: int) -> Explanation:
    """Fetch the explanation of a port of ``imports``, of ``exports``, or of both."""
    return broker.explain(import_=ports.get("imports"), export=ports.get("exports"), limit=limit)


def read_pair(words: Sequence[str]) -> dict[str, str]:
    """Return the words to explain, by ``imports`` and ``exports``.

    Of words without a kind, the first is the import, the second the export.

    Raises:
        UsageError: two words of one kind, or a kind without a word.
    """
    pair: dict[str, str] = {}
    rest = _join_ports(words)
    if len(rest) == 1 and KIND_ALIASES.get(rest[0].lower()) in (("exports",), ("imports",)):
        raise UsageError(f"Name one: `streambroker explain {rest[0]} NAME`, or JOB/PE/PORT.")
    while rest:
        word = rest.pop(0)
        kinds = KIND_ALIASES.get(word.lower(), ())
        if len(kinds) == 1 and kinds[0] in ("imports", "exports") and rest:
            kind, word = kinds[0], rest.pop(0)
        else:
            kind = _kind_prefix(word) or ("exports" if "imports" in pair else "imports")
        if kind in pair:
            raise UsageError(
                f"One import and one export can be explained; {word!r} is one too many."
            )
        pair[kind] = word
    return pair


def _join_ports(words: Sequence[str]) -> list[str]:
    joined, rest = [], list(words)
    while rest:
        is_port = len(rest) > 2 and rest[1].isdigit() and "/" not in rest[0]
        joined.append("/".join(rest[:3]) if is_port else rest[0])
        rest = rest[3 if is_port else 1 :]
    return joined


def _kind_prefix(word: str) -> str | None:
    first, slash, rest = word.partition("/")
    kinds = KIND_ALIASES.get(first.lower(), ())
    is_port = rest.count("/") == 1 and rest.partition("/")[0].isdigit()
    return kinds[0] if slash and len(kinds) == 1 and not is_port else None


def _lint(options: argparse.Namespace) -> int:
    answer = client_for(options).in_namespace(namespace_for(options)).lint()
    _print(answer, answer.text, options.output)
    return REFUSED if options.strict and answer.findings else OK
