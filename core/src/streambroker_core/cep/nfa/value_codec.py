"""Binary codec for row values: compact and deterministic.

Supported kinds: null, boolean, integer, float, text, bytes, list, mapping, decimal, date and
timestamp. Integers have any size and a variable length. A timestamp with a zone is stored in UTC.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from streambroker_core.control.operators.operator import StateError

_FLOAT = struct.Struct("<d")
_NULL, _FALSE, _TRUE, _INT, _REAL, _TEXT, _BYTES, _LIST, _MAP, _DECIMAL, _DATE, _TIME, _UTC = range(
    13
)
_BYTE = [bytes([number]) for number in range(128)]
INTEGER_TAG = _BYTE[_INT]
"""Tag byte of an integer value."""
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - timestamps without a zone have none after decoding
_MICROSECOND = timedelta(microseconds=1)


def encode_integer(value: int, prefix: bytes = b"") -> bytes:
    """Encode an integer after a prefix: 7 bits per byte, low bits first, sign in the lowest bit."""
    value = value << 1 if value >= 0 else (-value << 1) - 1
    if value < 128:
        return prefix + _BYTE[value]
    out = bytearray(prefix)
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


class ValueWriter:
    """Encodes values into bytes, after a prefix."""

    def __init__(self, prefix: bytes = b"") -> None:
        self._out = bytearray(prefix)

    def to_bytes(self) -> bytes:
        """Return all bytes written so far."""
        return bytes(self._out)

    def write_integer(self, value: int) -> None:
        """Write an integer with `encode_integer`."""
        self._out += encode_integer(value)

    def write_text(self, value: str) -> None:
        """Write a text as UTF-8 with its length."""
        self.write_bytes(value.encode("utf-8", "surrogatepass"))

    def write_bytes(self, value: bytes) -> None:
        """Write the length and the bytes."""
        self.write_integer(len(value))
        self._out += value

    def write_value(self, value: Any) -> None:  # noqa: C901 - one branch for each kind
        """Write a value of a row; raise StateError if its kind is not supported."""
        match value:
            case None:
                self._out.append(_NULL)
            case bool():
                self._out.append(_TRUE if value else _FALSE)
            case int():
                self._out.append(_INT)
                self.write_integer(value)
            case float():
                self._out.append(_REAL)
                self._out += _FLOAT.pack(value)
            case str():
                self._out.append(_TEXT)
                self.write_text(value)
            case bytes() | bytearray() | memoryview():
                self._out.append(_BYTES)
                self.write_bytes(bytes(value))
            case list() | tuple():
                self._out.append(_LIST)
                self.write_integer(len(value))
                for item in value:
                    self.write_value(item)
            case Mapping():
                self._out.append(_MAP)
                self.write_integer(len(value))
                for name, item in value.items():
                    self.write_text(str(name))
                    self.write_value(item)
            case _:
                self._write_rare(value)

    def _write_rare(self, value: Any) -> None:
        if isinstance(value, Decimal):
            self._out.append(_DECIMAL)
            self.write_text(str(value))
        elif isinstance(value, datetime):
            self._out.append(_TIME if value.tzinfo is None else _UTC)
            plain = value if value.tzinfo is None else _in_utc(value)
            self.write_integer((plain - _EPOCH) // _MICROSECOND)
        elif isinstance(value, date):
            self._out.append(_DATE)
            self.write_integer(value.toordinal())
        else:
            raise StateError(
                f"a {type(value).__name__} cannot be stored in state: leave its column out of"
                " what the rules see."
            )


def _in_utc(value: datetime) -> datetime:
    return value.astimezone(UTC).replace(tzinfo=None)


class ValueReader:
    """Decodes the bytes of a `ValueWriter`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def read_integer(self) -> int:
        """Read an integer."""
        value = shift = 0
        while True:
            byte = self._read_byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return -(value + 1 >> 1) if value & 1 else value >> 1
            shift += 7

    def read_text(self) -> str:
        """Read a text."""
        try:
            return self.read_bytes().decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise StateError(f"state of patterns is damaged: {error}.") from error

    def read_bytes(self) -> bytes:
        """Read bytes with their length."""
        size = self.read_integer()
        self._at += size
        if size < 0 or self._at > len(self._data):
            raise StateError("state of patterns is damaged: it ends within a value.")
        return self._data[self._at - size : self._at]

    def read_value(self) -> Any:
        """Read a value of a row; raise StateError if the bytes are damaged."""
        try:
            return self._decode_value()
        except (struct.error, ValueError, ArithmeticError, RecursionError) as error:
            raise StateError(f"state of patterns is damaged: {error}.") from error

    def _decode_value(self) -> Any:  # noqa: C901 - one branch for each kind
        kind = self._read_byte()
        match kind:
            case 0:
                return None
            case 1 | 2:
                return kind == _TRUE
            case 3:
                return self.read_integer()
            case 4:
                self._at += 8
                return _FLOAT.unpack_from(self._data, self._at - 8)[0]
            case 5:
                return self.read_text()
            case 6:
                return self.read_bytes()
            case 7:
                return [self.read_value() for _ in range(self.read_integer())]
            case 8:
                return {self.read_text(): self.read_value() for _ in range(self.read_integer())}
            case 9:
                return Decimal(self.read_text())
            case 10:
                return date.fromordinal(self.read_integer())
            case 11 | 12:
                time = _EPOCH + self.read_integer() * _MICROSECOND
                return time if kind == _TIME else time.replace(tzinfo=UTC)
            case _:
                raise StateError(
                    f"state of patterns is damaged: {kind} is an unknown kind of value."
                )

    def _read_byte(self) -> int:
        if self._at >= len(self._data):
            raise StateError("state of patterns is damaged: it ends within a value.")
        self._at += 1
        return self._data[self._at - 1]
