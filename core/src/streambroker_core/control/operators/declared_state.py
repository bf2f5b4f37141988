"""State that an operator class declares: the annotated fields of a dataclass, one copy per bucket.

A field is one blob ``field/<name>`` with its type as text and its value, in MessagePack. A window
writes only the fields that it changed. Fields annotated ``Final`` are parameters. A class that
overrides ``snapshot`` keeps its state itself; its fields are not stored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, get_origin, get_type_hints

import msgspec

from streambroker_core.control.operators.operator import (
    Blobs,
    Changes,
    Operator,
    OperatorError,
    StateError,
)
from streambroker_core.control.tuples.payloads import (
    codecs_by_type,
    resolve_scripts,
    unwrap_scalar,
)

PREFIX = "field/"
_MISSING = object()
_RUNTIME_NAMES = frozenset({"window", "_emitter"})
_UNFIT = (
    TypeError, ValueError, OverflowError, NotImplementedError, NameError, msgspec.MsgspecError
)  # fmt: skip
_ATOMS = frozenset({bool, int, float, str, bytes, type(None)})


class DeclaredFields:
    """The fields of an operator class that are its state, with their types.

    It is stored at the class, so that it travels with a class of a script to the tasks: names of
    types in ``__main__`` mean nothing there.
    """

    def __init__(self, operator: type[Operator]) -> None:
        """Read the fields.

        Raises:
            OperatorError: the type of a field cannot be found.
        """
        self.operator_name = operator.__qualname__
        self.is_declared = operator.snapshot is Operator.snapshot
        self._codecs = codecs_by_type(operator.codecs)
        self._transient = _RUNTIME_NAMES | set(operator.transient)
        self._dropped = set(operator.dropped_fields)
        self._reads_older = operator.restore is not Operator.restore
        self.types: dict[str, Any] = {}
        if self.is_declared and dataclasses.is_dataclass(operator):
            self.types = self._state_types(operator)

    def _state_types(self, operator: Any) -> dict[str, Any]:
        try:
            hints = get_type_hints(operator)
        except NameError as error:
            raise OperatorError(
                f"a field of operator {self.operator_name} has a type that cannot be found:"
                f" {error}. Define or import it in the operator's module, also at run time."
            ) from error
        types = {
            one.name: hints[one.name]
            for one in dataclasses.fields(operator)
            if not hasattr(Operator, one.name)
            and one.name not in _RUNTIME_NAMES
            and hints[one.name] is not Final
            and get_origin(hints[one.name]) is not Final
        }
        resolve_scripts(types.values())
        return types

    def encode(self, name: str, value: object, *, check: bool = True) -> bytes:
        """Return the blob of a field.

        Without ``check`` msgspec does not read the type: what it caches at a class of a script
        cannot be pickled, and a driver has to send such classes to its tasks.

        Raises:
            OperatorError: the value cannot be written, or is not of the field's type.
        """
        kind = self.types[name]
        try:
            data = msgspec.msgpack.encode([_describe(kind), value], enc_hook=self._to_plain)
            if check:
                self._decode(data, kind)
        except _UNFIT as error:
            raise OperatorError(
                f"field {self.operator_name}.{name} of type {_describe(kind)} is state, and its"
                f" value, a {type(value).__qualname__}, cannot be stored: {error}. Assign a value"
                " of the field's type, name a Codec in codecs, or annotate a parameter that no"
                " window changes as Final."
            ) from error
        return data

    def decode(self, name: str, data: bytes) -> Any:
        """Return the value of a field; raise StateError if it does not fit the field's type."""
        try:
            return self._decode(data, self.types[name])
        except _UNFIT as error:
            raise StateError(
                f"field {self.operator_name}.{name} has type {_describe(self.types[name])}, and"
                f" the checkpoint has it as {_stored_type(data)}: {error}. Nothing was"
                " overwritten: restore that type, or give the new field another name and list"
                f" {name!r} in dropped_fields."
            ) from error

    def _decode(self, data: bytes, kind: Any) -> Any:
        return msgspec.msgpack.decode(data, type=tuple[str, kind], dec_hook=self._from_plain)[1]

    def check_names(self, blobs: Blobs) -> Changes:
        """Return the removal of blobs that are no longer needed.

        Raises:
            StateError: a stored field is not declared, or the state was written by ``snapshot``
                and no ``restore`` reads it.
        """
        gone: Changes = {}
        for blob in blobs:
            name = blob.removeprefix(PREFIX)
            if blob.startswith(PREFIX):
                if name in self.types:
                    continue
                if name not in self._dropped:
                    raise StateError(
                        f"the checkpoint has the field {name} of type {_stored_type(blobs[blob])},"
                        f" which operator {self.operator_name} does not declare. Nothing was"
                        " overwritten: declare it again, or drop it with dropped_fields ="
                        f" ({name!r},)."
                    )
            elif not self._reads_older:
                raise StateError(
                    f"the checkpoint has state {blob} of an earlier {self.operator_name} with a"
                    " snapshot of its own. Nothing was overwritten: keep its restore, which sets"
                    " the fields from it."
                )
            gone[blob] = None
        return gone

    def find_lost(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the attributes that callbacks have set and that the next window does not see."""
        if not self.is_declared:
            return ()
        kept = self._transient | self.types.keys()
        return tuple(
            name
            for name, value in after.items()
            if name not in kept and value is not before.get(name, _MISSING)
        )

    def _to_plain(self, value: Any) -> Any:
        codec = self._codecs.get(type(value))
        if codec is not None:
            return codec.encode(value)
        scalar = unwrap_scalar(value)
        if scalar is value:
            raise TypeError(f"a {type(value).__qualname__} has no plain form")
        return scalar

    def _from_plain(self, kind: type, value: Any) -> Any:
        if kind not in self._codecs:
            raise TypeError(f"no codec names {kind.__qualname__}")
        return self._codecs[kind].decode(value)


def declared_fields(operator: type[Operator]) -> DeclaredFields:
    """Return the declared fields of an operator class; made once."""
    declared = vars(operator).get("_declared_fields")
    if declared is None:
        declared = DeclaredFields(operator)
        operator._declared_fields = declared
    return declared


class FieldState:
    """The state of one operator in one window: reads it, and returns what the window changed."""

    def __init__(self, operator: Operator) -> None:
        """Remember the values that the fields of a new operator have.

        Raises:
            OperatorError: a field has a value that cannot be stored.
        """
        self._operator, self._fields = operator, declared_fields(type(operator))
        self._before: dict[str, tuple[Any, bytes | None]] = {}
        self._gone: Changes = {}
        for name in self._fields.types:
            value = getattr(operator, name)
            is_atom = type(value) in _ATOMS
            self._before[name] = (
                value,
                None if is_atom else self._fields.encode(name, value, check=False),
            )
        self._attributes = dict(vars(operator))

    def restore(self, version: int, blobs: Blobs) -> None:
        """Set the fields from the bucket's state; a field without a blob keeps its default.

        What a hand-written ``snapshot`` has written goes to the operator's ``restore`` first.

        Raises:
            StateError: a field does not fit, or is no longer declared.
        """
        operator, fields = self._operator, self._fields
        if fields.is_declared:
            self._gone = fields.check_names(blobs)
        if not fields.is_declared or any(not name.startswith(PREFIX) for name in self._gone):
            operator.restore(version, blobs)
        for name in fields.types:
            data = blobs.get(PREFIX + name)
            if data is not None:
                value = fields.decode(name, data)
                setattr(operator, name, value)
                self._before[name] = value, data
        self._attributes = dict(vars(operator))

    def changes(self) -> Changes:
        """Return the blobs to write.

        Raises:
            OperatorError: a field has a value that cannot be stored.
        """
        if not self._fields.is_declared:
            return self._operator.snapshot()
        changed = dict(self._gone)
        for name, (before, stored) in self._before.items():
            value = getattr(self._operator, name)
            if value is before and type(value) in _ATOMS:
                continue
            data = self._fields.encode(name, value)
            if data != (
                self._fields.encode(name, before, check=False) if stored is None else stored
            ):
                changed[PREFIX + name] = data
        return changed

    def lost_attributes(self) -> tuple[str, ...]:
        """Return the attributes that callbacks have set and that are not state."""
        return self._fields.find_lost(self._attributes, vars(self._operator))


def _describe(kind: Any) -> str:
    return kind.__qualname__ if type(kind) is type else str(kind).replace("typing.", "")


def _stored_type(data: bytes) -> str:
    return str(msgspec.msgpack.decode(data)[0])
