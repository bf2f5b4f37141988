"""``peek`` and ``schema``: the last rows of an export, and its columns."""

from __future__ import annotations

import argparse
import base64
import csv
import io
import json
import re
import sys
import time
from collections.abc import Callable
from typing import Any

from streambroker_client.broker import port_path
from streambroker_core.model.schema import Schema, from_items, to_ddl
from streambroker_core.model.schema_texts import to_avro, to_json_schema, to_protobuf
from streambroker_operator.cli.io.errors import OK, UsageError, print_notes
from streambroker_operator.cli.io.options import (
    add_remote_command,
    client_for,
    one_of,
    seconds_between,
)
from streambroker_operator.cli.io.targets import Target, find_items, find_port
from streambroker_operator.cli.io.terminal import one_line, print_text
from streambroker_operator.cli.output.table import Table

DEFAULT_ROWS, MAX_ROWS = 10, 1_000
OUTPUTS = ("table", "json", "csv", "arrow")
_SCHEMA_TEXTS: dict[str, Callable[[Schema, str], str]] = {
    "ddl": lambda columns, _: f"{to_ddl(columns)}\n",
    "avro": to_avro,
    "protobuf": to_protobuf,
    "jsonschema": to_json_schema,
}
_VERSIONS: Table[dict[str, Any]] = Table(
    {
        "VERSION": lambda one: str(one["version"]),
        "FROM EPOCH": lambda one: str(one["firstEpoch"]),
        "SINCE": lambda one: one["since"] or "-",
        "COLUMNS": lambda one: ", ".join(f"{c['name']} {c['type']}" for c in one["columns"]),
    }
)
_WIDTH = 60
"""Maximum characters of a cell."""


def add(commands: Any) -> None:
    """Add the command."""
    peek = add_remote_command(commands, "peek", "show the last rows of an export")
    peek.add_argument("export", metavar="EXPORT", help="as NAME or JOB/PE/PORT")
    peek.add_argument("--filter", metavar="EXPR", help="only rows that pass it")
    peek.add_argument("--columns", metavar="NAME,NAME", help="only these columns")
    peek.add_argument(
        "--rows", type=_count, default=DEFAULT_ROWS, help=f"default 10, up to {MAX_ROWS:,}"
    )
    peek.add_argument("-f", "--follow", action="store_true", help="go on with what is published")
    peek.add_argument("--interval", type=seconds_between(0.1, 3_600), default=1.0, metavar="S")
    output = one_of(*OUTPUTS)
    peek.add_argument("-o", "--output", type=output, default="table", metavar="|".join(OUTPUTS))
    peek.set_defaults(run=_peek)
    schema = add_remote_command(commands, "schema", "print the columns of an export")
    schema.add_argument("export", metavar="EXPORT", help="as NAME or JOB/PE/PORT")
    forms = one_of(*_SCHEMA_TEXTS, "versions")
    choices = "|".join((*_SCHEMA_TEXTS, "versions"))
    schema.add_argument("-o", "--output", type=forms, default="ddl", metavar=choices)
    schema.set_defaults(run=_schema)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= MAX_ROWS):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {MAX_ROWS}")
    return int(text)


def _schema(options: argparse.Namespace) -> int:
    broker = client_for(options)
    key = find_port(broker, "exports", options.export, options.namespace)
    if options.output == "versions":
        query = {"namespace": key.owner.namespace, "limit": "1"}
        found = broker.connection.call("GET", f"{port_path('Export', key)}/rows", **query)
        print_text(_VERSIONS.text(found.get("schemaVersions", ()), header=True))
        return OK
    target = Target(kinds=("exports",), name=str(key))
    ((_, (found, *_)),) = find_items(broker, target, key.owner.namespace)
    columns = from_items(found["spec"].get("schema") or ())
    if not columns:
        raise UsageError(f"Export {key} has no columns yet: its job has not published.")
    name = "".join(part.capitalize() for part in re.findall("[A-Za-z0-9]+", key.port))
    print_text(_SCHEMA_TEXTS[options.output](columns, name if name[:1].isalpha() else f"T{name}"))
    return OK


def _peek(options: argparse.Namespace) -> int:
    broker = client_for(options)
    key = find_port(broker, "exports", options.export, options.namespace)
    path = f"{port_path('Export', key)}/rows"
    query = {"namespace": key.owner.namespace, "limit": str(options.rows)}
    query.update({"filter": options.filter} if options.filter else {})
    query.update({"columns": options.columns} if options.columns else {})
    query.update({"format": "arrow"} if options.output == "arrow" else {})
    found = broker.connection.call("GET", path, **query)
    if "policies" in found:
        print_notes([f"Withheld by {found['policies']}"])
    printer = _Printer(options.output, [one["name"] for one in found["columns"]])
    printer.show(found)
    while options.follow:
        time.sleep(options.interval)
        after = {"after": found["position"]} if found["position"] else {}
        found = broker.connection.call("GET", path, **{**query, "limit": str(MAX_ROWS), **after})
        if found["truncated"]:
            print_notes(["More rows were published than are shown at a time: some are left out."])
        printer.show(found)
    if not (found.get("rows") or found.get("arrow")):
        print_notes(["The export has no row that passes."])
    return OK


class _Printer:
    """Prints answers one after the other, with one header."""

    def __init__(self, output: str, names: list[str]) -> None:
        self._output, self._names = output, names
        columns = {name: lambda row, n=n: _cell(row[n]) for n, name in enumerate(names)}
        self._table: Table[list[Any]] = Table(columns)
        self._header = True

    def show(self, found: dict[str, Any]) -> None:
        """Print the rows of an answer."""
        if self._output == "arrow":
            sys.stdout.buffer.write(base64.b64decode(found.get("arrow", "")))
            sys.stdout.buffer.flush()
            return
        rows = found["rows"]
        if self._output == "json":
            print_text("".join(f"{json.dumps(self._as_object(row))}\n" for row in rows))
        elif self._output == "csv":
            print_text(_as_csv([self._names, *rows] if self._header else rows))
        elif rows:
            print_text(self._table.text(rows, header=self._header))
        self._header = self._header and not rows

    def _as_object(self, row: list[Any]) -> dict[str, Any]:
        return dict(zip(self._names, row, strict=True))


def _as_csv(rows: list[list[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [_text(value) if isinstance(value, (dict, list, bool)) else value for value in row]
        for row in rows
    )
    return text.getvalue()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _cell(value: Any) -> str:
    text = one_line(_text(value))
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"
