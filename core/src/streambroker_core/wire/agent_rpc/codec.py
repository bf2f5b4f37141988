"""Dataclasses as JSON objects, and the registry of the actions that an agent performs.

A field's name is its JSON key, without a trailing underscore; `json_field` names another key. A
reader ignores unknown keys and checks types. A field with a default may be absent; null means the
default unless the type includes None.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as AnySequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache, partial
from typing import (
    Any,
    ClassVar,
    Generic,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from streambroker_core.wire.encoding.fields import json_type

R = TypeVar("R")
_Q = TypeVar("_Q", bound="Request[Any]")
_T = TypeVar("_T")

_MAX_INT64 = (1 << 63) - 1
_TYPES: Mapping[Any, tuple[tuple[type, ...], str]] = {
    str: ((str,), "a text"),
    bool: ((bool,), "true or false"),
    int: ((int,), "an integer"),
    float: ((int, float), "a number"),
    type(None): ((type(None),), "null"),
}


class MessageInvalidError(ValueError):
    """A JSON object is not the message that was expected; the text names the field."""


class Request(Generic[R]):
    """A request for an action; ``R`` is the type of the response, None for an empty one."""

    __slots__ = ()
    action: ClassVar[str]


def json_field(*, key: str = "", default: Any = MISSING, omit: bool = False) -> Any:
    """Return a field with another key; ``omit`` leaves it out of the JSON if it is the default."""
    metadata = {"key": key, "omit": omit}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def optional(default: Any = None) -> Any:
    """Return a field that is left out of the JSON while it has its default."""
    return json_field(default=default, omit=True)


class Actions:
    """The actions of an agent, each with the type of its request and a handler."""

    def __init__(self) -> None:
        self._handlers: dict[str, tuple[type[Request[Any]], Callable[[Any], object]]] = {}

    def on(self, kind: type[_Q], handler: Callable[[_Q], object]) -> None:
        """Perform an action by a handler, which returns the response."""
        self._handlers[kind.action] = (kind, handler)

    def __iter__(self) -> Iterator[str]:
        return iter(self._handlers)

    def handle(self, action: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Perform an action and return its response as JSON.

        Raises:
            KeyError: the action is unknown.
            MessageInvalidError: the request lacks a field, or has an invalid one.
        """
        kind, handler = self._handlers[action]
        response: dict[str, Any] = to_json(handler(decode(kind, body)))
        return {} if response is None else response


# ---- writing -------------------------------------------------------------


def to_json(value: Any) -> Any:
    """Return a value with all dataclasses in it as JSON objects."""
    if is_dataclass(value) and not isinstance(value, type):
        result = {}
        for one in _fields_of(type(value)):
            item = getattr(value, one.name)
            is_default = not item if one.default == () else item == one.default
            if not (one.omit and is_default):
                result[one.key] = item if one.plain else to_json(item)
        return result
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


# ---- reading -------------------------------------------------------------


def decode(kind: type[_T], body: object) -> _T:
    """Read a message.

    Raises:
        MessageInvalidError: a field is missing, or has another type.
    """
    if not isinstance(body, Mapping):
        raise MessageInvalidError(f"has to be an object, not {json_type(body)}")
    values = {}
    for one in _fields_of(cast(Any, kind)):
        value = body.get(one.key)
        if one.text and type(value) is str and value.isascii():  # most fields, without a call
            values[one.name] = value
            continue
        if value is None and not (one.nullable and one.key in body):
            if one.default is MISSING:
                raise MessageInvalidError(f"{one.key} is required")
            continue
        try:
            values[one.name] = one.read(value)
        except ValueError as error:
            raise MessageInvalidError(f"{one.key} {error}") from None
    return kind(**values)


def decode_response(kind: type[Request[R]], body: Mapping[str, Any]) -> R:
    """Read the response to a request of this type."""
    result: R = _response_reader(cast(Any, kind))(body)
    return result


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    key: str
    default: Any
    omit: bool
    nullable: bool
    plain: bool
    text: bool
    read: Callable[[Any], Any]


@cache
def _fields_of(kind: type) -> tuple[_Field, ...]:
    hints = get_type_hints(kind)
    return tuple(
        _Field(
            name=one.name,
            key=one.metadata.get("key") or one.name.rstrip("_"),
            default=one.default if one.default_factory is MISSING else one.default_factory(),
            omit=one.metadata.get("omit", False),
            nullable=hints[one.name] is Any or type(None) in get_args(hints[one.name]),
            plain=not _contains_dataclass(hints[one.name]),
            text=hints[one.name] in (str, str | None),
            read=_reader(hints[one.name]),
        )
        for one in fields(kind)
    )


def _contains_dataclass(hint: Any) -> bool:
    return is_dataclass(hint) or any(map(_contains_dataclass, get_args(hint)))


@cache
def _response_reader(kind: type[Request[Any]]) -> Callable[[Any], Any]:
    bases = (base for one in kind.__mro__ for base in one.__dict__.get("__orig_bases__", ()))
    response = next(get_args(base)[0] for base in bases if get_origin(base) is Request)
    return (lambda _: None) if response is type(None) else _reader(response)


@cache
def _reader(hint: Any) -> Callable[[Any], Any]:
    """Return a function that reads a value of a type; it raises ValueError."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value: value
    if is_dataclass(hint):
        return partial(decode, cast(type, hint))
    if origin in (Union, types.UnionType):
        return partial(_read_union, tuple(map(_reader, arguments)))
    if origin is tuple and arguments[-1] is Ellipsis:
        item = _reader(arguments[0])
        return lambda value: tuple(_read_list(item, value))
    if origin is tuple:
        return partial(_read_tuple, tuple(map(_reader, arguments)))
    if origin in (AnySequence, list):
        return partial(_read_list, _reader(arguments[0]))
    if origin in (Mapping, dict):
        return partial(_read_mapping, _reader(arguments[1]))
    return partial(_read_plain, hint, *_TYPES[hint])


def _read_union(readers: tuple[Callable[[Any], Any], ...], value: Any) -> Any:
    for read in readers[:-1]:
        try:
            return read(value)
        except ValueError as error:
            reason = error
    try:
        return readers[-1](value)
    except ValueError:
        raise reason from None


def _read_tuple(readers: tuple[Callable[[Any], Any], ...], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple) or len(value) != len(readers):
        raise ValueError(f"has to be a list of {len(readers)}, not {value!r:.80}")
    return tuple(read(item) for read, item in zip(readers, value, strict=True))


def _read_list(read: Callable[[Any], Any], value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"has to be a list, not {json_type(value)}")
    return [read(item) for item in value]


def _read_mapping(read: Callable[[Any], Any], value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"has to be an object, not {json_type(value)}")
    return {key: read(item) for key, item in value.items()}


def _read_plain(hint: type, accepted: tuple[type, ...], expected: str, value: Any) -> Any:
    if not isinstance(value, accepted) or (isinstance(value, bool) and hint is not bool):
        raise ValueError(f"has to be {expected}, not {json_type(value)}")
    if isinstance(value, str) and not value.isascii():
        value.encode()  # half of a surrogate pair is an error
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"is {value}")
    elif isinstance(value, int) and not -_MAX_INT64 <= value <= _MAX_INT64:
        raise ValueError(f"is {value}, which is not from {-_MAX_INT64} to {_MAX_INT64}")
    return value
