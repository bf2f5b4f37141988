"""What arrived for one window of one bucket: rows in order, each control tuple once per port.

A tuple comes in as many copies as there are partitions upstream. Its identity tells the copies, of
which the first position counts. What is held is limited, so that too many tuples are
an error with a name and not the end of the process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from streambroker_core.control.operators.operator import OperatorError
from streambroker_core.control.runtime.control_rows import PositionedControl
from streambroker_core.control.runtime.emitter import Stage
from streambroker_core.control.runtime.ordering import sort_by_position, sort_rows
from streambroker_core.control.runtime.packing import Arrival, Packed, unpack
from streambroker_core.control.tuples import (
    ControlLimitError,
    ControlTuple,
    Delivery,
    IdentityError,
    sort_key,
)


class ArrivedControl:
    """The control tuples of one window, each identity once per port.

    Every bucket is sent the same ones, so what is found out about them is found out once.
    """

    def __init__(self, arrivals: Iterable[Arrival] = ()) -> None:
        """Put together what arrived.

        Raises:
            IdentityError: two tuples have one identity.
        """
        self._ports: dict[str, dict[str, PositionedControl]] = {}
        self.duplicates: Counter[Delivery] = Counter()
        for one in arrivals:
            self._add(one.port, one.control)
        self.received = Counter(
            one.delivery for by_id in self._ports.values() for _, one in by_id.values()
        )
        self._bytes = {
            port: sum(len(one.text) for _, one in by_id.values())
            for port, by_id in self._ports.items()
        }
        self._positioned: dict[str, list[PositionedControl]] = {}
        self._sorted: dict[tuple[Sequence[str], Delivery], list[tuple[str, ControlTuple]]] = {}

    def _add(self, port: str, positioned: Iterable[PositionedControl]) -> None:
        known = self._ports.setdefault(port, {})
        for position, control in positioned:
            other = known.get(control.id)
            if other is None:
                known[control.id] = (position, control)
                continue
            if other[1].differs_from(control):
                raise IdentityError(other[1], control)
            self.duplicates[control.delivery] += 1
            if position < other[0]:
                known[control.id] = (position, control)

    def positioned_tuples(self, port: str) -> Sequence[PositionedControl]:
        """Return the ``IMMEDIATE`` tuples of a port in the order of their places."""
        if port not in self._positioned:
            given = self._ports.get(port, {}).values()
            self._positioned[port] = sort_by_position(
                one for one in given if one[1].delivery is Delivery.IMMEDIATE
            )
        return self._positioned[port]

    def sorted_tuples(
        self, ports: tuple[str, ...], delivery: Delivery
    ) -> Sequence[tuple[str, ControlTuple]]:
        """Return the tuples of all ports in order: position, epoch, emitter, sequence, port.

        Positions keep the order of emission, on each path from operator to operator.
        """
        if not self.received[delivery]:
            return ()
        if (ports, delivery) not in self._sorted:
            found = [
                (position, sort_key(one), at, port, one)
                for at, port in enumerate(ports)
                for position, one in self._ports.get(port, {}).values()
                if one.delivery is delivery
            ]
            found.sort(key=lambda it: it[:3])
            self._sorted[ports, delivery] = [(port, one) for *_, port, one in found]
        return self._sorted[ports, delivery]

    def check_limits(self, stage: Stage) -> None:
        """Refuse too many of those that operators of the query have emitted.

        What was sent to the query is let through: it would come again with each try.

        Raises:
            ControlLimitError: they are too many, or too large.
        """
        limits = stage.limits
        for port, given in self._ports.items():
            if len(given) <= limits.tuples and self._bytes[port] <= limits.bytes:
                continue
            own = [one for _, one in given.values() if one.is_emitted_by(stage.query)]
            size = sum(len(one.text) for one in own)
            if len(own) <= limits.tuples and size <= limits.bytes:
                continue
            emitters = Counter(sorted(one.emitter for one in own))
            ((most, count),) = emitters.most_common(1)
            raise ControlLimitError(
                f"input {port} of operator {stage.operator} has {len(own)} control tuples of"
                f" {size} bytes that operators of its query emitted in one window; the limit is"
                f" {limits.tuples} tuples, {limits.bytes} bytes. {count} are from {most}. Let it"
                " send rows instead, or one tuple that says it for many."
            )


@dataclass(slots=True)
class WindowInput:
    """What a window has.

    Attributes:
        tables: rows by port, by rising ``_seq``.
        layouts: text of the layout of each port that has rows.
        control: its control tuples.
        rows: how many rows there are.
    """

    tables: dict[str, pa.Table] = field(default_factory=dict)
    layouts: dict[str, str] = field(default_factory=dict)
    control: ArrivedControl = field(default_factory=ArrivedControl)
    rows: int = 0


def collect(packed: Iterable[Packed], stage: Stage, ports: Sequence[str]) -> WindowInput:
    """Unpack and order what arrived.

    Raises:
        OperatorError: rows are for a port that the operator does not have, for another number of
            buckets, or their columns or sequences do not fit.
        ControlError: a payload cannot be read, or two tuples have one identity.
        ControlLimitError: operators of the query have emitted too many control tuples.
    """
    arrived, batches = WindowInput(), dict[str, list[pa.RecordBatch]]()
    told: list[Arrival] = []
    for one in packed:
        found = unpack(one)
        if found.port not in ports:
            raise OperatorError(
                f"operator {stage.operator} has no input {found.port}; it has {', '.join(ports)}."
            )
        if found.rows is None:
            told.append(found)
            continue
        _check_layout(arrived, found.port, found.layout, stage)
        batches.setdefault(found.port, []).append(found.rows)
        arrived.rows += found.rows.num_rows
    for port, given in batches.items():
        arrived.tables[port] = sort_rows(port, given)
    if told:
        arrived.control = _merge_arrivals(told)
        arrived.control.check_limits(stage)
    return arrived


def _merge_arrivals(arrivals: Sequence[Arrival]) -> ArrivedControl:
    """Put control tuples together; the last ones are remembered, as ``unpack`` remembers them."""
    key = tuple(map(id, arrivals))
    if key not in _CACHE:
        if len(_CACHE) >= _MAX_CACHED:
            _CACHE.clear()
        _CACHE[key] = (arrivals, ArrivedControl(arrivals))
    return _CACHE[key][1]


_MAX_CACHED = 4
_CACHE: dict[tuple[int, ...], tuple[Sequence[Arrival], ArrivedControl]] = {}
"""By the objects that were unpacked, which are kept, so that no other ones have their ids."""


def _check_layout(arrived: WindowInput, port: str, layout: str, stage: Stage) -> None:
    known = arrived.layouts.setdefault(port, layout)
    if known != layout:
        raise OperatorError(
            f"rows of input {port} of operator {stage.operator} were packed as {known} and as"
            f" {layout}: one input has one layout."
        )
    buckets = layout.split(";")[1]
    if buckets != str(stage.buckets):
        raise OperatorError(
            f"rows of input {port} were packed for {buckets} buckets, and operator"
            f" {stage.operator} has {stage.buckets}."
        )
