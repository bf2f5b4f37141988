"""Values as bytes: small, exact, the same for equal values.

Kinds that a row of a stream can have: null, boolean, integer, float, text, bytes, list, mapping,
decimal, date, timestamp. Integers are of any size and take as many bytes as they need.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from streambroker_core.control.operators.operator import StateError

_FLOAT = struct.Struct("<d")
_NULL, _FALSE, _TRUE, _INT, _REAL, _TEXT, _BYTES, _LIST, _MAP, _DECIMAL, _DATE, _TIME, _UTC = range(
    13
)
_BYTE = [bytes([number]) for number in range(128)]
KIND_OF_INTEGER = _BYTE[_INT]
"""Stands before an integer that is a value."""
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - timestamps without a zone stay so
_MICROSECOND = timedelta(microseconds=1)


def integer(value: int, begin: bytes = b"") -> bytes:
    """Return an integer as bytes: seven bits a byte, the sign in the lowest.

    Args:
        value: the integer.
        begin: what stands before it.
    """
    value = value << 1 if value >= 0 else (-value << 1) - 1
    if value < 128:
        return begin + _BYTE[value]
    out = bytearray(begin)
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


class Writer:
    """Collects bytes.

    Args:
        begin: what stands before them.
    """

    def __init__(self, begin: bytes = b"") -> None:
        self._out = bytearray(begin)

    def done(self) -> bytes:
        """Return all that was written."""
        return bytes(self._out)

    def number(self, value: int) -> None:
        """Write an integer, as `integer` does."""
        self._out += integer(value)

    def text(self, value: str) -> None:
        """Write a text."""
        self.raw(value.encode("utf-8", "surrogatepass"))

    def raw(self, value: bytes) -> None:
        """Write bytes, with their number."""
        self.number(len(value))
        self._out += value

    def value(self, value: Any) -> None:  # noqa: C901 - one branch for each kind
        """Write a value of a row.

        Raises:
            StateError: it is of no kind that can be kept.
        """
        match value:
            case None:
                self._out.append(_NULL)
            case bool():
                self._out.append(_TRUE if value else _FALSE)
            case int():
                self._out.append(_INT)
                self.number(value)
            case float():
                self._out.append(_REAL)
                self._out += _FLOAT.pack(value)
            case str():
                self._out.append(_TEXT)
                self.text(value)
            case bytes() | bytearray() | memoryview():
                self._out.append(_BYTES)
                self.raw(bytes(value))
            case list() | tuple():
                self._out.append(_LIST)
                self.number(len(value))
                for item in value:
                    self.value(item)
            case Mapping():
                self._out.append(_MAP)
                self.number(len(value))
                for name, item in value.items():
                    self.text(str(name))
                    self.value(item)
            case _:
                self._rare(value)

    def _rare(self, value: Any) -> None:
        if isinstance(value, Decimal):
            self._out.append(_DECIMAL)
            self.text(str(value))
        elif isinstance(value, datetime):
            self._out.append(_TIME if value.tzinfo is None else _UTC)
            plain = value if value.tzinfo is None else _in_utc(value)
            self.number((plain - _EPOCH) // _MICROSECOND)
        elif isinstance(value, date):
            self._out.append(_DATE)
            self.number(value.toordinal())
        else:
            raise StateError(
                f"a {type(value).__name__} cannot be kept in state: leave its column out of what"
                " the rules see."
            )


def _in_utc(value: datetime) -> datetime:
    return value.astimezone(timezone.utc).replace(tzinfo=None)


class Reader:
    """Reads what a `Writer` wrote."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self) -> int:
        """Read an integer."""
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return -(value + 1 >> 1) if value & 1 else value >> 1
            shift += 7

    def text(self) -> str:
        """Read a text."""
        try:
            return self.raw().decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise StateError(f"state of patterns is damaged: {error}.") from error

    def raw(self) -> bytes:
        """Read bytes."""
        size = self.number()
        self._at += size
        if size < 0 or self._at > len(self._data):
            raise StateError("state of patterns is damaged: it ends within a value.")
        return self._data[self._at - size : self._at]

    def value(self) -> Any:
        """Read a value of a row.

        Raises:
            StateError: there is none.
        """
        try:
            return self._value()
        except (struct.error, ValueError, ArithmeticError, RecursionError) as error:
            raise StateError(f"state of patterns is damaged: {error}.") from error

    def _value(self) -> Any:  # noqa: C901 - one branch for each kind
        kind = self._byte()
        match kind:
            case 0:
                return None
            case 1 | 2:
                return kind == _TRUE
            case 3:
                return self.number()
            case 4:
                self._at += 8
                return _FLOAT.unpack_from(self._data, self._at - 8)[0]
            case 5:
                return self.text()
            case 6:
                return self.raw()
            case 7:
                return [self.value() for _ in range(self.number())]
            case 8:
                return {self.text(): self.value() for _ in range(self.number())}
            case 9:
                return Decimal(self.text())
            case 10:
                return date.fromordinal(self.number())
            case 11 | 12:
                time = _EPOCH + self.number() * _MICROSECOND
                return time if kind == _TIME else time.replace(tzinfo=timezone.utc)
            case _:
                raise StateError(f"state of patterns is damaged: {kind} is no kind of value.")

    def _byte(self) -> int:
        if self._at >= len(self._data):
            raise StateError("state of patterns is damaged: it ends within a value.")
        self._at += 1
        return self._data[self._at - 1]
