"""``describe``: one resource with its status, its routes, who is refused, and what to do."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from streambroker_operator.cli.addresses import (
    SINGULAR,
    Item,
    chosen,
    find,
    names_of,
    read_targets,
)
from streambroker_operator.cli.client import Caller
from streambroker_operator.cli.errors import OK, UsageError
from streambroker_operator.cli.explain import explained
from streambroker_operator.cli.get import WHAT
from streambroker_operator.cli.options import add_everywhere, caller_of, namespace_of, remote
from streambroker_operator.cli.tables import as_yaml, port_of, short
from streambroker_operator.cli.terminal import age, paint, plain, say
from streambroker_operator.errors import RequestError

NEAREST = 5
"""Refused pairs that are shown."""
MOST_EXPLAINED = 500
"""Pairs that a broker explains in one answer."""

REMEDIES = {
    "NamespaceNotAllowed": "Name the importing namespace in the Export's allowedNamespaces.",
    "ScopeDiffers": "Make the Import's applicationScope the scope of the Export's application.",
    "NothingWanted": "Give the Import a subscription or streams: `streambroker set-subscription`.",
    "ExportedByProperties": "The Export has properties; import it by a subscription.",
    "ExportedByName": "The Export has a streamId; import it by streams.",
    "StreamIdDiffers": "Make the Import's streamId that of the Export.",
    "ApplicationDiffers": "Make applicationName that of the Export's application, or leave it out.",
    "SubscriptionInvalid": "Correct the subscription; the message points at the place.",
    "SubscriptionFalse": "Change the subscription, or the Export's properties.",
    "SubscriptionUnknown": "The Export lacks a property or has it as another type: set-properties.",
    "FilterForbidden": "Clear the filter, or set allowFilter at the Export.",
    "FilterInvalid": "Let the filter name columns that the Export has, with their types.",
    "SchemaMismatch": "Let the Import's schema ask only for columns that the Export has.",
    "PortTaken": "Delete the older resource, or use its name or another port.",
    "StreamIdTaken": "Delete the older Export of this streamId, or choose another one.",
}

_NEAR = ("FilterForbidden", "FilterInvalid", "SchemaMismatch")
"""Refusals of pairs that want each other."""


def add(commands: Any) -> None:
    """Add the command."""
    describe = remote(commands, "describe", "show all about a resource, and what to do")
    describe.add_argument("words", nargs="+", metavar=WHAT)
    add_everywhere(describe)
    describe.set_defaults(run=_describe)


def _describe(options: argparse.Namespace) -> int:
    targets, caller = read_targets(options.words), caller_of(options)
    parts = []
    for target in targets:
        if target.kinds == ("routes",) and target.name is None:
            raise UsageError("Name a route by one of its ports: `describe route JOB/PE/PORT`.")
        for kind, items in find(caller, target, namespace_of(options)):
            parts += [_DESCRIBED[kind](caller, kind, item) for item in items]
    say("\n".join(parts) if parts else "nothing to describe\n")
    return OK


def _resource(caller: Caller, kind: str, item: Item) -> str:
    metadata, spec = item["metadata"], item["spec"]
    key = f"{metadata['namespace']}/{port_of(spec)}"
    status = item.get("status") or {}
    routes = chosen("routes", caller.items("/routes", namespace=metadata["namespace"]), key)
    side = SINGULAR[kind]
    routes = [route for route in routes if route[side] == key]
    refused, lint = _refused(caller, kind, key, status)
    shown = {k: v for k, v in spec.items() if k not in ("job", "pe", "port")}
    lines = [
        f"Name:        {metadata['name']}",
        f"Kind:        {item['kind']}",
        f"Port:        {key}",
        f"Generation:  {metadata.get('generation', '-')}",
        f"Created:     {metadata.get('creationTimestamp', '-')} "
        f"({age(metadata.get('creationTimestamp'))} ago)",
        *_block("Spec", as_yaml([shown]).rstrip("\n").split("\n")),
        *_block("Status", _status(status)),
        *_block("Routes", [_route_line(route, kind) for route in routes]),
        *_block("Refused", [_refusal_line(pair, kind) for pair in refused]),
        *_block("To do", [*_advice(status, refused, bool(routes)), *lint]),
    ]
    return _text(lines)


def _status(status: Item) -> list[str]:
    accepted = "yes" if status.get("accepted") else "no"
    lines = [f"Accepted: {accepted} ({status.get('reason', 'Unknown')})"]
    if status.get("message"):
        lines.append(f"Message:  {status['message']}")
    return [*lines, f"Matches:  {status.get('matches', 0)}"]


def _refused(caller: Caller, kind: str, key: str, status: Item) -> tuple[list[Item], list[str]]:
    """Return the nearest pairs that do not match, and what the linter says.

    Matching pairs come first in an explanation; where they fill it, the status has to do.
    """
    told = [{"import": key, **pair} for pair in status.get("refused", [])][:NEAREST]
    limit = NEAREST + int(status.get("matches", 0))
    if limit > MOST_EXPLAINED:
        return told, []
    try:
        answer = explained(caller, {SINGULAR[kind]: key}, limit)
    except RequestError as error:
        if error.status != 404:
            raise
        return told, []
    pairs = [pair for pair in answer["pairs"] if not pair["matched"]]
    return pairs[:NEAREST], [str(finding["message"]) for finding in answer["lint"]]


def _advice(status: Item, refused: Sequence[Item], routed: bool) -> list[str]:
    if not status.get("accepted", True):
        reason = str(status.get("reason"))
        return [f"{reason}: {REMEDIES.get(reason, 'see the message above.')}"]
    reasons = list(dict.fromkeys(str(pair["reason"]) for pair in refused))
    if routed:
        reasons = [reason for reason in reasons if reason in _NEAR]
    if not reasons and not routed:
        return ["Nothing is there to be connected to yet: `streambroker get exports,imports`."]
    return [f"{reason}: {REMEDIES.get(reason, 'see the message above.')}" for reason in reasons[:3]]


def _route_line(route: Item, kind: str) -> str:
    arrow = f"-> {route['import']}" if kind == "exports" else f"<- {route['export']}"
    filter_ = f"  filter {short(route['filter'])}" if route.get("filter") else ""
    return f"{arrow}  {route['policy']}{filter_}"


def _refusal_line(pair: Item, kind: str) -> str:
    other = pair["import"] if kind == "exports" else pair["export"]
    return f"{other}  {pair['reason']}: {pair['message']}"


def _pe(caller: Caller, kind: str, item: Item) -> str:
    key = names_of(kind, item)[1]
    routes = [
        route
        for route in caller.items("/routes", namespace=item["namespace"])
        if key in (route["export"].rpartition("/")[0], route["import"].rpartition("/")[0])
    ]
    advice = (
        []
        if item["location"]
        else ["Its agent has never registered: is the job running, and does it reach the broker?"]
    )
    lines = [
        f"Name:      {names_of(kind, item)[0]}",
        "Kind:      PE",
        f"Namespace: {item['namespace']}",
        f"Location:  {item['location'] or '-'}",
        f"View:      {item.get('version') or '-'}",
        f"Exports:   {', '.join(item['exports']) or '-'}",
        f"Imports:   {', '.join(item['imports']) or '-'}",
        *_block("Routes", [f"{r['export']} -> {r['import']}  {r['policy']}" for r in routes]),
        *_block("To do", advice),
    ]
    return _text(lines)


def _route(caller: Caller, _kind: str, item: Item) -> str:
    namespace = item["export"].partition("/")[0]
    figures = _figures(caller, namespace, item)
    lines = [
        f"Export:  {item['export']}",
        f"Import:  {item['import']}",
        f"Policy:  {item['policy']}",
        f"Filter:  {item['filter'] or '-'}",
        *_block("Figures", [f"{name}: {'-' if v is None else v}" for name, v in figures.items()]),
    ]
    return _text(lines)


def _figures(caller: Caller, namespace: str, item: Item) -> Item:
    ends = (item["export"], item["import"])
    for row in caller.call("GET", "/top", namespace=namespace)["routes"]:
        if (row["export"], row["import"]) == ends:
            return {k: v for k, v in row.items() if k not in ("export", "import", "policy")}
    return {}


def _block(title: str, lines: Sequence[str]) -> list[str]:
    return [f"{title}:", *(f"  {line}" for line in (lines or ["-"]))]


def _text(lines: Sequence[str]) -> str:
    return "".join(_painted(plain(line)) + "\n" for line in lines)


def _painted(line: str) -> str:
    title, colon, rest = line.partition(":")
    if line.startswith(" ") or not colon:
        return line
    return paint(title + colon, "bold") + rest


_DESCRIBED = {"exports": _resource, "imports": _resource, "pes": _pe, "routes": _route}
