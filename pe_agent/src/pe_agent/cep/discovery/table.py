"""Rules in a database table.

Columns are ``id`` or ``uid``, and either ``pattern``, as JSON, or ``class_name`` with
``constructor_params``, a JSON list of ``{"type": …, "value": …}``. Columns for other fields of a
rule are optional. Case and underscores in names of columns make no difference.

With a column ``version`` there is a row for each version of a rule. Without it there is a row for
each rule, and its version is computed from its content: a changed row is a new version.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Protocol

from pe_agent.cep.discovery.discoverer import DiscoveryError, Fetched
from streambroker_core.cep.pattern.pattern import Pattern
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.rules.document import write_rule
from streambroker_core.cep.rules.document_schema import RULE_FIELDS
from streambroker_core.cep.rules.rule_set import UnreadableRule, UnversionedRule

RuleFactory = Callable[..., "PatternProcessor | Pattern"]
"""Called with the values of ``constructor_params``; in a table with versions, id and version first.

In a table without versions the id and version of the returned rule do not count.
"""

_JSON_COLUMNS = ("pattern", "key", "limits", "labels")
_FLAGS = ("keepMatches", "numbered")
_PARAM_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "int": (int,),
    "integer": (int,),
    "long": (int,),
    "double": (float, int),
    "float": (float, int),
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
        counts = Counter(row["id"] for row in rows)
        return Fetched([self._parse_row(row, counts) for row in rows], version)

    def _read(self) -> list[dict[str, Any]]:
        try:
            with closing(self._connect()) as connection, closing(connection.cursor()) as cursor:
                cursor.execute(f"SELECT * FROM {self._table}")  # noqa: S608 - checked in __init__
                names = [_squeeze(column[0]) for column in cursor.description]
                names = ["id" if one == "uid" and "id" not in names else one for one in names]
                rows = [
                    dict(zip(names, map(_normalise_value, row), strict=True))
                    for row in cursor.fetchall()
                ]
        except Exception as error:  # each driver has errors of its own
            raise DiscoveryError(f"table {self._table} cannot be read: {error}") from error
        if "id" not in names or not {"pattern", "classname"} & set(names):
            raise DiscoveryError(
                f"table {self._table} has the columns {', '.join(names)}: rules need id or uid, and"
                " pattern or class_name."
            )
        return sorted(rows, key=lambda row: (str(row["id"]), str(row.get("version"))))

    def _parse_row(self, row: dict[str, Any], counts: Counter[Any]) -> Any:
        count = 1 if "version" in row else counts[row["id"]]
        if isinstance(row["id"], int):
            row["id"] = str(row["id"])
        try:
            if count > 1:
                raise ValueError(f"{count} rows have this id; give each another one")
            if row.get("classname") is not None or "pattern" not in row:
                return self._build_rule(row)
            document: dict[str, Any] = {}
            for field in RULE_FIELDS:
                value = row.get(field.lower())
                if value is not None:
                    document[field] = _parse_field(field, value)
            return document if "version" in row else UnversionedRule(document)
        except Exception as error:  # a class may raise anything
            version = row.get("version") if type(row.get("version")) is int else None
            problem = f"its row cannot be read: {error}"
            return UnreadableRule(rule=str(row["id"]), version=version, problem=problem)

    def _build_rule(self, row: Mapping[str, Any]) -> PatternProcessor | UnversionedRule:
        name = row.get("classname")
        if row.get("pattern") is not None:
            raise ValueError("it has both a pattern and a class_name")
        if name not in self._classes:
            known = ", ".join(sorted(self._classes)) or "none"
            raise ValueError(
                f"class {name} is not registered; the job has {known}. Register it with"
                f" TableDiscoverer(…, classes={{{name!r}: …}})"
            )
        params = _parse_json(row.get("constructorparams") or [])
        values = [_parse_param(each) for each in params]
        leading = [row["id"], row["version"]] if "version" in row else []
        built = self._classes[name](*leading, *values)
        if isinstance(built, Pattern):
            built = PatternProcessor(id=row["id"], version=row.get("version", 0), pattern=built)
        if not isinstance(built, PatternProcessor):
            raise ValueError(f"class {name} made {built!r}, which is neither a pattern nor a rule")
        if "version" not in row:
            return UnversionedRule(write_rule(replace(built, id=row["id"])))
        if (built.id, built.version) != (row["id"], row["version"]):
            raise ValueError(f"class {name} created rule {built.id} {built.version}")
        return built


def _normalise_value(value: Any) -> Any:
    """Return a value as SQLite would return it, independent of the driver's types."""
    if hasattr(value, "read"):
        value = value.read()  # a large object; only readable while the connection is open
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode()
    if isinstance(value, Decimal | float) and math.isfinite(value) and value == int(value):
        return int(value)
    return value.isoformat() if isinstance(value, datetime) else value


def _parse_json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _parse_param(param: Any) -> Any:
    if not isinstance(param, Mapping) or set(param) != {"type", "value"}:
        raise ValueError(f'{param!r} is no parameter; write {{"type": "int", "value": 3}}')
    kind, value = str(param["type"]).lower(), param["value"]
    fits = isinstance(value, _PARAM_TYPES.get(kind, ()))
    if not fits or (isinstance(value, bool) and kind != "boolean"):
        raise ValueError(
            f"{value!r} is not of type {kind}; the types are {', '.join(_PARAM_TYPES)}"
        )
    return float(value) if kind in ("double", "float") else value


def _parse_field(name: str, value: Any) -> Any:
    if name in _JSON_COLUMNS and isinstance(value, str):
        if name == "key" and not value.lstrip().startswith("["):
            return value
        return _parse_json(value)
    return bool(value) if name in _FLAGS and value in (0, 1) else value


def _squeeze(name: str) -> str:
    return name.replace("_", "").lower()
