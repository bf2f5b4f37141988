"""Control tuples: identity, delivery and order.

An *identity* consists of the emitter, the epoch, and a number or name within it. It never changes,
also when a tuple is forwarded. Two tuples with equal payloads are two tuples.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from typing import Any, cast

from streambroker_core.errors import StreambrokerError

MAX_TUPLES = 10_000
MAX_BYTES = 16 << 20
MAX_PAYLOAD = 1 << 20

ALL_BUCKETS = "*"
"""Bucket in an emitter's name if all buckets emitted one and the same tuple."""
END_OF_TIME = (1 << 63) - 1
"""The greatest event time: the watermark of an input that has ended."""
_TIME = END_OF_TIME

KeyValue = str | int | float | bool
SortKey = tuple[int, str, int, int, str]
"""Epoch, emitter, its bucket, sequence, id."""


class ControlError(StreambrokerError):
    """A control tuple, or its payload, that cannot be written, read or delivered."""

    code = "ControlInvalid"


class UndeliverableError(ControlError):
    """A control tuple that cannot be delivered: type, payload or address do not fit.

    Attributes:
        why: the reason.
    """

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(
            f"{why} The window fails at each retry: correct the operator, or let such tuples pass"
            " it, with on_invalid='pass'."
        )


class IdentityError(ControlError):
    """Two different control tuples with one identity; the window fails as a whole."""

    def __init__(self, first: ControlTuple, second: ControlTuple) -> None:
        super().__init__(
            f"two control tuples have the identity {first.id} and differ: {first.type}"
            f" {first.text} and"
            f" {second.type} {second.text}. Emitted with once, they have to be the same in every"
            " bucket; does the operator use a clock or randomness?"
        )


class ControlLimitError(StreambrokerError):
    """Control tuples above a limit of number or size; the window fails as a whole."""

    code = "ControlLimit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on the control tuples that operators of a query emit in a window.

    They apply to one bucket, and to all tuples from upstream operators at one port. Tuples that the
    query received and passes on do not count: sources cut what they bring, and the emitter was
    within limits. So a query that catches up is never stopped by tuples sent to it.

    Attributes:
        tuples: their number; copies of one tuple count once.
        bytes: the sum of their payloads, as UTF-8.
        payload: bytes of one payload.
    """

    tuples: int = MAX_TUPLES
    bytes: int = MAX_BYTES
    payload: int = MAX_PAYLOAD

    def __post_init__(self) -> None:
        if not 0 < self.payload <= MAX_PAYLOAD:
            raise ControlError(
                f"a payload may have 1 to {MAX_PAYLOAD} bytes, not {self.payload}: receivers"
                " accept no larger ones."
            )


@dataclass(frozen=True, slots=True)
class SideTick:
    """Payload of the control tuple that makes a window, so that an operator sees the clock."""

    number: int


class Delivery(enum.Enum):
    """When a control tuple is delivered to an operator.

    - ``BEGIN``: before all data of the window.
    - ``IMMEDIATE``: at its position between the data of its port.
    - ``END_WINDOW``: after all data of the window, from all ports.
    - ``AT_TIME``: when event time passes ``at``, in this window or a later one.
    """

    BEGIN = "BEGIN"
    IMMEDIATE = "IMMEDIATE"
    END_WINDOW = "END_WINDOW"
    AT_TIME = "AT_TIME"

    __hash__ = object.__hash__  # a member is one object, and Enum's own hash is slow


def parse_delivery(value: Delivery | str) -> Delivery:
    """Return a delivery, also by its name; raise ControlError if there is none."""
    if isinstance(value, Delivery):
        return value
    if isinstance(value, str) and value in Delivery.__members__:
        return Delivery[value]
    raise ControlError(
        f"the delivery of a control tuple is {value!r}: it has to be"
        f" {', '.join(Delivery.__members__)}."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Addressee of a control tuple; others pass it on. None addresses all.

    Attributes:
        operator: name of an operator.
        bucket: a bucket of it.
        key: values of an input's key columns; addresses the bucket that holds them.
    """

    operator: str | None = None
    bucket: int | None = None
    key: tuple[KeyValue, ...] | None = None


