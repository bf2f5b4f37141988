"""Show lists as tables, JSON or YAML."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import yaml

Row = list[str]
Item = dict[str, Any]


def shown(kind: str, items: Sequence[Item], output: str) -> str:
    """Return a list as text.

    Args:
        kind: exports, imports, pes or routes.
        items: as the broker answers them.
        output: table, wide, json or yaml.
    """
    if output == "json":
        return json.dumps({"items": list(items)}, indent=2) + "\n"
    if output == "yaml":
        return yaml.safe_dump_all(items, sort_keys=False, allow_unicode=True)
    if not items:
        return f"no {kind}\n"
    head, row = _TABLES[kind]
    wide = output == "wide"
    rows = [[*row(item), *(_wide(kind, item) if wide else [])] for item in items]
    return table([[*head, *(_WIDE.get(kind, []) if wide else [])], *rows])


def table(rows: Sequence[Row]) -> str:
    """Return rows in columns as wide as they have to be."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def _port(spec: Item) -> Row:
    return [spec["job"], str(spec["pe"]), spec["port"]]


def _state(item: Item) -> Row:
    status = item.get("status", {})
    return [str(status.get("matches", 0)), str(status.get("reason", "Unknown"))]


def _export(item: Item) -> Row:
    spec = item["spec"]
    offers = spec.get("streamId") or _properties(spec.get("properties") or {})
    return [*_port(spec), _short(offers), *_state(item)]


def _import(item: Item) -> Row:
    spec = item["spec"]
    named = ", ".join(stream["streamId"] for stream in spec.get("streams", []))
    wants = spec.get("subscription") or named or "-"
    return [*_port(spec), _short(wants), _short(spec.get("filter") or "-"), *_state(item)]


def _pe(item: Item) -> Row:
    return [
        item["namespace"],
        item["job"],
        str(item["pe"]),
        item["location"] or "-",
        ",".join(item["exports"]) or "-",
        ",".join(item["imports"]) or "-",
    ]


def _route(item: Item) -> Row:
    return [item["export"], item["import"], item["policy"], item["filter"] or "-"]


def _properties(properties: Item) -> str:
    return " ".join(f"{name}={json.dumps(value)}" for name, value in properties.items()) or "{}"


def _short(text: str, limit: int = 60) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def _wide(kind: str, item: Item) -> Row:
    if kind not in _WIDE:
        return []
    status = item.get("status", {})
    peers = ",".join(status.get("topMatches", [])) or "-"
    return [
        item["metadata"]["namespace"],
        str(item["metadata"]["generation"]),
        item["spec"]["application"]["scope"],
        peers,
        status.get("message") or "-",
    ]


_TABLES: dict[str, tuple[Row, Callable[[Item], Row]]] = {
    "exports": (["JOB", "PE", "PORT", "OFFERS", "MATCHES", "STATE"], _export),
    "imports": (["JOB", "PE", "PORT", "WANTS", "FILTER", "MATCHES", "STATE"], _import),
    "pes": (["NAMESPACE", "JOB", "PE", "LOCATION", "EXPORTS", "IMPORTS"], _pe),
    "routes": (["EXPORT", "IMPORT", "POLICY", "FILTER"], _route),
}
_WIDE: dict[str, Row] = {
    "exports": ["NAMESPACE", "GENERATION", "SCOPE", "PEERS", "MESSAGE"],
    "imports": ["NAMESPACE", "GENERATION", "SCOPE", "PEERS", "MESSAGE"],
}
