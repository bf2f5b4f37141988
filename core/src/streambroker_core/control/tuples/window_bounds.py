"""Decides which epochs one batch of a control reader may contain.

- A window delivers ``END_WINDOW`` tuples after all its data. So a batch ends with the first epoch
  that carries one, and no row of a later epoch precedes it.
- A batch ends before an epoch that carries a ``BEGIN`` tuple, unless it begins with it.
- Tuples of *mergeable* types do not cut: of one emitter the last one counts.
- ``IMMEDIATE`` tuples have a position and ``AT_TIME`` tuples a time, so they do not cut either.
- Each stream is cut by itself; nothing is guaranteed between streams.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from streambroker_core.control.tuples import ControlTuple, Delivery, Target, sort_key


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlHead:
    """Summary of an epoch's control tuples in its head.

    Attributes:
        number: the epoch.
        begin: types of its ``BEGIN`` tuples.
        end: types of its ``END_WINDOW`` tuples.
        tuples: number of its control tuples.
        bytes: total size of their payloads.
    """

    number: int
    begin: frozenset[str] = frozenset()
    end: frozenset[str] = frozenset()
    tuples: int = 0
    bytes: int = 0


def make_control_head(number: int, controls: Iterable[ControlTuple]) -> ControlHead:
    """Return the head of an epoch with these control tuples."""
    kinds: dict[Delivery, set[str]] = {one: set() for one in Delivery}
    tuples = size = 0
    for one in controls:
        kinds[one.delivery].add(one.type)
        tuples, size = tuples + 1, size + len(one.text)
    return ControlHead(
        number=number,
        begin=frozenset(kinds[Delivery.BEGIN]),
        end=frozenset(kinds[Delivery.END_WINDOW]),
        tuples=tuples,
        bytes=size,
    )


def count_window_epochs(
    heads: Sequence[ControlHead], mergeable: frozenset[str] = frozenset()
) -> int:
    """Return how many of a stream's next epochs one batch may take; 0 only if there are none.

    ``heads`` are those of the next epochs that fit by size, in order. Types in ``mergeable`` do not
    cut.
    """
    for taken, head in enumerate(heads):
        if taken and head.begin - mergeable:
            return taken
        if head.end - mergeable:
            return taken + 1
    return len(heads)


def count_fitting_epochs(heads: Sequence[ControlHead], tuples: int, size: int) -> int:
    """Return how many of a stream's next epochs fit a window.

    ``tuples`` and ``size`` are the number of control tuples and payload bytes that still fit.
    """
    for taken, head in enumerate(heads):
        tuples, size = tuples - head.tuples, size - head.bytes
        if head.tuples and (tuples < 0 or size < 0):
            return taken
    return len(heads)


def merge_controls(
    controls: Iterable[ControlTuple], mergeable: frozenset[str] = frozenset()
) -> list[ControlTuple]:
    """Return the control tuples of a batch of one stream, without those that a later one replaces.

    Of mergeable ``BEGIN`` and ``END_WINDOW`` tuples with one type, emitter and target the last one
    stays. All others stay: each has a position or a time of its own.
    """
    all_controls = list(controls)
    last: dict[tuple[str, str, Delivery, Target], ControlTuple] = {}
    for one in sorted(all_controls, key=sort_key):
        if _is_replaceable(one, mergeable):
            last[one.type, one.emitter, one.delivery, one.target] = one
    retained = {one.id for one in last.values()}
    return [
        one for one in all_controls if one.id in retained or not _is_replaceable(one, mergeable)
    ]


def _is_replaceable(control: ControlTuple, mergeable: frozenset[str]) -> bool:
    return control.type in mergeable and control.delivery in (Delivery.BEGIN, Delivery.END_WINDOW)
