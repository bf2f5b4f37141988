"""Input of one window of one bucket: rows in order, each control tuple once per port.

Each upstream partition sends a copy of a tuple. Copies share an identity, and the lowest position
counts. The number of tuples is limited, so too many raise a named error instead of exhausting
memory.
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

    Every bucket receives the same ones, so results are computed once and cached.
    """

    def __init__(self, arrivals: Iterable[Arrival] = ()) -> None:
        """Merge arrivals; raise IdentityError if two different tuples have one identity."""
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
        by_id = self._ports.setdefault(port, {})
        for position, control in positioned:
            existing = by_id.get(control.id)
            if existing is None:
                by_id[control.id] = (position, control)
                continue
            if existing[1].differs_from(control):
                raise IdentityError(existing[1], control)
            self.duplicates[control.delivery] += 1
            if position < existing[0]:
                by_id[control.id] = (position, control)

    def positioned_tuples(self, port: str) -> Sequence[PositionedControl]:
        """Return the ``IMMEDIATE`` tuples of a port by position."""
        if port not in self._positioned:
            entries = self._ports.get(port, {}).values()
            self._positioned[port] = sort_by_position(
                one for one in entries if one[1].delivery is Delivery.IMMEDIATE
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
            entries = [
                (position, sort_key(one), port_index, port, one)
                for port_index, port in enumerate(ports)
                for position, one in self._ports.get(port, {}).values()
                if one.delivery is delivery
            ]
            entries.sort(key=lambda it: it[:3])
            self._sorted[ports, delivery] = [(port, one) for *_, port, one in entries]
        return self._sorted[ports, delivery]

    def check_limits(self, stage: Stage) -> None:
        """Check the number and size of tuples that operators of the query emitted.

        Tuples sent to the query do not count: they would arrive again with each retry.

        Raises:
            ControlLimitError: they are too many, or too large.
        """
        limits = stage.limits
        for port, by_id in self._ports.items():
            if len(by_id) <= limits.tuples and self._bytes[port] <= limits.bytes:
                continue
            own = [one for _, one in by_id.values() if one.is_emitted_by(stage.query)]
            size = sum(len(one.text) for one in own)
            if len(own) <= limits.tuples and size <= limits.bytes:
                continue
            emitters = Counter(sorted(one.emitter for one in own))
            ((most, count),) = emitters.most_common(1)
            raise ControlLimitError(
                f"input {port} of operator {stage.operator} has {len(own)} control tuples of"
                f" {size} bytes that operators of its query emitted in one window; the limit is"
                f" {limits.tuples} tuples, {limits.bytes} bytes. {count} are from {most}. Let it"
                " send rows instead, or one tuple in place of many."
            )


@dataclass(slots=True)
class WindowInput:
    """Input of a window.

    Attributes:
        tables: rows by port, by ascending ``_seq``.
        layouts: text of the layout of each port that has rows.
    """

    tables: dict[str, pa.Table] = field(default_factory=dict)
    layouts: dict[str, str] = field(default_factory=dict)
    control: ArrivedControl = field(default_factory=ArrivedControl)
    rows: int = 0


def collect(packed: Iterable[Packed | Arrival], stage: Stage, ports: Sequence[str]) -> WindowInput:
    """Unpack packed rows, and order them with what has already been unpacked.

    Raises:
        OperatorError: rows are for a port that the operator lacks or for another number of buckets,
            or their columns or sequences do not fit.
        ControlError: a payload cannot be read, or two different tuples have one identity.
        ControlLimitError: operators of the query have emitted too many control tuples.
    """
    arrived, batches = WindowInput(), dict[str, list[pa.RecordBatch]]()
    control_arrivals: list[Arrival] = []
    for packed_row in packed:
        arrival = packed_row if isinstance(packed_row, Arrival) else unpack(packed_row)
        if arrival.port not in ports:
            raise OperatorError(
                f"operator {stage.operator} has no input {arrival.port}; it has {', '.join(ports)}."
            )
        if arrival.rows is None:
            control_arrivals.append(arrival)
            continue
        _check_layout(arrived, arrival.port, arrival.layout, stage)
        batches.setdefault(arrival.port, []).append(arrival.rows)
        arrived.rows += arrival.rows.num_rows
    for port, port_batches in batches.items():
        arrived.tables[port] = sort_rows(port, port_batches)
    if control_arrivals:
        arrived.control = _merge_arrivals(control_arrivals)
        arrived.control.check_limits(stage)
    return arrived


def _merge_arrivals(arrivals: Sequence[Arrival]) -> ArrivedControl:
    """Merge control tuples; cache the last results, like ``unpack`` does."""
    key = tuple(map(id, arrivals))
    if key not in _CACHE:
        if len(_CACHE) >= _MAX_CACHED:
            _CACHE.clear()
        _CACHE[key] = (arrivals, ArrivedControl(arrivals))
    return _CACHE[key][1]


_MAX_CACHED = 4
_CACHE: dict[tuple[int, ...], tuple[Sequence[Arrival], ArrivedControl]] = {}
"""By ids of the arrivals; the arrivals are kept, so that no other objects get their ids."""


def _check_layout(arrived: WindowInput, port: str, layout: str, stage: Stage) -> None:
    first = arrived.layouts.setdefault(port, layout)
    if first != layout:
        raise OperatorError(
            f"rows of input {port} of operator {stage.operator} were packed as {first} and as"
            f" {layout}: one input has one layout."
        )
    buckets = layout.split(";")[1]
    if buckets != str(stage.buckets):
        raise OperatorError(
            f"rows of input {port} were packed for {buckets} buckets, and operator"
            f" {stage.operator} has {stage.buckets}."
        )
