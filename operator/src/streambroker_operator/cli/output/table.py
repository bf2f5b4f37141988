"""Render resources as tables, JSON, YAML or names."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from streambroker_operator.cli.io.targets import SINGULAR, Item, item_names, port_text
from streambroker_operator.cli.io.terminal import (
    Colour,
    format_age,
    is_printable,
    one_line,
    paint,
    print_text,
)

R = TypeVar("R")
Columns: TypeAlias = Mapping[str, Callable[[R], str]]
"""Returns the cell of a row, by name of the column."""

_BODY_KINDS = {"pes": "PE", "routes": "Route"}


class Table(Generic[R]):
    """Aligned columns with a header, and one line per row.

    Columns are never narrower than in earlier calls of `lines`.

    Args:
        columns: in order.
        right: names of the columns that are aligned at the right.
        least: minimum widths by column, in characters.
    """

    def __init__(
        self,
        columns: Columns[R],
        *,
        right: Collection[str] = (),
        least: Mapping[str, int] | None = None,
    ) -> None:
        self._columns = columns
        self._right = right
        self._widths = {name: (least or {}).get(name, 0) for name in columns}

    def lines(
        self,
        rows: Iterable[R],
        *,
        header: bool = True,
        colour: Callable[[R], Colour | None] = lambda _: None,
        cut: int | None = None,
    ) -> list[str]:
        """Return the lines of rows, coloured and cut at `cut` characters."""
        lines: list[tuple[Mapping[str, str], Colour | None]] = []
        if header:
            lines.append(({name: name for name in self._columns}, None))
        for row in rows:
            texts = {name: one_line(cell(row)) for name, cell in self._columns.items()}
            lines.append((texts, colour(row)))
        for cells, _ in lines:
            for name, cell in cells.items():
                self._widths[name] = max(self._widths[name], len(cell))
        return [paint(self._align(cells)[:cut], colour) for cells, colour in lines]

    def text(self, rows: Iterable[R], *, header: bool = True) -> str:
        """Return the lines of rows as one text; empty without a line."""
        return "".join(f"{line}\n" for line in self.lines(rows, header=header))

    def _align(self, cells: Mapping[str, str]) -> str:
        aligned = (
            f"{cell:>{width}}" if name in self._right else f"{cell:<{width}}"
            for (name, cell), width in zip(cells.items(), self._widths.values(), strict=True)
        )
        return "  ".join(aligned).rstrip()


def render_items(
    kind: str,
    items: Sequence[Item],
    output: str,
    *,
    everywhere: bool = False,
    headers: bool = True,
) -> str:
    """Return items of one kind as text; empty without items.

    Args:
        kind: exports, imports, pes or routes.
        items: as the broker returns them.
        output: table, wide or name.
        everywhere: the items are of several namespaces.
        headers: whether tables have a header.
    """
    if output == "name":
        return "".join(
            f"{SINGULAR[kind]}/{qualified_name(kind, item, everywhere)}\n" for item in items
        )
    if not items:
        return ""
    columns = item_columns(kind, wide=output == "wide", everywhere=everywhere)
    return Table(columns).text(items, header=headers)


def render_document(items: Sequence[Item], output: str, *, single: bool = False) -> str:
    """Return items as YAML documents, or as a JSON list; the only item itself if `single`."""
    if output == "yaml":
        return as_yaml(items)
    return as_json(items[0] if single else {"apiVersion": "v1", "kind": "List", "items": items})


def print_answer(body: Any, output: str, text: str) -> None:
    """Print a broker's answer as JSON or YAML, else the text."""
    if output == "json":
        text = as_json(body)
    elif output == "yaml":
        text = as_yaml([body])
    print_text(text)


def qualified_name(kind: str, item: Item, everywhere: bool) -> str:
    """Return a name that commands accept for the item; with its namespace if `everywhere`."""
    with_namespace = {"pes": 1, "routes": 0}.get(kind, 2)
    return item_names(kind, item)[with_namespace if everywhere else 0]


def as_json(body: object, indent: int | None = 2) -> str:
    """Return JSON; control characters for terminals are escaped."""
    text = json.dumps(body, indent=indent, ensure_ascii=False)
    return (text if is_printable(text) else json.dumps(body, indent=indent)) + "\n"


def as_yaml(documents: Sequence[object]) -> str:
    """Return YAML documents."""
    from streambroker_operator.cli.io.yaml_format import dump_all

    return dump_all(documents)


def with_kind(kind: str, item: Item) -> Item:
    """Return an item with its ``kind``; manifests have one already."""
    return item if kind not in _BODY_KINDS else {"kind": _BODY_KINDS[kind], **item}


def item_columns(kind: str, *, wide: bool, everywhere: bool) -> Columns[Item]:
    """Return the columns of a kind: all if `wide`, and the namespace first if `everywhere`."""
    first = {"NAMESPACE": _namespace} if everywhere and kind != "routes" else {}
    more = _WIDE_COLUMNS.get(kind, {}) if wide else {}
    return {**first, **_COLUMNS[kind], **more}


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


def _namespace(item: Item) -> str:
    return str(item.get("metadata", item).get("namespace", "-"))


def _status(item: Item) -> Item:
    return item.get("status") or {}


def _state(item: Item) -> str:
    status = _status(item)
    return "Ended" if status.get("ended") else str(status.get("reason", "Unknown"))


_NAME_COLUMNS: Columns[Item] = {
    "NAME": lambda item: str(item["metadata"].get("name", "-")),
    "PORT": lambda item: port_text(item["spec"]),
}
_STATE_COLUMNS: Columns[Item] = {
    "MATCHES": lambda item: str(_status(item).get("matches", 0)),
    "STATE": _state,
    "AGE": lambda item: format_age(item["metadata"].get("creationTimestamp")),
}
_COLUMNS: Mapping[str, Columns[Item]] = {
    "exports": {
        **_NAME_COLUMNS,
        "OFFERS": lambda item: offer_text(item["spec"]),
        **_STATE_COLUMNS,
    },
    "imports": {
        **_NAME_COLUMNS,
        "WANTS": lambda item: subscription_text(item["spec"]),
        "FILTER": lambda item: shorten(item["spec"].get("filter") or "-"),
        **_STATE_COLUMNS,
    },
    "pes": {
        "PE": lambda item: f"{item['job']}/{item['pe']}",
        "LOCATION": lambda item: item["location"] or "-",
        "SEEN": lambda item: format_age(item.get("seen")),
        "EXPORTS": lambda item: ",".join(item["exports"]) or "-",
        "IMPORTS": lambda item: ",".join(item["imports"]) or "-",
    },
    "routes": {
        "EXPORT": lambda item: item["export"],
        "IMPORT": lambda item: item["import"],
        "POLICY": lambda item: item["policy"],
        "FILTER": lambda item: shorten(item["filter"] or "-"),
    },
}
_WIDE_PORT_COLUMNS: Columns[Item] = {
    "GENERATION": lambda item: str(item["metadata"].get("generation", "-")),
    "SCOPE": lambda item: str(item["spec"].get("application", {}).get("scope", "-")),
    "PEERS": lambda item: ",".join(_status(item).get("topMatches", [])) or "-",
    "MESSAGE": lambda item: _status(item).get("message") or "-",
}
_WIDE_COLUMNS: Mapping[str, Columns[Item]] = {
    "exports": _WIDE_PORT_COLUMNS,
    "imports": _WIDE_PORT_COLUMNS,
    "pes": {"VIEW": lambda item: item.get("version") or "-"},
}
