"""Typed payloads: dataclasses to JSON and back, checked both ways.

- Fields hold texts, numbers, booleans, bytes, times with a zone, dates, durations, decimals,
  UUIDs, enums, lists, tuples, sets, mappings with text keys, other dataclasses, or ``X | None``.
  ``Any`` is any JSON value. Numbers of numpy are written as Python's own.
- Objects of any other type need a :class:`Codec` at the operator that writes or reads them.
- The type's name is the class's ``control_type`` or, without, the name of the class.
- ``mergeable = True`` declares that of several tuples of one emitter only the last one counts.
- ``delivery``, an attribute with a :class:`Delivery` or a method, declares when it is delivered.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import enum
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec

from streambroker_core.control.tuples import (
    ControlError,
    ControlTuple,
    Delivery,
    parse_delivery,
)
from streambroker_core.deprecation import warn_changed_delivery
from streambroker_core.wire.encoding.canonical import canonical
from streambroker_core.wire.encoding.fields import json_type

_DEPTH = 32
_MAX_CACHED = 10_000
"""Decoded payloads that a receiver caches, as many as one window may have control tuples."""
_SCALARS = (enum.Enum, Decimal, date, timedelta, UUID)
"""Types whose text form is that of msgspec; ``datetime`` and enums have forms of their own."""


@dataclasses.dataclass(frozen=True, slots=True)
class Codec:
    """Writes and reads objects of a type that payloads do not know.

    Attributes:
        type: the type; objects of its subclasses need codecs of their own.
        encode: returns what a payload may hold: a text, a number, a list, a mapping, ….
        decode: returns the object of what was written.
    """

    type: type
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def codecs_by_type(codecs: Iterable[Codec]) -> dict[type, Codec]:
    """Return codecs by their type; raise ControlError if one is something else."""
    found = list(codecs) if isinstance(codecs, Iterable) else [codecs]
    if not isinstance(codecs, Iterable) or not all(isinstance(one, Codec) for one in found):
        raise ControlError(
            f"codecs is {codecs!r}: it has to be a tuple of Codec(type, encode, decode)."
        )
    return {one.type: one for one in found}


def type_name(payload: type) -> str:
    """Return the type name of tuples with this payload."""
    return str(getattr(payload, "control_type", payload.__name__))


def default_delivery(payload: object, changed_call: str | None = None) -> Delivery:
    """Return the delivery that a payload's type declares; ``END_WINDOW`` if it declares none.

    Args:
        payload: the payload, or a mapping that may have a ``delivery``.
        changed_call: a call whose default was ``BEGIN`` before: it warns if none is declared.

    Raises:
        ControlError: there is no such delivery.
    """
    if isinstance(payload, Mapping):
        declared = payload.get("delivery")
    else:
        declared = getattr(payload, "delivery", None)
        if callable(declared):
            declared = declared()
        elif not isinstance(declared, Delivery):
            declared = None  # a field of this name
    if declared is not None:
        return parse_delivery(declared)
    if changed_call is not None:
        warn_changed_delivery(changed_call)
    return Delivery.END_WINDOW


def encode(payload: object, codecs: Iterable[Codec] = ()) -> tuple[str, str]:
    """Return type name and canonical JSON of a payload.

    Raises:
        ControlError: it is no dataclass and has no codec, or a field's value cannot be written.
    """
    kind, by_type = type(payload), codecs_by_type(codecs)
    is_record = dataclasses.is_dataclass(payload) and not isinstance(payload, type)
    if not is_record and kind not in by_type:
        raise ControlError(
            f"a control tuple's payload has to be a dataclass, not {kind.__module__}."
            f"{kind.__qualname__}: define one, with the fields that receivers need."
        )
    value = _PayloadWriter(by_type).write(payload, type_name(kind), 0)
    return type_name(kind), canonical(value).decode()


def unwrap_scalar(value: Any) -> Any:
    """Return a number of numpy, which is recognised by its attributes, as Python's; else itself."""
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    is_scalar = kind in ("b", "i", "u", "f") and getattr(value, "shape", None) == ()
    return value.item() if is_scalar else value


class Payloads:
    """The payload types of a receiver, by name."""

    def __init__(self, payload_types: Iterable[type], codecs: Iterable[Codec] = ()) -> None:
        """Register types.

        Raises:
            ControlError: one is neither a dataclass nor one with a codec, or two have one name.
        """
        self._codecs = codecs_by_type(codecs)
        self._known: dict[str, type] = {}
        self._hints: dict[type, Mapping[str, Any]] = {}
        self._last: dict[tuple[str, str], Any] = {}
        for payload_type in payload_types:
            if not dataclasses.is_dataclass(payload_type) and payload_type not in self._codecs:
                raise ControlError(
                    f"payload type {payload_type.__qualname__} is not a dataclass: make it one, or"
                    " name a Codec for it in codecs."
                )
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
        return {**vars(self), "_last": {}}

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
        reader = _PayloadReader(self._hints, self._codecs)
        if payload_type in self._codecs:
            return reader.read(control.payload, payload_type, control.type)
        _add_hints(payload_type, self._hints)
        if not _is_constant(payload_type, self._hints[payload_type]):
            return reader.read(control.payload, payload_type, control.type)
        key = (control.type, control.text)
        if key not in self._last:
            if len(self._last) >= _MAX_CACHED:
                self._last.clear()
            self._last[key] = reader.read(control.payload, payload_type, control.type)
        return self._last[key]


def list_mergeable(payload_types: Iterable[type]) -> frozenset[str]:
    """Return the names of the mergeable types."""
    return frozenset(type_name(one) for one in payload_types if getattr(one, "mergeable", False))


