"""What arrived for one window of one bucket: rows in order, each control tuple once per port.

A tuple comes in as many copies as there are partitions upstream. Its identity tells the copies; of
an ``IMMEDIATE`` tuple the first place counts. What is held is limited, so that too many tuples are
an error with a name and not the end of the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from streambroker_core.control.emitting import Stage
from streambroker_core.control.operator import OperatorError
from streambroker_core.control.ordering import in_order
from streambroker_core.control.packing import Packed, unpack
from streambroker_core.control.rows import Placed
from streambroker_core.control.tuples import ControlLimitError, Delivery, IdentityError


@dataclass(slots=True)
class Arrived:
    """What a window has.

    Attributes:
        tables: rows by port, by rising ``_seq``.
        layouts: text of the layout of each port that has rows.
        control: tuples by port and delivery, each identity once.
        duplicates: how many copies were left out, by delivery.
        rows: how many rows there are.
    """

    tables: dict[str, pa.Table] = field(default_factory=dict)
    layouts: dict[str, str] = field(default_factory=dict)
    control: dict[str, dict[str, Placed]] = field(default_factory=dict)
    duplicates: dict[Delivery, int] = field(default_factory=dict)
    rows: int = 0

    def placed(self, port: str, delivery: Delivery) -> list[Placed]:
        """Return the tuples of a port with one delivery."""
        return [one for one in self.control.get(port, {}).values() if one[1].delivery is delivery]


def collect(packed: Iterable[Packed], stage: Stage, ports: Sequence[str]) -> Arrived:
    """Unpack and order what arrived.

    Raises:
        OperatorError: rows are for a port that the operator does not have, for another number of
            buckets, or their columns or sequences do not fit.
        ControlError: a payload cannot be read, or two tuples have one identity.
        ControlLimitError: there are too many control tuples.
    """
    arrived, batches = Arrived(), dict[str, list[pa.RecordBatch]]()
    for one in packed:
        found = unpack(one)
        if found.port not in ports:
            raise OperatorError(
                f"operator {stage.operator} has no input {found.port}; it has {', '.join(ports)}."
            )
        if found.rows is None:
            _take_control(arrived, found.port, found.control)
            continue
        _check_layout(arrived, found.port, found.layout, stage)
        batches.setdefault(found.port, []).append(found.rows)
        arrived.rows += found.rows.num_rows
    for port, given in batches.items():
        arrived.tables[port] = in_order(port, given)
    _check_limits(arrived.control, stage)
    return arrived


def _check_layout(arrived: Arrived, port: str, layout: str, stage: Stage) -> None:
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


def _take_control(arrived: Arrived, port: str, placed: Iterable[Placed]) -> None:
    known = arrived.control.setdefault(port, {})
    for position, control in placed:
        other = known.get(control.id)
        if other is None:
            known[control.id] = (position, control)
            continue
        if other[1].differs(control):
            raise IdentityError(other[1], control)
        arrived.duplicates[control.delivery] = arrived.duplicates.get(control.delivery, 0) + 1
        if position < other[0]:
            known[control.id] = (position, control)


def _check_limits(control: Mapping[str, Mapping[str, Placed]], stage: Stage) -> None:
    limits = stage.limits
    for port, given in control.items():
        size = sum(len(one.text) for _, one in given.values())
        if len(given) <= limits.tuples and size <= limits.bytes:
            continue
        by_emitter: dict[str, int] = {}
        for _, one in given.values():
            by_emitter[one.emitter] = by_emitter.get(one.emitter, 0) + 1
        most = max(sorted(by_emitter), key=lambda name: by_emitter[name])
        raise ControlLimitError(
            f"input {port} of operator {stage.operator} has {len(given)} control tuples of {size}"
            f" bytes in one window; the limit is {limits.tuples} tuples, {limits.bytes} bytes."
            f" {by_emitter[most]} are from {most}. Let it send rows instead, or one tuple that says"
            " it for many."
        )
