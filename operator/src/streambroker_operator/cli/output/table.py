"""Render resources as tables, JSON, YAML or names."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from streambroker_operator.cli.io.targets import SINGULAR, item_name
from streambroker_operator.cli.io.terminal import format_age, one_line
from streambroker_operator.cli.io.yaml_format import dump_all

Row = list[str]
Item = dict[str, Any]

_BODY_KINDS = {"pes": "PE", "routes": "Route"}


def render_items(
    kind: str,
    items: Sequence[Item],
    output: str,
    *,
    everywhere: bool = False,
    headers: bool = True,
    now: datetime | None = None,
) -> str:
    """Return items of one kind as text; empty without items, except for JSON.

    Args:
        kind: exports, imports, pes or routes.
        items: as the broker returns them.
        output: table, wide, json, yaml or name.
        everywhere: the items are of several namespaces.
        headers: whether tables have a header.
        now: for ages; None for the current time.
    """
    if output == "json":
        items = [with_kind(kind, item) for item in items]
        return as_json({"apiVersion": "v1", "kind": "List", "items": items})
    if output == "yaml":
        return as_yaml([with_kind(kind, item) for item in items])
    if output == "name":
        return "".join(
            f"{SINGULAR[kind]}/{qualified_name(kind, item, everywhere)}\n" for item in items
        )
    if not items:
        return ""
    layout = Layout(kind, wide=output == "wide", everywhere=everywhere)
    head = [layout.head] if headers else []
    return table([*head, *(layout.row(item, now) for item in items)])


def qualified_name(kind: str, item: Item, everywhere: bool) -> str:
    """Return a name that commands accept for the item; with its namespace if `everywhere`."""
    if everywhere and kind != "routes":
        return item_name(kind, item, 1 if kind == "pes" else 2)
    return item_name(kind, item)


def as_json(body: object) -> str:
    """Return indented JSON."""
    return json.dumps(body, indent=2, ensure_ascii=False) + "\n"


def as_yaml(documents: Sequence[object]) -> str:
    """Return YAML documents."""
    return dump_all(documents)


def with_kind(kind: str, item: Item) -> Item:
    """Return an item with its ``kind``; manifests have one already."""
    return item if kind not in _BODY_KINDS else {"kind": _BODY_KINDS[kind], **item}


class Layout:
    """Columns of one kind: all if `wide`, and the namespace first if `everywhere`."""

    def __init__(self, kind: str, *, wide: bool = False, everywhere: bool = False) -> None:
        head, self._row = _TABLES[kind]
        more, self._wide_row = _WIDE[kind] if wide and kind in _WIDE else ([], _no_cells)
        self._everywhere = everywhere and kind != "routes"
        self._has_age = kind in ("exports", "imports")
        first = ["NAMESPACE"] if self._everywhere else []
        self.head = [*first, *head, *(["AGE"] if self._has_age else []), *more]

    def row(self, item: Item, now: datetime | None = None) -> Row:
        """Return the cells of an item."""
        metadata = item.get("metadata", item)
        first = [str(metadata.get("namespace", "-"))] if self._everywhere else []
        aged = [format_age(metadata.get("creationTimestamp"), now)] if self._has_age else []
        return [one_line(cell) for cell in [*first, *self._row(item), *aged, *self._wide_row(item)]]


def table(rows: Sequence[Row], least: Sequence[int] = ()) -> str:
    """Return rows with aligned columns, each at least as wide as in `least`."""
    widths = column_widths(rows, least)
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def column_widths(rows: Sequence[Row], least: Sequence[int] = ()) -> list[int]:
    """Return the widths of the columns, in characters."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [max(pair) for pair in zip(widths, least, strict=True)] if least else widths


def port_text(spec: Item) -> str:
    """Return the port of a resource as ``JOB/PE/PORT``."""
    return f"{spec['job']}/{spec['pe']}/{spec['port']}"


def _state(item: Item) -> Row:
    status = item.get("status") or {}
    state = "Ended" if status.get("ended") else str(status.get("reason", "Unknown"))
    return [str(status.get("matches", 0)), state]


def _name_cells(item: Item) -> Row:
    return [str(item["metadata"].get("name", "-")), port_text(item["spec"])]


def offer_text(spec: Item) -> str:
    """Return the stream id or properties of an Export, on one line."""
    return shorten(spec.get("streamId") or properties_text(spec.get("properties") or {}))


def subscription_text(spec: Item) -> str:
    """Return the subscription or streams of an Import, on one line; ``-`` for none."""
    if spec.get("subscription"):
        return shorten(spec["subscription"])
    names = (
        "/".join(filter(None, (stream.get("applicationName"), stream["streamId"])))
        for stream in spec.get("streams", [])
    )
    return shorten(", ".join(f"stream {name}" for name in names)) or "-"


def _export(item: Item) -> Row:
    return [*_name_cells(item), offer_text(item["spec"]), *_state(item)]


def _import(item: Item) -> Row:
    spec = item["spec"]
    return [
        *_name_cells(item),
        subscription_text(spec),
        shorten(spec.get("filter") or "-"),
        *_state(item),
    ]


def _pe(item: Item) -> Row:
    return [
        f"{item['job']}/{item['pe']}",
        item["location"] or "-",
        format_age(item.get("seen")),
        ",".join(item["exports"]) or "-",
        ",".join(item["imports"]) or "-",
        shard_agents_text(item.get("fellows", ())),
    ]


def shard_agents_text(shard_agents: Sequence[Item]) -> str:
    """Return the PE numbers of shard agents; those that do not answer are marked."""
    names = (f"{f['pe'].rpartition('/')[2]}{' (away)' if f['away'] else ''}" for f in shard_agents)
    return ", ".join(names) or "-"


def _route(item: Item) -> Row:
    return [item["export"], item["import"], item["policy"], shorten(item["filter"] or "-")]


def properties_text(properties: Item) -> str:
    """Return properties on one line."""
    parts = (
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in properties.items()
    )
    return " ".join(parts) or "{}"


def shorten(text: str, limit: int = 60) -> str:
    """Return a text on one line, truncated to a limit."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def _wide_cells(item: Item) -> Row:
    status = item.get("status") or {}
    return [
        str(item["metadata"].get("generation", "-")),
        str(item["spec"].get("application", {}).get("scope", "-")),
        ",".join(status.get("topMatches", [])) or "-",
        status.get("message") or "-",
    ]


def _no_cells(_item: Item) -> Row:
    return []


_TABLES: dict[str, tuple[Row, Callable[[Item], Row]]] = {
    "exports": (["NAME", "PORT", "OFFERS", "MATCHES", "STATE"], _export),
    "imports": (["NAME", "PORT", "WANTS", "FILTER", "MATCHES", "STATE"], _import),
    "pes": (["PE", "LOCATION", "SEEN", "EXPORTS", "IMPORTS", "FELLOWS"], _pe),
    "routes": (["EXPORT", "IMPORT", "POLICY", "FILTER"], _route),
}
_WIDE: dict[str, tuple[Row, Callable[[Item], Row]]] = {
    "exports": (["GENERATION", "SCOPE", "PEERS", "MESSAGE"], _wide_cells),
    "imports": (["GENERATION", "SCOPE", "PEERS", "MESSAGE"], _wide_cells),
    "pes": (["VIEW"], lambda item: [item.get("version") or "-"]),
}
