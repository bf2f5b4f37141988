"""``describe``: a resource with status, routes, nearest candidates and advice."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from streambroker_client.answers import PeInfo
from streambroker_client.broker import Broker
from streambroker_client.errors import BrokerError
from streambroker_core.wire.reports.health import AS_EXPECTED
from streambroker_core.wire.reports.route_states import route_state
from streambroker_operator.cli.commands.diagnose import explain_ports
from streambroker_operator.cli.commands.get import WHAT
from streambroker_operator.cli.commands.top import COLUMNS, METRIC_COLUMNS
from streambroker_operator.cli.io import terminal
from streambroker_operator.cli.io.errors import OK, UsageError
from streambroker_operator.cli.io.options import (
    add_everywhere,
    add_remote_command,
    client_for,
    namespace_for,
)
from streambroker_operator.cli.io.targets import (
    SINGULAR,
    Item,
    find_items,
    item_names,
    port_text,
    read_targets,
    select_items,
)
from streambroker_operator.cli.output.table import as_yaml, shorten

QUOTA = "/quota"
MAX_NEAREST = 5
"""Maximum number of unconnected pairs shown."""
MAX_ROUTES = 20
SILENT_S = 90.0
"""Time without contact after which an agent counts as away; agents report every 30 seconds."""
MAX_EXPLAINED = 500
"""Maximum number of pairs that a broker explains in one response."""

REMEDIES = {
    "NamespaceNotAllowed": "Name the importing namespace in the Export's allowedNamespaces.",
    "ScopeDiffers": "Make the Import's applicationScope the scope of the Export's application.",
    "NothingWanted": "Give the Import a subscription or streams: `streambroker set-subscription`.",
    "ExportedByProperties": "The Export has properties; import it by a subscription.",
    "ExportedByName": "The Export has a streamId; import it by streams.",
    "StreamIdDiffers": "Make the Import's streamId that of the Export.",
    "ApplicationDiffers": "Make applicationName that of the Export's application, or leave it out.",
    "SubscriptionInvalid": "Correct the subscription; the message shows the place.",
    "SubscriptionFalse": "Change the subscription, or the Export's properties.",
    "SubscriptionUnknown": "The Export lacks a property or has it as another type: set-properties.",
    "Revoked": "Remove the importing job and its namespace from the Export's revoked.",
    "PolicyDenied": "Add a policy for the importing job to the Export's policies.",
    "FilterForbidden": "Clear the filter, or set allowFilter at the Export.",
    "FilterInvalid": "Let the filter name columns that the Export has, with their types.",
    "SchemaMismatch": "Let the Import's schema ask only for columns that the Export has.",
    "PortTaken": "Delete the older resource, or use its name or another port.",
    "StreamIdTaken": "Delete the older Export of this streamId, or choose another one.",
}

_HARMLESS_FINDINGS = ("NobodyImports",)
"""Findings of the linter that are no mistake of the resource."""


def add(commands: Any) -> None:
    """Add the command."""
    describe = add_remote_command(commands, "describe", "show all about a resource, and what to do")
    describe.add_argument("words", nargs="+", metavar=WHAT)
    add_everywhere(describe)
    describe.set_defaults(run=_describe)


def _describe(options: argparse.Namespace) -> int:
    targets, broker = read_targets(options.words), client_for(options)
    parts = []
    for target in targets:
        if target.kinds == ("routes",) and target.name is None:
            raise UsageError("Name a route by one of its ports: `describe route JOB/PE/PORT`.")
        for kind, items in find_items(broker, target, namespace_for(options)):
            parts += [_DESCRIBERS[kind](broker, kind, item) for item in items]
    terminal.print_text("\n".join(parts) if parts else "nothing to describe\n")
    return OK


def _describe_resource(broker: Broker, kind: str, item: Item) -> str:
    metadata, spec = item["metadata"], item["spec"]
    key = f"{metadata['namespace']}/{port_text(spec)}"
    status = item.get("status") or {}
    routes = select_items("routes", broker.in_namespace(metadata["namespace"]).routes(), key)
    side = SINGULAR[kind]
    routes = [route for route in routes if route[side] == key]
    near, lint = _nearest_unmatched(broker, kind, key, status)
    displayed_spec = {k: v for k, v in spec.items() if k not in ("job", "pe", "port")}
    lines = [
        f"Name:        {metadata['name']}",
        f"Kind:        {item['kind']}",
        f"Port:        {key}",
        f"Generation:  {metadata.get('generation', '-')}",
        f"Created:     {metadata.get('creationTimestamp', '-')} "
        f"({terminal.format_age(metadata.get('creationTimestamp'))} ago)",
        *_block("Spec", as_yaml([displayed_spec]).rstrip("\n").split("\n")),
        *_block("Status", [*_status(status), *_quota(broker, metadata["namespace"])]),
        *_block(
            "Routes", _truncate([_route_line(route, kind) for route in routes], f"routes {key}")
        ),
        *_block(
            "Not connected, the nearest first", [_pair_line(pair, kind, status) for pair in near]
        ),
        *_to_do_block(
            [
                *lint,
                *_advice(status, near, has_route=bool(routes), has_findings=bool(lint)),
                *_waiting_advice(broker, metadata["namespace"], {r["export"] for r in routes}),
            ]
        ),
    ]
    return _text(lines)


def _waiting_advice(broker: Broker, namespace: str, exports: set[str]) -> list[str]:
    """Return for which imports the exporters of a resource's routes wait, and what helps."""
    rows = broker.in_namespace(namespace).top().routes if exports else []
    advice: list[str] = []
    for row in rows:
        if row["export"] in exports and route_state(row) == "waits":
            advice += [*_reader_advice(row), _congestion_advice(row)]
    return advice


