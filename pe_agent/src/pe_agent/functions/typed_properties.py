"""Properties in the forms that programs use: a mapping, a dataclass, or typed triples."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from streambroker_core.errors import PropertyError
from streambroker_core.model.properties import Value, normalise

_INT = re.compile(r"\s*([+-]?[0-9]+)l?\s*")
_FLOAT = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")
_LIST = re.compile(r"list<(\w+)>")


def as_properties(properties: object) -> dict[str, Value]:
    """Return properties in the one form that is stored.

    Args:
        properties: a mapping of names to values, an instance of a dataclass or a named tuple, or
            (name, value, type) triples with the types int64, float64, rstring, boolean and
            list<…> of them; a value is its text, or a value of that type.

    Raises:
        PropertyError: a name, a value or a type is wrong, or a name occurs twice.

    >>> as_properties([("level", "5", "int64"), ("tickers", '["IBM"]', "list<rstring>")])
    {'level': 5, 'tickers': ['IBM']}
    """
    if isinstance(properties, Mapping):
        return normalise(properties)
    if dataclasses.is_dataclass(properties) and not isinstance(properties, type):
        return normalise(
            {f.name: getattr(properties, f.name) for f in dataclasses.fields(properties)}
        )
    if isinstance(properties, tuple) and hasattr(properties, "_asdict"):
        return normalise(properties._asdict())
    if isinstance(properties, Iterable) and not isinstance(properties, str | bytes):
        return normalise(_parse_triples(properties))
    raise PropertyError(
        "",
        f"{type(properties).__name__} is not a mapping, a dataclass or (name, value, type) triples",
    )


def _parse_triples(triples: Iterable[object]) -> dict[str, Value]:
    parsed: dict[str, Value] = {}
    for triple in triples:
        if not isinstance(triple, tuple | list) or len(triple) != 3:
            raise PropertyError("", f"{triple!r} is not a (name, value, type) triple")
        name, value, type_ = triple
        if not isinstance(name, str):
            raise PropertyError(str(name), "a name is a text")
        if name in parsed:
            raise PropertyError(name, "the name occurs twice")
        parsed[name] = _parse_value(name, value, type_)
    return parsed


def _parse_value(name: str, value: object, type_: object) -> Any:
    listed = _LIST.fullmatch(type_) if isinstance(type_, str) else None
    read = _PARSERS.get(listed[1] if listed else str(type_))
    if read is None:
        raise PropertyError(
            name,
            f"the type {type_!r} is not one of {', '.join(_PARSERS)}, or list<…> of one of them",
        )
    try:
        return [read(item) for item in _parse_list(value)] if listed else read(value)
    except ValueError as error:
        raise PropertyError(name, f"{value!r} is not of type {type_}") from error


def _parse_list(value: object) -> list[Any]:
    items = json.loads(value, parse_constant=_reject_constant) if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        raise ValueError(value)
    return list(items)


def _reject_constant(text: str) -> NoReturn:
    raise ValueError(text)


def _int(value: object) -> int:
    if isinstance(value, str) and (match := _INT.fullmatch(value)):
        return int(match[1])
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(value)


def _float(value: object) -> float:
    if isinstance(value, str) and _FLOAT.fullmatch(value):
        return float(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise ValueError(value)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError(value)


def _boolean(value: object) -> bool:
    parsed = {"true": True, "false": False}.get(value) if isinstance(value, str) else value
    if isinstance(parsed, bool):
        return parsed
    raise ValueError(value)


_PARSERS: Mapping[str, Callable[[object], Value]] = {
    "int64": _int,
    "float64": _float,
    "rstring": _text,
    "boolean": _boolean,
}
