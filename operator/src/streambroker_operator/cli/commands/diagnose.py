"""``explain`` and ``lint``: why two ports are connected or not, and what can never match."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from streambroker_operator.cli.io.client import BrokerClient
from streambroker_operator.cli.io.errors import OK, REFUSED, UsageError
from streambroker_operator.cli.io.options import (
    add_everywhere,
    add_output,
    add_remote_command,
    client_for,
    namespace_for,
)
from streambroker_operator.cli.io.targets import KIND_ALIASES, find_port
from streambroker_operator.cli.io.terminal import print_text, sanitise
from streambroker_operator.cli.output.table import as_json, as_yaml

WHAT = "IMPORT [EXPORT] | import X | export X"


def add(commands: Any) -> None:
    """Add the commands."""
    explain = add_remote_command(
        commands, "explain", "say why an import and exports are connected or not"
    )
    explain.add_argument("words", nargs="+", metavar=WHAT, help="each as NAME or JOB/PE/PORT")
    explain.add_argument(
        "--limit", type=int, default=20, help="pairs shown, 1 to 500, the nearest first; default 20"
    )
    add_output(explain, "text", "json", "yaml")
    explain.set_defaults(run=_explain)
    lint = add_remote_command(
        commands, "lint", "find what can never match, and properties of two types"
    )
    add_output(lint, "text", "json", "yaml")
    add_everywhere(lint)
    lint.add_argument("--strict", action="store_true", help="end with 1 if anything was found")
    lint.set_defaults(run=_lint)


def _explain(options: argparse.Namespace) -> int:
    caller = client_for(options)
    query = {
        kind.removesuffix("s"): str(find_port(caller, kind, word, options.namespace))
        for kind, word in read_pair(options.words).items()
    }
    answer = fetch_explanation(caller, query, options.limit)
    return _print_answer(answer, options.output)


def fetch_explanation(client: BrokerClient, query: dict[str, str], limit: int) -> Any:
    """Return the broker's explanation.

    Args:
        client: the broker.
        query: the keys of an ``import``, an ``export``, or both.
        limit: pairs at most.
    """
    asked = {**query, "limit": str(limit)}
    return client.call("GET", "/explain", **asked)


def read_pair(words: Sequence[str]) -> dict[str, str]:
    """Return what is to be explained, by ``imports`` and ``exports``.

    A word that says no kind is the import, the second one the export.

    Raises:
        UsageError: it is more than one of a kind, or none.
    """
    found: dict[str, str] = {}
    rest = _join_ports(words)
    if len(rest) == 1 and KIND_ALIASES.get(rest[0].lower()) in (("exports",), ("imports",)):
        raise UsageError(f"Name one: `streambroker explain {rest[0]} NAME`, or JOB/PE/PORT.")
    while rest:
        word = rest.pop(0)
        kinds = KIND_ALIASES.get(word.lower(), ())
        if len(kinds) == 1 and kinds[0] in ("imports", "exports") and rest:
            kind, word = kinds[0], rest.pop(0)
        else:
            kind = _kind_prefix(word) or ("exports" if "imports" in found else "imports")
        if kind in found:
            raise UsageError(f"One import and one export can be explained; {word!r} is too much.")
        found[kind] = word
    return found


def _join_ports(words: Sequence[str]) -> list[str]:
    """Return words with ``JOB PE PORT`` as one."""
    found, rest = [], list(words)
    while rest:
        three = len(rest) > 2 and rest[1].isdigit() and "/" not in rest[0]
        found.append("/".join(rest[:3]) if three else rest[0])
        rest = rest[3 if three else 1 :]
    return found


def _kind_prefix(word: str) -> str | None:
    first, slash, rest = word.partition("/")
    kinds = KIND_ALIASES.get(first.lower(), ())
    port = rest.count("/") == 1 and rest.partition("/")[0].isdigit()
    return kinds[0] if slash and len(kinds) == 1 and not port else None


def _lint(options: argparse.Namespace) -> int:
    answer = client_for(options).call("GET", "/lint", namespace=namespace_for(options))
    _print_answer(answer, options.output)
    return REFUSED if options.strict and answer["findings"] else OK


def _print_answer(answer: Any, output: str) -> int:
    if output == "json":
        print_text(as_json(answer))
    elif output == "yaml":
        print_text(as_yaml([answer]))
    else:
        print_text(sanitise(str(answer["text"]).rstrip("\n")) + "\n")
    return OK
