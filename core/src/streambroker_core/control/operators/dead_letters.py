"""Dead letters: rows and control tuples that an operator refuses, as rows of one form."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import pyarrow as pa

DEAD_LETTERS: Final = "dead_letters"
"""Output of dead letters."""
MAX_TEXT: Final = 64 << 10
"""Bytes of a row or key as JSON, above which it is cut."""
MAX_MESSAGE: Final = 4 << 10
"""Bytes of a message, above which it is cut."""
DEAD_LETTER_SCHEMA: Final = pa.schema(
    [
        ("source", pa.string()),
        ("kind", pa.string()),
        ("code", pa.string()),
        ("message", pa.string()),
        ("rule", pa.string()),
        ("version", pa.int64()),
        ("key", pa.string()),
        ("row", pa.string()),
        ("cut", pa.bool_()),
        ("event_time", pa.timestamp("us", "UTC")),
        ("window", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
"""Columns of dead letters, as the fields of `DeadLetter`."""
_INFINITE: Final = {inf: "Infinity", -inf: "-Infinity"}
Kind: TypeAlias = Literal["rule_error", "side_row", "main_row", "control"]


class DeadLetter(NamedTuple):
    """What an operator refused, and why.

    Attributes:
        source: operator and input, as ``rated/rates``.
        kind: a row on which a rule failed, a row of a side input, a main row that lacks a value of
            a side input, or a control tuple.
        code: code of the error.
        message: the reason.
        rule, version: the rule that failed.
        key: JSON list: key of the rule, or the key to which a control tuple is addressed.
        row: JSON of the row or control tuple; of a failed function, the events of the match.
        cut: ``row`` or ``key`` was too long, and is no JSON: it ends with its length in bytes.
        event_time: in microseconds.
        window: number of the window, which is the batch of the query.
        at: pinned clock of the window in microseconds.
    """

    source: str
    kind: Kind
    code: str
    message: str
    rule: str | None
    version: int | None
    key: str | None
    row: str | None
    cut: bool
    event_time: int | None
    window: int
    at: int


class DeadLetters:
    """Collects the dead letters of one window of one bucket.

    Attributes:
        letters: in the order in which they were added.
    """

    def __init__(self, operator: str, window: int, at: int) -> None:
        self._operator, self._window, self._at = operator, window, at
        self.letters: list[DeadLetter] = []

    def add(
        self,
        kind: Kind,
        port: str,
        code: str,
        message: str,
        *,
        row: str | None,
        key: Sequence[Any] | None = None,
        event_time: int | None = None,
        rule: tuple[str | None, int | None] = (None, None),
    ) -> None:
        """Add a dead letter; ``row`` is JSON, ``rule`` the id and version of a rule."""
        kept_row, kept_key = _cut(row), _cut(None if key is None else to_json(key))
        self.letters.append(
            DeadLetter(
                source=f"{self._operator}/{port}",
                kind=kind,
                code=code,
                message=_cut(message, MAX_MESSAGE)[0] or "",
                rule=rule[0],
                version=rule[1],
                key=kept_key[0],
                row=kept_row[0],
                cut=kept_row[1] or kept_key[1],
                event_time=event_time,
                window=self._window,
                at=self._at,
            )
        )


def to_json(row: Any) -> str:
    """Return a row as JSON text, as `from_json` of Spark reads it; see `_json_value`."""
    return to_utf8(json.dumps(_json_value(row), ensure_ascii=False))


def to_utf8(text: str) -> str:
    """Return a text without halves of surrogate pairs, which no column can hold."""
    return text.encode(errors="replace").decode()


def _json_value(value: Any) -> Any:
    """Return bytes as base64, a map as an object, and other values that JSON lacks as text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if isfinite(value) else _INFINITE.get(value, "NaN")
        case bytes():
            return b64encode(value).decode()
        case Mapping():
            return {str(name): _json_value(one) for name, one in value.items()}
        case [tuple(), *_] if isinstance(value, list):  # entries of an Arrow map
            return {str(name): _json_value(one) for name, one in value}
        case list() | tuple():
            return [_json_value(one) for one in value]
    return str(value)


def _cut(text: str | None, limit: int = MAX_TEXT) -> tuple[str | None, bool]:
    """Return a text of a limited size with a mark if it was cut, and whether it was."""
    if text is None:
        return None, False
    text = to_utf8(text)
    data = text.encode()
    if len(data) <= limit:
        return text, False
    return f"{data[:limit].decode(errors='ignore')}… (cut from {len(data):,} bytes)", True