def _reader_advice(row: Item) -> list[str]:
    """Return what to do for the import of a route that no query reads, or that is not healthy."""
    advice, import_ = [], row["import"]
    if problem := row.get("importProblem"):
        advice.append(
            f"Import {import_} is not healthy ({problem}): `streambroker describe"
            f" import {import_}` shows the remedy."
        )
    if not row["alive"]:
        advice.append(
            f"No query reads {import_}. If its job does not run, start it again with the same"
            " checkpoint: within the Export's buffer.grace that loses no row."
        )
    return advice


def _congestion_advice(row: Item) -> str:
    return (
        f"Export {row['export']} waits for {row['import']}, and publishes nothing meanwhile. If the"
        " import is read, but slowly: increase the Export's buffer.maxBytes or set its waitLimit,"
        " or set onCongestion: drop at that Import."
    )


def _truncate(lines: Sequence[str], words: str) -> list[str]:
    if len(lines) <= MAX_ROUTES:
        return list(lines)
    more = f"… and {len(lines) - MAX_ROUTES} more: `streambroker get {words}`"
    return [*lines[:MAX_ROUTES], more]


def _to_do_block(lines: Sequence[str]) -> list[str]:
    return _block("To do", lines) if lines else []


def _status(status: Item) -> list[str]:
    accepted = "yes" if status.get("accepted") else "no"
    lines = [f"Accepted: {accepted} ({status.get('reason', 'Unknown')})"]
    if status.get("message"):
        lines.append(f"Message:  {status['message']}")
    if healthy := status.get("healthy"):
        word = "yes" if healthy["reason"] == AS_EXPECTED else f"no ({healthy['reason']})"
        lines.append(f"Healthy:  {word} {healthy['message']}".rstrip())
    if status.get("ended"):
        lines.append("Ended:    yes, its program has finished the stream")
    if status.get("damaged"):
        lines.append(f"Damaged:  {status['damaged']}")
    if stored := status.get("stored"):
        answer = "yes" if stored["reason"] == "UpToDate" else f"no ({stored['reason']})"
        lines.append(f"Stored:   {answer} {stored['message']}".rstrip())
    if version := status.get("schemaVersion"):
        since = f", since {version['since']}" if version.get("since") else ""
        lines.append(f"Schema:   version {version['number']}{since}")
    if status.get("ring"):
        lines.append(f"Ring:     {status['ring']}")
    lines.append(f"Matches:  {status.get('matches', 0)}")
    return [terminal.one_line(line) for line in lines]


def _quota(broker: Broker, namespace: str) -> list[str]:
    """Return the use of a namespace's quota; none if there is no quota, or an older broker."""
    try:
        quota = broker.connection.call("GET", QUOTA, namespace=namespace)
    except BrokerError as error:
        if error.status not in (403, 404):
            raise
        return []
    lines = []
    for name, write in (("ports", str), ("bytes", terminal.format_size)):
        used, limit = quota[name]["used"], quota[name]["limit"]
        if limit is not None:
            lines.append(f"Quota:    {namespace} uses {write(used)} of {write(limit)} {name}")
    return lines


def _nearest_unmatched(
    broker: Broker, kind: str, key: str, status: Item
) -> tuple[list[Item], list[str]]:
    """Return the nearest pairs that do not match, and the linter's messages.

    Explanations list matching pairs first. If those exceed the limit, or on 404, the refused pairs
    of the status are returned instead, without messages of the linter.
    """
    refused = [{"import": key, **pair} for pair in status.get("refused", [])][:MAX_NEAREST]
    limit = MAX_NEAREST + int(status.get("matches", 0))
    if limit > MAX_EXPLAINED:
        return refused, []
    try:
        answer = explain_ports(broker, {kind: key}, limit)
    except BrokerError as error:
        if error.status != 404:
            raise
        return refused, []
    pairs: list[Item] = [pair for pair in answer.pairs if not pair.matched]
    lint = [finding for finding in answer.lint if finding.code not in _HARMLESS_FINDINGS]
    return pairs[:MAX_NEAREST], [finding.message for finding in lint]