@dataclasses.dataclass(frozen=True, slots=True)
class _PayloadWriter:
    """Writes objects as JSON values."""

    codecs: Mapping[type, Codec]

    def write(self, value: object, path: str, depth: int) -> Any:
        if depth > _DEPTH:
            raise ControlError(f"{path} is nested deeper than {_DEPTH}: does it contain itself?")
        codec = self.codecs.get(type(value))
        if codec is not None:
            return self.write(codec.encode(value), path, depth + 1)
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
                one.name: self.write(getattr(value, one.name), f"{path}.{one.name}", depth + 1)
                for one in dataclasses.fields(value)
            }
        return self._write_other(value, path, depth)

    def _write_other(self, value: object, path: str, depth: int) -> Any:
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str):
                    raise ControlError(f"{path} has the key {key!r}, which is not a text.")
            return {key: self.write(one, f"{path}.{key}", depth + 1) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.write(one, f"{path}[{at}]", depth + 1) for at, one in enumerate(value)]
        if isinstance(value, AbstractSet):
            return sorted((self.write(one, path, depth + 1) for one in value), key=canonical)
        if isinstance(value, enum.Enum) and isinstance(value.value, str | int):
            return self.write(value.value, path, depth + 1)
        if isinstance(value, _SCALARS) and not isinstance(value, enum.Enum):
            return self.write(msgspec.to_builtins(value), path, depth + 1)
        plain = unwrap_scalar(value)
        if plain is not value:
            return self.write(plain, path, depth + 1)
        kind = type(value)
        raise ControlError(
            f"{path} holds a {kind.__module__}.{kind.__qualname__}, which cannot be written as"
            " JSON: use texts, numbers, booleans, bytes, times, lists, mappings or dataclasses, or"
            " name a Codec for it in the operator's codecs."
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
    return frozen and all(
        _is_immutable(hints[one.name]) for one in dataclasses.fields(payload_type)
    )


def _is_immutable(hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType):
        return all(one is type(None) or _is_immutable(one) for one in get_args(hint))
    return hint in _READERS or _is_scalar(hint)


def _is_scalar(hint: Any) -> bool:
    return isinstance(hint, type) and get_origin(hint) is None and issubclass(hint, _SCALARS)


def _add_hints(payload_type: type, hints: dict[type, Mapping[str, Any]]) -> None:
    """Add the field types of a payload type, and of the dataclasses that these name.

    Raises:
        ControlError: a type cannot be found.
    """
    if payload_type in hints or not dataclasses.is_dataclass(payload_type):
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


def resolve_scripts(hints: Iterable[Any]) -> None:
    """Resolve the annotations of a script's dataclasses, whose names a task does not find.

    Raises:
        ControlError: a type cannot be found.
    """
    found: dict[type, Mapping[str, Any]] = {}
    for hint in hints:
        for one in _iter_dataclasses(hint):
            _add_hints(one, found)
    for one, resolved in found.items():
        if one.__module__ == "__main__":
            one.__annotations__ = dict(resolved)


def _iter_dataclasses(hint: Any) -> Iterator[type]:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        yield hint
    for one in get_args(hint):
        yield from _iter_dataclasses(one)


@dataclasses.dataclass(frozen=True, slots=True)
class _PayloadReader:
    """Reads JSON values as objects; ``hints`` are the field types of each dataclass."""

    hints: Mapping[type, Mapping[str, Any]]
    codecs: Mapping[type, Codec]

    def read(self, value: Any, hint: Any, path: str) -> Any:
        if hint is Any:
            return value
        if hint in self.codecs:
            return self._read_coded(value, hint, path)
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            return self._read_record(value, hint, path)
        origin, inner = get_origin(hint), get_args(hint)
        if origin in (Union, types.UnionType):
            return self._read_union(value, inner, path)
        if (origin or hint) in (list, tuple, Sequence, set, frozenset, AbstractSet):
            return self._read_list(value, origin or hint, inner, path)
        if origin in (dict, Mapping) or hint is dict:
            if not isinstance(value, Mapping):
                raise ControlError(f"{path} has to be an object, not {json_type(value)}.")
            item_hint = inner[1] if inner else Any
            return {key: self.read(one, item_hint, f"{path}.{key}") for key, one in value.items()}
        reader = _READERS.get(hint)
        if reader is None and _is_scalar(hint):
            return _read_scalar(value, hint, path)
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

    def _read_coded(self, value: Any, hint: type, path: str) -> Any:
        try:
            return self.codecs[hint].decode(value)
        except (TypeError, ValueError, LookupError) as error:
            raise ControlError(
                f"{path} is rejected by the codec of {hint.__qualname__}: {error!r}."
            ) from error

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
        if into in (list, Sequence):
            return items
        try:
            return (frozenset if into is AbstractSet else into)(items)
        except TypeError as error:
            raise ControlError(f"{path} has to be a set, but {error}.") from error


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


def _read_scalar(value: Any, kind: Any, path: str) -> Any:
    try:
        return kind(value) if issubclass(kind, enum.Enum) else msgspec.convert(value, kind)
    except (ValueError, msgspec.MsgspecError) as error:
        raise ControlError(f"{path} has to be a {kind.__qualname__}: {error}.") from error


_NAMES = {bool: "true or false", int: "an integer", str: "a text"}
_READERS: Mapping[Any, Callable[[Any, str], Any]] = {
    bool: _make_reader(bool),
    int: _make_reader(int),
    float: _read_float,
    str: _make_reader(str),
    bytes: _read_bytes,
    datetime: _read_time,
}
