"""Request of a reader for its next epochs, and the plan that answers it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from streambroker_core.control.tuples import MAX_BYTES, MAX_TUPLES
from streambroker_core.wire.agent_rpc.peer import PlannedRange


class PlanRequest(NamedTuple):
    """Request of a reader for the epochs of its next micro-batch.

    Attributes:
        call: incarnation of the reader's agent and number of the call within it; None if unknown.
        positions: first unfinished epoch by stream; acknowledges all below. Streams of other
            exports are ignored.
        own_streams: streams in ``positions`` that the reader attributes to this export.
        has_opened: the reader has opened this export before. A stream it does not know is then a
            successor and is read from its first epoch.
        last: query and batch id of the last epoch read of this export. Epochs of that query up to
            that batch were republished after a log was lost, and are skipped.
        limit: exclusive upper bound of the plan, by stream; None for no limit.
        budget: maximum bytes of the plan; ``at_least_one`` plans one epoch of any size.
        lease: seconds until the reader counts as away.
        skip_lost: report unexpected loss and skip it instead of stopping the reader.
        granted: the reader may get epochs that it was not granted before.
        control: types of control tuples that do not end a window; None for a reader without
            control tuples.
        tuples: maximum control tuples of the plan, ``payload`` their maximum bytes.
        once: a batch read: it claims its plan, under any policy of the route.
    """

    reader: str
    import_: str
    policy: str
    start: str
    positions: Mapping[str, int]
    call: tuple[str, int] | None = None
    own_streams: frozenset[str] = frozenset()
    has_opened: bool = False
    last: tuple[str, int] | None = None
    limit: Mapping[str, int] | None = None
    budget: int = 256 << 20
    at_least_one: bool = True
    lease: float = 5.0
    skip_lost: bool = False
    granted: bool = True
    control: frozenset[str] | None = None
    tuples: int = MAX_TUPLES
    payload: int = MAX_BYTES
    once: bool = False

    @property
    def wanted(self) -> tuple[object, ...]:
        """All but reader, import, policy and call: equal for equal readers."""
        return self[3:5] + self[6:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Epochs pinned for a reader, stream by stream.

    Attributes:
        finished: ``(stream, first, next)`` of the epochs acknowledged by this call.
        unknown_streams: the reader's ``own_streams`` that the export does not know.
        rowless_streams: end of the rowless epochs behind the plan, for readers without control.
        tuples: control tuples in the plan, ``payload`` their bytes.
    """

    planned: tuple[PlannedRange, ...]
    finished: tuple[tuple[str, int, int], ...] = ()
    bytes: int = 0
    last: tuple[str, int] | None = None
    routed: bool = True
    unknown_streams: tuple[str, ...] = ()
    rowless_streams: tuple[tuple[str, int], ...] = ()
    tuples: int = 0
    payload: int = 0