def _advice(
    status: Item, near: Sequence[Item], *, has_route: bool, has_findings: bool
) -> list[str]:
    """Return general remedies; fewer if the linter has findings, which are more specific."""
    if not status.get("accepted", True):
        reason = str(status.get("reason"))
        return [REMEDIES.get(reason, "See the message above.")]
    reasons = list(dict.fromkeys(str(pair["reason"]) for pair in near))
    if has_route or has_findings:
        from streambroker_core.matching import NEAR

        reasons = [reason for reason in reasons if reason in NEAR]
    if not reasons and not has_route and not has_findings:
        return ["There is nothing to connect to yet: `streambroker get exports,imports`."]
    return [f"{reason}: {REMEDIES.get(reason, 'see the message above.')}" for reason in reasons[:3]]


def _route_line(route: Item, kind: str) -> str:
    arrow = f"-> {route['import']}" if kind == "exports" else f"<- {route['export']}"
    filter_ = f"  filter {shorten(route['filter'])}" if route.get("filter") else ""
    return f"{arrow}  {route['policy']}{filter_}"


def _pair_line(pair: Item, kind: str, status: Item) -> str:
    """Return a line for a pair, without a message that the status has already."""
    other = pair["import"] if kind == "exports" else pair["export"]
    message = str(pair["message"])
    if status_message := status.get("message"):
        message = message.removeprefix(str(status_message)).removeprefix("; ")
    return f"{other}  {pair['reason']}" + (f": {message}" if message else "")


def _describe_pe(broker: Broker, kind: str, item: Item) -> str:
    key = item_names(kind, item)[1]
    routes = [
        route
        for route in broker.in_namespace(item["namespace"]).routes()
        if key in (route["export"].rpartition("/")[0], route["import"].rpartition("/")[0])
    ]
    last_contact, silence = terminal.format_age(item.get("seen")), _silence(item)
    lines = [
        f"Name:      {item_names(kind, item)[0]}",
        "Kind:      PE",
        f"Namespace: {item['namespace']}",
        f"Location:  {item['location'] or '-'}",
        f"Seen:      {last_contact}{' ago' if item.get('seen') else ''}",
        f"View:      {item.get('version') or '-'}",
        f"Exports:   {', '.join(item['exports']) or '-'}",
        f"Imports:   {', '.join(item['imports']) or '-'}",
        *_block(
            "Routes",
            _truncate([f"{r['export']} -> {r['import']}  {r['policy']}" for r in routes], "routes"),
        ),
        *_to_do_block(
            [f"Its agent {silence}: is the job running, and does it reach the broker?"]
            if silence
            else []
        ),
    ]
    return _text(lines)


def _silence(item: Item | PeInfo) -> str:
    """Return what is wrong with the reports of a PE's agent; empty if nothing is."""
    if not item["location"]:
        return "has never registered"
    if not item["seen"]:
        return "has not reported since the broker started; agents report every 30 seconds"
    if terminal.seconds_since(item["seen"]) > SILENT_S:
        return f"has not reported for {terminal.format_age(item['seen'])}"
    return ""


def _describe_route(broker: Broker, _kind: str, item: Item) -> str:
    namespace = item["export"].partition("/")[0]
    lines = [
        f"Export:  {item['export']}",
        f"Import:  {item['import']}",
        f"Policy:  {item['policy']}",
        f"Filter:  {item['filter'] or '-'}",
        *_block("Figures", _metric_lines(broker, namespace, item)),
    ]
    return _text(lines)


def _metric_lines(broker: Broker, namespace: str, item: Item) -> list[str]:
    """Return the metrics of a route, one line per column of `top`."""
    ends = (item["export"], item["import"])
    for row in broker.in_namespace(namespace).top().routes:
        if (row["export"], row["import"]) == ends:
            return [
                f"{name.capitalize() + ':':<12} {COLUMNS[name](row)}" for name in METRIC_COLUMNS
            ]
    return []


def _block(title: str, lines: Sequence[str]) -> list[str]:
    return [f"{title}:", *(f"  {line}" for line in (lines or ["none"]))]


def _text(lines: Sequence[str]) -> str:
    return "".join(_colour_title(terminal.sanitise(line)) + "\n" for line in lines)


def _colour_title(line: str) -> str:
    title, colon, rest = line.partition(":")
    if line.startswith(" ") or not colon:
        return line
    return terminal.paint(title + colon, "bold") + rest


_DESCRIBERS = {
    "exports": _describe_resource,
    "imports": _describe_resource,
    "pes": _describe_pe,
    "routes": _describe_route,
}
