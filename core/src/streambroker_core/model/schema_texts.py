"""Schemas in the languages of other systems: Avro, Protocol Buffers and JSON Schema.

Every column may be null. A type that a language lacks is an error, never another type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from streambroker_core.errors import SchemaError
from streambroker_core.model.schema import Schema

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_PART = re.compile(r"`((?:[^`]|``)+)`|(\w+)|(.)")
_INTEGERS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_AVRO_SIMPLE = {
    "float": "float",
    "double": "double",
    "string": "string",
    "char": "string",
    "varchar": "string",
    "boolean": "boolean",
    "binary": "bytes",
}
_AVRO_LOGICAL = {
    "date": ("int", "date"),
    "timestamp": ("long", "timestamp-micros"),
    "timestamp_ntz": ("long", "local-timestamp-micros"),
}
_PROTOBUF_SCALARS = {
    "tinyint": "int32",
    "smallint": "int32",
    "int": "int32",
    "bigint": "int64",
    "float": "float",
    "double": "double",
    "string": "string",
    "char": "string",
    "varchar": "string",
    "boolean": "bool",
    "binary": "bytes",
    "timestamp": "google.protobuf.Timestamp",
}
_NO_PROTOBUF_KEYS = ("float", "double", "binary", "timestamp")
_JSON_SIMPLE: dict[str, dict[str, Any]] = {
    "float": {"type": "number"},
    "double": {"type": "number"},
    "decimal": {"type": "number"},
    "string": {"type": "string"},
    "char": {"type": "string"},
    "varchar": {"type": "string"},
    "boolean": {"type": "boolean"},
    "binary": {"type": "string", "contentEncoding": "base64"},
    "date": {"type": "string", "format": "date"},
    "timestamp": {"type": "string", "format": "date-time"},
    "timestamp_ntz": {"type": "string"},
}


@dataclass(frozen=True, slots=True)
class _Type:
    """A parsed type: its base with arguments, such as ``decimal(10,2)``, and what it contains.

    ``fields`` are name and type of a struct's fields, or ``("", type)`` of elements, key and value.
    """

    text: str
    base: str
    arguments: tuple[str, ...] = ()
    fields: tuple[tuple[str, _Type], ...] = ()


def to_avro(schema: Schema, name: str) -> str:
    """Return an Avro schema, a record with nullable fields, as indented JSON.

    Raises:
        SchemaError: a column has a name or a type that Avro does not have.
    """
    return _json(_Avro().record(name, _read(schema)))


def to_protobuf(schema: Schema, name: str) -> str:
    """Return a message of Protocol Buffers, version 3; fields have the numbers of their columns.

    Raises:
        SchemaError: a column has a name or a type that Protocol Buffers do not have.
    """
    message = "\n".join(_Protobuf().message(name, _read(schema)))
    imports = 'import "google/protobuf/timestamp.proto";\n\n' if ".Timestamp " in message else ""
    return f'syntax = "proto3";\n\n{imports}{message}\n'


def to_json_schema(schema: Schema, name: str) -> str:
    """Return a JSON Schema of a row as Spark's ``to_json`` writes it, as indented JSON.

    Raises:
        SchemaError: a column has a type that JSON does not have.
    """
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name}
    return _json({**dialect, **_json_object(_read(schema))})


def json_schema(schema: Schema, comments: Mapping[str, str]) -> dict[str, Any]:
    """Return a JSON Schema of a row with the comments of its columns as descriptions.

    A column with a type that JSON does not have may have any value; its description has the type.
    """
    columns = {}
    for name, kind in _read(schema):
        comment = comments.get(name, "")
        try:
            written = _json_type(kind)
        except SchemaError:
            written, comment = {}, f"{comment} (type {kind.text})".strip()
        columns[name] = {**written, **({"description": comment} if comment else {})}
    return {"type": "object", "properties": columns}


Fields: TypeAlias = Iterable[tuple[str, _Type]]


class _Avro:
    """Writes records; each has a name of its own, made of the names that lead to it."""

    def record(self, name: str, fields: Fields) -> dict[str, Any]:
        written = [
            {
                "name": _plain(field, "Avro"),
                "type": self._nullable(kind, f"{name}_{field}"),
                "default": None,
            }
            for field, kind in fields
        ]
        return {"type": "record", "name": _plain(name, "Avro"), "fields": written}

    def _nullable(self, kind: _Type, path: str) -> list[Any]:
        return ["null", self._type(kind, path)]

    def _type(self, kind: _Type, path: str) -> Any:
        inside = [one for _, one in kind.fields]
        match kind.base:
            case "bigint":
                return "long"
            case base if base in _INTEGERS:
                return "int"
            case base if base in _AVRO_SIMPLE:
                return _AVRO_SIMPLE[base]
            case base if base in _AVRO_LOGICAL:
                physical, logical = _AVRO_LOGICAL[base]
                return {"type": physical, "logicalType": logical}
            case "decimal":
                precision, scale = map(int, kind.arguments)
                sizes = {"precision": precision, "scale": scale}
                return {"type": "bytes", "logicalType": "decimal", **sizes}
            case "array":
                return {"type": "array", "items": self._nullable(inside[0], path)}
            case "map" if inside[0].base == "string":
                return {"type": "map", "values": self._nullable(inside[1], path)}
            case "struct":
                return self.record(path, kind.fields)
        raise _unknown(kind, "Avro")


class _Protobuf:
    def message(self, name: str, fields: Fields) -> list[str]:
        lines = [f"message {_plain(name, 'Protocol Buffers')} {{"]
        for number, (field, kind) in enumerate(fields, start=1):
            plain = _plain(field, "Protocol Buffers")
            kind_text, nested = self._field(kind, plain)
            lines += [f"  {line}" for line in nested]
            lines.append(f"  {kind_text} {plain} = {number};")
        return [*lines, "}"]

    def _field(self, kind: _Type, field: str) -> tuple[str, list[str]]:
        """Return the type with its label, and the lines of a message that it needs."""
        inside = [one for _, one in kind.fields]
        if kind.base == "array":
            text, nested = self._single(inside[0], field)
            return f"repeated {text}", nested
        if kind.base == "map":
            key, value = inside
            if key.base not in _PROTOBUF_SCALARS or key.base in _NO_PROTOBUF_KEYS:
                raise _unknown(kind, "Protocol Buffers")
            text, nested = self._single(value, field)
            return f"map<{_PROTOBUF_SCALARS[key.base]}, {text}>", nested
        text, nested = self._single(kind, field)
        return f"optional {text}", nested

    def _single(self, kind: _Type, field: str) -> tuple[str, list[str]]:
        if kind.base == "struct":
            name = "".join(part.capitalize() for part in field.split("_")) or "Value"
            return name, self.message(name, kind.fields)
        if kind.base not in _PROTOBUF_SCALARS:
            raise _unknown(kind, "Protocol Buffers")
        return _PROTOBUF_SCALARS[kind.base], []


def _json_object(fields: Fields) -> dict[str, Any]:
    return {"type": "object", "properties": {name: _json_type(kind) for name, kind in fields}}


def _json_type(kind: _Type) -> dict[str, Any]:
    """Return the schema of a value, which may be null."""
    written = _json_value(kind)
    return {**written, "type": [written["type"], "null"]}


def _json_value(kind: _Type) -> dict[str, Any]:
    inside = [one for _, one in kind.fields]
    match kind.base:
        case base if base in _INTEGERS:
            half = 1 << _INTEGERS[base] - 1
            return {"type": "integer", "minimum": -half, "maximum": half - 1}
        case base if base in _JSON_SIMPLE:
            return _JSON_SIMPLE[base]
        case "array":
            return {"type": "array", "items": _json_type(inside[0])}
        case "map" if inside[0].base == "string":
            return {"type": "object", "additionalProperties": _json_type(inside[1])}
        case "struct":
            return _json_object(kind.fields)
    raise _unknown(kind, "JSON")


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _plain(name: str, language: str) -> str:
    if not _NAME.match(name):
        raise SchemaError(f"`{name}` is no name in {language}: rename the column")
    return name


def _unknown(kind: _Type, language: str) -> SchemaError:
    return SchemaError(f"{language} has no type {kind.text}: leave the column out, or cast it")


def _read(schema: Schema) -> list[tuple[str, _Type]]:
    return [(column.name, _TypeReader(column.type).read()) for column in schema]


class _TypeReader:
    """Parser of a canonical type text, as `parse_ddl` returns it."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._parts = [match.group(1) or match.group() for match in _PART.finditer(text)]
        self._at = 0

    def read(self) -> _Type:
        """Return the type that begins at the current place."""
        begin, base = self._at, self._take()
        arguments: tuple[str, ...] = ()
        fields: tuple[tuple[str, _Type], ...] = ()
        while self._peek() not in "<>(),":  # a collation, or the units of an interval
            self._take()
        if self._peek() == "(":
            arguments = tuple(self._list(")", self._take))
        elif self._peek() == "<":
            fields = tuple(self._list(">", self._field if base == "struct" else self._element))
        return _Type("".join(self._parts[begin : self._at]), base, arguments, fields)

    def _field(self) -> tuple[str, _Type]:
        name = self._take().replace("``", "`")
        self._take()  # the colon
        return name, self.read()

    def _element(self) -> tuple[str, _Type]:
        return "", self.read()

    def _list(self, end: str, item: Callable[[], Any]) -> list[Any]:
        self._take()  # the opening mark
        items = []
        while self._peek() != end:
            items.append(item())
            if self._peek() == ",":
                self._take()
        self._take()
        return items

    def _peek(self) -> str:
        return self._parts[self._at] if self._at < len(self._parts) else ""

    def _take(self) -> str:
        self._at += 1
        return self._parts[self._at - 1]