ALL_TARGETS = Target()


def check_target(value: object) -> None:
    """Raise ControlError if a value is not a target."""
    if not isinstance(value, Target):
        raise ControlError(
            f"the target of a control tuple is {value!r}: it has to be a Target, such as"
            " Target(operator='multiply')."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlTuple:
    """A user's record that travels with the data.

    Attributes:
        type: name of the payload's type.
        id: the identity, as text.
        delivery: when it is delivered to operators.
        at: event time in microseconds, for ``AT_TIME`` alone; else None.
        epoch: the emitter's epoch or window in which it was emitted, or 0 for a control log.
        emitter: ``<stream or query>.<operator>.<bucket>``, or a control log's id.
        seq: number within this emitter and epoch, from 0.
        text: the payload as canonical JSON.
        target: its addressee.
    """

    type: str
    id: str
    delivery: Delivery
    epoch: int
    emitter: str
    seq: int
    text: str = "null"
    at: int | None = None
    target: Target = ALL_TARGETS
    _order: SortKey | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_target(self.target)
        if self.at is not None and (type(self.at) is not int or not -_TIME <= self.at <= _TIME):
            raise ControlError(
                f"control tuple {self.type} has event time {self.at!r}: it has to be a whole number"
                " of microseconds since 1970."
            )
        if (self.at is None) == (self.delivery is Delivery.AT_TIME):
            raise ControlError(
                f"control tuple {self.type} has delivery {self.delivery.value} and event time"
                f" {self.at}: an event time, in microseconds, is required with AT_TIME and"
                " allowed only there."
            )

    def differs_from(self, other: ControlTuple) -> bool:
        """Return whether two tuples of one identity are not copies of one tuple."""
        return (self.type, self.delivery, self.at, self.target, self.text) != (
            other.type,
            other.delivery,
            other.at,
            other.target,
            other.text,
        )

    @property
    def payload(self) -> Any:
        """The payload as JSON value; a new object each time, so changes do not affect others."""
        return json.loads(self.text)

    def is_emitted_by(self, query: str) -> bool:
        """Return whether an operator of a query has emitted it."""
        return self.emitter.startswith(f"{query}.")


def make_logged_tuple(
    log: str,
    seq: int,
    *,
    type_: str,
    text: str,
    delivery: Delivery = Delivery.BEGIN,
    at: int | None = None,
    target: Target = ALL_TARGETS,
) -> ControlTuple:
    """Return the tuple of a control log entry; log id and sequence are its identity.

    It is delivered in the window to which the log's offset pins it.
    """
    return ControlTuple(
        type=type_,
        id=f"{log}/{seq}",
        delivery=delivery,
        at=at,
        epoch=0,
        emitter=log,
        seq=seq,
        text=text,
        target=target,
    )


def sort_key(control: ControlTuple) -> SortKey:
    """Return the key that orders tuples of one position: epoch, emitter, sequence.

    Buckets are compared as numbers, so bucket 10 is after bucket 2. Tuples that all buckets of an
    emitter emitted as one precede those of single buckets. The tuple caches its key, which is used
    in every bucket.
    """
    if control._order is None:
        object.__setattr__(control, "_order", _compute_sort_key(control))
    return cast(SortKey, control._order)


def _compute_sort_key(control: ControlTuple) -> SortKey:
    stem, _, last = control.emitter.rpartition(".")
    if stem and last.isascii() and last.isdigit():
        return (control.epoch, stem, int(last), control.seq, control.id)
    if last == ALL_BUCKETS:
        return (control.epoch, stem, -1, control.seq, control.id)
    return (control.epoch, control.emitter, -1, control.seq, control.id)
