"""Properties of an export, in the form in which they are stored and compared.

A property is a boolean, a number, a string, or a list of one of these. Numbers do not distinguish
``5`` from ``5.0``, as Kubernetes cannot: an integral number within int64 is an ``int``, any other
finite one a ``float``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TypeAlias

from streambroker_core.errors import PropertyError

Scalar: TypeAlias = "bool | int | float | str"
Value: TypeAlias = "bool | int | float | str | list[bool] | list[int | float] | list[str]"

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1
MAX_TEXT = 1024
"""Maximum characters of a text; Kubernetes limits characters, not bytes."""
MAX_ELEMENTS = 256
RESERVED = frozenset({"true", "false", "in"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def normalise(properties: Mapping[str, object]) -> dict[str, Value]:
    """Return properties in the canonical form that is stored, matched and shown.

    A property that is None is left out. Tuples become lists.

    Raises:
        PropertyError: a name that no expression could contain; a number that is not finite, or
            integral and outside int64; text that is not Unicode; a mixed or nested list, or one
            with None; any other type.

    >>> normalise({"a": 5.0, "b": [1, 2.5], "c": None})
    {'a': 5, 'b': [1, 2.5]}
    """
    result: dict[str, Value] = {}
    for name, value in properties.items():
        _check_name(name)
        if value is None:
            continue
        if isinstance(value, list | tuple):
            result[name] = _list(name, value)
        else:
            result[name] = _scalar(name, value)
    return result


def value_texts(value: Value | None) -> list[str]:
    """Return the elements of a value as texts, as they are written in expressions."""
    if value is None:
        return []
    elements = value if isinstance(value, tuple | list) else (value,)
    return [str(one).lower() if isinstance(one, bool) else str(one) for one in elements]


def oversized(properties: Mapping[str, Value]) -> PropertyError | None:
    """Return an error if normalised properties are too large for a resource, or None."""
    for name, value in properties.items():
        if isinstance(value, list) and len(value) > MAX_ELEMENTS:
            return PropertyError(
                name, f"the list has {len(value)} elements, the limit is {MAX_ELEMENTS}"
            )
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and len(text) > MAX_TEXT:
                return PropertyError(
                    name, f"a text has {len(text)} characters, the limit is {MAX_TEXT}"
                )
    return None


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not _NAME.match(name):
        raise PropertyError(
            str(name),
            "a name is a letter or `_`, followed by letters, digits and `_`",
        )
    if name in RESERVED:
        raise PropertyError(name, "`true`, `false` and `in` are words of the language, not names")


def _list(name: str, items: list[object] | tuple[object, ...]) -> Value:
    values: list[Scalar] = []
    for item in items:
        if item is None:
            raise PropertyError(name, "a list cannot contain null; leave the element out")
        if isinstance(item, list | tuple):
            raise PropertyError(name, "a list cannot contain lists")
        values.append(_scalar(name, item))
    kinds = {_kind(value) for value in values}
    if len(kinds) > 1:
        raise PropertyError(name, f"a list cannot mix {' and '.join(sorted(kinds))}")
    return values  # type: ignore[return-value]  # one kind, as just checked


def _kind(value: Scalar) -> str:
    if isinstance(value, bool):
        return "booleans"
    return "strings" if isinstance(value, str) else "numbers"


def _scalar(name: str, value: object) -> Scalar:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise PropertyError(name, "the text contains half of a surrogate pair") from error
        return str(value)
    if isinstance(value, int | float):
        return _number(name, value)
    what = "a mapping" if isinstance(value, Mapping) else type(value).__name__
    raise PropertyError(name, f"{what} is not a boolean, a number, a string or a list of these")


def _number(name: str, value: float) -> int | float:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise PropertyError(name, f"{value} is not a finite number")
        if not value.is_integer():
            return float(value)
    integer = int(value)
    if not INT64_MIN <= integer <= INT64_MAX:
        raise PropertyError(name, f"{integer} is outside the range of int64")
    return integer
