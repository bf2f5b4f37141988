"""Rules in a database table: one row for each version of a rule.

Columns are ``id`` and ``version``, and either ``pattern``, as JSON, or ``class_name`` with
``constructor_params``, a JSON list of ``{"type": …, "value": …}``. Columns for other fields of a
rule are optional. They have the field's name in documents, or that with underscores (``on_error``).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import datetime
from decimal import Decimal
from typing import Any, Protocol

from pe_agent.cep.discovery.discoverer import DiscoveryError, Fetched
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.rules.document_schema import RULE_FIELDS
from streambroker_core.cep.rules.rule_set import UnreadableRule

RuleFactory = Callable[..., PatternProcessor]
"""Called with id, version and the values of ``constructor_params``."""

_JSON_COLUMNS = ("pattern", "key", "limits", "labels")
_FLAGS = ("keepMatches", "numbered")
_PARAM_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "double": (float, int),
    "boolean": (bool,),
}


class Connection(Protocol):
    """A database connection according to DB-API 2.0 (PEP 249)."""

    def cursor(self) -> Any:
        """Return a cursor."""

    def close(self) -> None:
        """Close the connection."""


class TableSource:
    """Reads a table, with a connection for each read."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        table: str,
        classes: Mapping[str, RuleFactory],
    ) -> None:
        parts = table.split(".")
        if not all(part.isidentifier() for part in parts):
            raise ValueError(f"{table!r} is not a name of a table: use letters, digits, _ and dots")
        self._connect, self._table, self._classes = connect, table, dict(classes)

    def fetch(self, known: str | None) -> Fetched | None:
        """Return the table's rules if a row was added, removed or changed."""
        rows = self._read()
        version = hashlib.sha256(repr(rows).encode()).hexdigest()
        if version == known:
            return None
        return Fetched([self._parse_row(row) for row in rows], version)

    def _read(self) -> list[dict[str, Any]]:
        try:
            with closing(self._connect()) as connection, closing(connection.cursor()) as cursor:
                cursor.execute(f"SELECT * FROM {self._table}")  # noqa: S608 - checked in __init__
                names = [column[0].lower() for column in cursor.description]
                rows = [
                    dict(zip(names, map(_normalise_value, row), strict=True))
                    for row in cursor.fetchall()
                ]
        except Exception as error:  # each driver has errors of its own
            raise DiscoveryError(f"table {self._table} cannot be read: {error}") from error
        missing = [name for name in ("id", "version") if name not in names]
        if missing or not {"pattern", "class_name"} & set(names):
            raise DiscoveryError(
                f"table {self._table} has the columns {', '.join(names)}: rules need id, version,"
                " and pattern or class_name."
            )
        return sorted(rows, key=lambda row: (str(row["id"]), str(row["version"])))

    def _parse_row(self, row: Mapping[str, Any]) -> Any:
        document: dict[str, Any] = {"id": row["id"], "version": row["version"]}
        try:
            if row.get("class_name") is not None:
                return self._build_rule(row)
            for name in RULE_FIELDS:
                value = row.get(_to_snake_case(name), row.get(name.lower()))
                if value is not None:
                    document[name] = _parse_field(name, value)
            return document
        except Exception as error:  # a class may raise anything
            version = row["version"] if type(row["version"]) is int else None
            problem = f"its row cannot be read: {error}"
            return UnreadableRule(rule=str(row["id"]), version=version, problem=problem)

    def _build_rule(self, row: Mapping[str, Any]) -> PatternProcessor:
        name = row["class_name"]
        if row.get("pattern") is not None:
            raise ValueError("it has both a pattern and a class_name")
        if name not in self._classes:
            known = ", ".join(sorted(self._classes)) or "none"
            raise ValueError(f"class {name} is not registered; the job has {known}")
        params = json.loads(row.get("constructor_params") or "[]")
        values = [_parse_param(each) for each in params]
        rule = self._classes[name](row["id"], row["version"], *values)
        if (rule.id, rule.version) != (row["id"], row["version"]):
            raise ValueError(f"class {name} created rule {rule.id} {rule.version}")
        return rule


def _normalise_value(value: Any) -> Any:
    """Return a value as SQLite would return it, independent of the driver's types."""
    if hasattr(value, "read"):
        value = value.read()  # a large object; only readable while the connection is open
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode()
    if isinstance(value, Decimal | float) and math.isfinite(value) and value == int(value):
        return int(value)
    return value.isoformat() if isinstance(value, datetime) else value


def _parse_param(param: Mapping[str, Any]) -> Any:
    kind, value = param["type"], param["value"]
    fits = isinstance(value, _PARAM_TYPES.get(kind, ()))
    if not fits or (isinstance(value, bool) and kind != "boolean"):
        raise ValueError(
            f"{value!r} is not of type {kind}; the types are {', '.join(_PARAM_TYPES)}"
        )
    return float(value) if kind == "double" else value


def _parse_field(name: str, value: Any) -> Any:
    if name in _JSON_COLUMNS and isinstance(value, str):
        if name == "key" and not value.lstrip().startswith("["):
            return value
        return json.loads(value)
    return bool(value) if name in _FLAGS and value in (0, 1) else value


def _to_snake_case(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
