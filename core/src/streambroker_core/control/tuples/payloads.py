"""Typed payloads: dataclasses to JSON and back, checked both ways.

- Fields hold texts, numbers, booleans, bytes, times with a zone, lists, tuples, mappings with text
  keys, other dataclasses, or ``X | None``. ``Any`` is any JSON value.
- The type's name is the class's ``control_type`` or, without, the name of the class.
- ``mergeable = True`` declares that of several tuples of one emitter only the last one counts.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Union, get_args, get_origin, get_type_hints

from streambroker_core.control.tuples import ControlError, ControlTuple
from streambroker_core.wire.encoding.canonical import canonical
from streambroker_core.wire.encoding.fields import json_type

_DEPTH = 32
_MAX_CACHED = 10_000
"""Decoded payloads that a receiver caches, as many as one window may have control tuples."""


def type_name(payload: type) -> str:
    """Return the type name of tuples with this payload."""
    return str(getattr(payload, "control_type", payload.__name__))


def encode(payload: object) -> tuple[str, str]:
    """Return type name and canonical JSON of a payload.

    Raises:
        ControlError: it is not a dataclass, or a field's value cannot be written.
    """
    kind = type(payload)
    if not dataclasses.is_dataclass(payload) or isinstance(payload, type):
        raise ControlError(
            f"a control tuple's payload has to be a dataclass, not {kind.__module__}."
            f"{kind.__qualname__}: define one, with the fields that receivers need."
        )
    value = _write(payload, type_name(kind), 0)
    return type_name(kind), canonical(value).decode()


class Payloads:
    """The payload types of a receiver, by name."""

    def __init__(self, payload_types: Iterable[type]) -> None:
        """Register types.

        Raises:
            ControlError: one is not a dataclass, or two have one name.
        """
        self._known: dict[str, type] = {}
        self._hints: dict[type, Mapping[str, Any]] = {}
        self._last: dict[tuple[str, str], Any] = {}
        for payload_type in payload_types:
            if not dataclasses.is_dataclass(payload_type):
                raise ControlError(f"payload type {payload_type.__qualname__} is not a dataclass.")
            if self._known.setdefault(type_name(payload_type), payload_type) is not payload_type:
                raise ControlError(
                    f"two payload types have the name {type_name(payload_type)}: give one of them"
                    " another control_type."
                )
            with suppress(ControlError):  # a type of its fields may be defined further down
                _add_hints(payload_type, self._hints)

    def __getstate__(self) -> dict[str, Any]:
        """Resolve all types before pickling, because names of ``__main__`` mean nothing elsewhere.

        Raises:
            ControlError: a payload type names a type that cannot be found.
        """
        for payload_type in self._known.values():
            _add_hints(payload_type, self._hints)
        return {"_known": self._known, "_hints": self._hints, "_last": {}}

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def decode(self, control: ControlTuple) -> Any:
        """Return a control tuple's payload as an object of its type.

        Equal immutable payloads may be one object, because each bucket receives every tuple.

        Raises:
            ControlError: the type is not known here, or the payload does not have its fields.
        """
        payload_type = self._known.get(control.type)
        if payload_type is None:
            names = ", ".join(sorted(self._known)) or "none"
            raise ControlError(
                f"control tuple {control.id} has type {control.type}, which is not known to this"
                f" receiver; it knows {names}. Name the type there, or pass the tuple on."
            )
        _add_hints(payload_type, self._hints)
        if not _is_constant(payload_type, self._hints[payload_type]):
            return _PayloadReader(self._hints).read(control.payload, payload_type, control.type)
        key = (control.type, control.text)
        if key not in self._last:
            if len(self._last) >= _MAX_CACHED:
                self._last.clear()
            self._last[key] = _PayloadReader(self._hints).read(
                control.payload, payload_type, control.type
            )
        return self._last[key]


def list_mergeable(payload_types: Iterable[type]) -> frozenset[str]:
    """Return the names of the mergeable types."""
    return frozenset(type_name(one) for one in payload_types if getattr(one, "mergeable", False))


def _write(value: object, path: str, depth: int) -> Any:
    if depth > _DEPTH:
        raise ControlError(f"{path} is nested deeper than {_DEPTH}: does it contain itself?")
    if value is None or isinstance(value, bool | str):
        return _check_text(value, path)
    if isinstance(value, int | float):
        return _check_number(value, path)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ControlError(f"{path} is a time without a zone: give it tzinfo=timezone.utc.")
        return value.isoformat()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            one.name: _write(getattr(value, one.name), f"{path}.{one.name}", depth + 1)
            for one in dataclasses.fields(value)
        }
    return _write_collection(value, path, depth)


def _write_collection(value: object, path: str, depth: int) -> Any:
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ControlError(f"{path} has the key {key!r}, which is not a text.")
        return {key: _write(one, f"{path}.{key}", depth + 1) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_write(one, f"{path}[{at}]", depth + 1) for at, one in enumerate(value)]
    kind = type(value)
    raise ControlError(
        f"{path} holds a {kind.__module__}.{kind.__qualname__}, which cannot be written as JSON:"
        " use texts, numbers, booleans, bytes, times, lists, mappings or dataclasses."
    )


def _check_text(value: str | bool | None, path: str) -> str | bool | None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ControlError(f"{path} holds half of a surrogate pair.") from error
    return value


def _check_number(value: float, path: str) -> float:
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise ControlError(f"{path} is {value}, which is not an int64.")
    elif value != value or value in (float("inf"), float("-inf")):
        raise ControlError(f"{path} is {value}, which JSON cannot hold; use null or a text.")
    return value


def _is_constant(payload_type: type, hints: Mapping[str, Any]) -> bool:
    """Return whether objects of a payload type and their contents are immutable."""
    frozen: bool = payload_type.__dataclass_params__.frozen  # type: ignore[attr-defined]
    return frozen and all(_is_scalar(hints[one.name]) for one in dataclasses.fields(payload_type))


def _is_scalar(hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType):
        return all(one is type(None) or one in _READERS for one in get_args(hint))
    return hint in _READERS


def _add_hints(payload_type: type, hints: dict[type, Mapping[str, Any]]) -> None:
    """Add the field types of a payload type, and of the dataclasses that these name.

    Raises:
        ControlError: a type cannot be found.
    """
    if payload_type in hints:
        return
    try:
        field_types = get_type_hints(payload_type)
    except NameError as error:
        raise ControlError(
            f"payload type {type_name(payload_type)} names a type that cannot be found: {error}."
            f" Define"
            " the types of its fields in a module, not in a function."
        ) from error
    hints[payload_type] = field_types
    try:
        for hint in field_types.values():
            for nested in _iter_dataclasses(hint):
                _add_hints(nested, hints)
    except ControlError:
        del hints[payload_type]
        raise


def _iter_dataclasses(hint: Any) -> Iterator[type]:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        yield hint
    for one in get_args(hint):
        yield from _iter_dataclasses(one)


@dataclasses.dataclass(frozen=True, slots=True)
class _PayloadReader:
    """Reads JSON values as objects; ``hints`` are the field types of each dataclass."""

    hints: Mapping[type, Mapping[str, Any]]

    def read(self, value: Any, hint: Any, path: str) -> Any:
        if hint is Any:
            return value
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            return self._read_record(value, hint, path)
        origin, inner = get_origin(hint), get_args(hint)
        if origin in (Union, types.UnionType):
            return self._read_union(value, inner, path)
        if origin in (list, tuple, Sequence) or hint in (list, tuple):
            return self._read_list(value, origin or hint, inner, path)
        if origin in (dict, Mapping) or hint is dict:
            if not isinstance(value, Mapping):
                raise ControlError(f"{path} has to be an object, not {json_type(value)}.")
            item_hint = inner[1] if inner else Any
            return {key: self.read(one, item_hint, f"{path}.{key}") for key, one in value.items()}
        reader = _READERS.get(hint)
        if reader is None:
            raise ControlError(f"{path} has a type that payloads cannot have: {hint}.")
        return reader(value, path)

    def _read_record(self, value: Any, payload_type: type, path: str) -> Any:
        if not isinstance(value, Mapping):
            raise ControlError(f"{path} has to be an object, not {json_type(value)}.")
        hints, arguments = self.hints[payload_type], {}
        fields = {one.name: one for one in dataclasses.fields(payload_type)}
        for name in value:
            if name not in fields:
                raise ControlError(
                    f"{path} has the field {name}, which its type here does not have."
                )
        for name, one in fields.items():
            if name in value:
                arguments[name] = self.read(value[name], hints[name], f"{path}.{name}")
            elif one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING:
                raise ControlError(f"{path}.{name} is missing.")
        try:
            return payload_type(**arguments)
        except (TypeError, ValueError) as error:
            raise ControlError(f"{path} is rejected by its type: {error}.") from error

    def _read_union(self, value: Any, hints: Sequence[Any], path: str) -> Any:
        if value is None and type(None) in hints:
            return None
        problem = ControlError(f"{path} may not be null.")
        for hint in hints:
            if hint is not type(None):
                try:
                    return self.read(value, hint, path)
                except ControlError as error:
                    problem = error
        raise problem

    def _read_list(self, value: Any, into: Any, inner: Sequence[Any], path: str) -> Any:
        if not isinstance(value, list):
            raise ControlError(f"{path} has to be a list, not {json_type(value)}.")
        if into is tuple and inner and inner[-1] is not Ellipsis:
            if len(inner) != len(value):
                raise ControlError(f"{path} has {len(value)} entries, not {len(inner)}.")
            hints = list(inner)
        else:
            hints = [inner[0] if inner else Any] * len(value)
        items = [
            self.read(one, hint, f"{path}[{at}]")
            for at, (one, hint) in enumerate(zip(value, hints, strict=True))
        ]
        return tuple(items) if into is tuple else items


def _make_reader(kind: type) -> Callable[[Any, str], Any]:
    def read(value: Any, path: str) -> Any:
        if type(value) is not kind:
            raise ControlError(f"{path} has to be {_NAMES[kind]}, not {json_type(value)}.")
        return value

    return read


def _read_float(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ControlError(f"{path} has to be a number, not {json_type(value)}.")
    return float(value)


def _read_bytes(value: Any, path: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise ControlError(f"{path} has to be bytes in base64: {error}.") from error


def _read_time(value: Any, path: str) -> datetime:
    try:
        return datetime.fromisoformat(value.replace("Z", "+00:00"))
    except (AttributeError, ValueError) as error:
        raise ControlError(f"{path} has to be a time as ISO 8601 writes it: {error}.") from error


_NAMES = {bool: "true or false", int: "an integer", str: "a text"}
_READERS: Mapping[Any, Callable[[Any, str], Any]] = {
    bool: _make_reader(bool),
    int: _make_reader(int),
    float: _read_float,
    str: _make_reader(str),
    bytes: _read_bytes,
    datetime: _read_time,
}
