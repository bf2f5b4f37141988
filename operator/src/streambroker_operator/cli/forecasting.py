"""What changes would do to routes, asked before they are made and told after."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, TypeAlias

from streambroker_core.model import PeKey, PortKey, Resource, kind_of
from streambroker_core.wire.manifest import write_manifest
from streambroker_operator.cli.calling import Caller
from streambroker_operator.cli.failing import OK, REFUSED, WOULD_CUT
from streambroker_operator.cli.tables import as_json, as_yaml
from streambroker_operator.cli.terminal import paint, plain, say

Deleted: TypeAlias = Sequence[tuple[str, PortKey | PeKey]]
"""What is deleted, by kind; PEs have no routes of their own."""


def foretell(
    caller: Caller, options: argparse.Namespace, resources: Sequence[Resource], deleted: Deleted
) -> int:
    """Show what changes would do; return the exit code that says whether they may."""
    answer = _asked(caller, options, resources, deleted)
    output = getattr(options, "output", "table")
    if output == "json":
        say(as_json(answer))
    elif output == "yaml":
        say(as_yaml([answer]))
    else:
        say(foretold(answer, _named_changes(resources, deleted)))
    return _verdict(answer, options)


def barred(
    caller: Caller, options: argparse.Namespace, resources: Sequence[Resource], deleted: Deleted
) -> int:
    """Ask before changes with ``--max-removed`` are made; show what is against them.

    Returns:
        0: make them; else the exit code for not making any.
    """
    if options.max_removed is None:
        return OK
    answer = _asked(caller, options, resources, deleted)
    verdict = _verdict(answer, options)
    if verdict != OK:
        say(foretold(answer, _named_changes(resources, deleted)))
    return verdict


def _verdict(answer: Any, options: argparse.Namespace) -> int:
    passed_over = "UnknownPort" if getattr(options, "ignore_not_found", False) else ""
    refused = [p for p in answer["problems"] if p.get("refused", True) and p["code"] != passed_over]
    if refused:
        return REFUSED
    return OK if len(answer["cut"]) <= (options.max_removed or 0) else WOULD_CUT


def _asked(
    caller: Caller, options: argparse.Namespace, resources: Sequence[Resource], deleted: Deleted
) -> Any:
    ports = [(kind, key) for kind, key in deleted if isinstance(key, PortKey)]
    body = {
        "resources": [write_manifest(resource) for resource in resources],
        "delete": [
            {
                "kind": kind,
                "namespace": key.namespace,
                "job": key.job,
                "pe": key.pe,
                "port": key.port,
            }
            for kind, key in ports
        ],
    }
    return caller.call("POST", "/whatif", body, namespace=options.namespace)


def _named_changes(resources: Sequence[Resource], deleted: Deleted) -> list[str]:
    """Return what was asked about, as the problems of a what-if count it."""
    named = [f"{kind_of(resource).lower()} {resource.key}" for resource in resources]
    ports = [(kind, key) for kind, key in deleted if isinstance(key, PortKey)]
    return named + [f"delete {kind.lower()} {key}" for kind, key in ports]


def foretold(answer: dict[str, Any], changes: Sequence[str]) -> str:
    """Return what a what-if says: routes with their signs, then the counts.

    Args:
        answer: of the broker.
        changes: what was asked about, as problems count it.

    Returns:
        Lines with ``+`` added, ``-`` cut, ``~`` changed; with ``!`` what would be refused
        and with ``?`` what would be accepted and lead to nothing.
    """
    lines = _signed(answer["added"], answer["cut"])
    for route in answer["changed"]:
        was = ", ".join(f"{k} {v} => {route[k]}" for k, v in route["was"].items())
        text = plain(f"  ~ {route['export']} -> {route['import']}: {was}")
        lines.append(paint(text, "yellow"))
    for problem in answer["problems"]:
        index, refused = problem["index"], problem.get("refused", True)
        who = changes[index] if 0 <= index < len(changes) else f"change {index + 1}"
        text = f"  {'!' if refused else '?'} {who}: {problem['code']}: {problem['detail']}"
        lines.append(paint(plain(text), "red" if refused else "yellow"))
    counts = (
        f"{len(answer['added'])} added, {len(answer['cut'])} cut, {answer['kept']} kept, "
        f"{len(answer['changed'])} changed; nothing was applied"
    )
    return "".join(f"{line}\n" for line in [*lines, counts])


def routes_text(answer: dict[str, Any]) -> str:
    """Return what a change did to routes: counts, and a line for each added and each cut."""
    routes = answer["routes"]
    counts = f" (routes: {len(routes['kept'])} kept, {len(routes['added'])} added"
    head = f"{counts}, {len(routes['cut'])} cut)"
    return "\n".join([head, *_signed(routes["added"], routes["cut"])])


def _signed(added: Sequence[dict[str, Any]], cut: Sequence[dict[str, Any]]) -> list[str]:
    plus = [f"  + {route['export']} -> {route['import']}" for route in added]
    minus = [f"  - {route['export']} -> {route['import']}: {route['reason']}" for route in cut]
    return [
        *(paint(plain(line), "green") for line in plus),
        *(paint(plain(line), "red") for line in minus),
    ]
