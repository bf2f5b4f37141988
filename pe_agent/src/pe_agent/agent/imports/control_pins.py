"""Control log entries that an offset pins."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from pe_agent.agent.imports.backpressure import GatedQuery
from pe_agent.agent.imports.readers import ImportReader, ImportReaders
from pe_agent.agent.state.control_log import ControlLog, ControlLogTwiceError
from streambroker_core.control.tuples import MAX_BYTES, MAX_TUPLES
from streambroker_core.ledger.offset import Offset
from streambroker_core.wire.agent_rpc.reader import ReaderNext
from streambroker_core.wire.broker.view import ImportPort

log = logging.getLogger("pe_agent")


@dataclass(slots=True)
class ControlBudget:
    """Control tuples, and their bytes, that a batch may still read."""

    tuples: int = MAX_TUPLES
    payload: int = MAX_BYTES

    def subtract(self, tuples: int, payload: int) -> None:
        """Subtract what a plan uses."""
        self.tuples -= tuples
        self.payload -= payload


def note_carrier(
    readers: ImportReaders, reader: ImportReader, query: GatedQuery | None, request: ReaderNext
) -> None:
    """Record whether a reader carries the control log.

    Raises:
        ControlLogTwiceError: another reader of the query does.
    """
    reader.carries_control_log = request.log
    if not reader.carries_control_log or query is None:
        return
    active = {r for of in readers.alive().values() for r in of}
    for other in sorted((query.readers & active) - {reader.id}):
        if readers[other].carries_control_log:
            reader.carries_control_log = False
            raise ControlLogTwiceError(
                f"query {query.id} would get each control tuple twice: its imports"
                f" {readers[other].import_} and {reader.import_} both carry the control"
                " log. Let one source of the query do it (option `controlLog`)."
            )


def pin_control_log(
    control_log: ControlLog,
    reader: ImportReader,
    import_: ImportPort | None,
    end: Offset,
    request: ReaderNext,
    budget: ControlBudget,
) -> Offset:
    """Return the offset with the control log entries that its batch reads.

    A new reader starts at the log's end with ``start: latest``, else at its first entry. A reader
    of a lost log starts at the first entry of the current one.
    """
    if not request.log:
        return end
    at = end.control.get(control_log.id)
    if at is None:
        earliest = import_ is not None and import_.start != "latest"
        at = control_log.first_retained() if end.control or earliest else control_log.next_seq
        if end.control:
            log.warning(
                "import %s continues with control log %s; the previous one is gone",
                reader.import_,
                control_log.id,
            )
        control_log.acknowledge(reader.id, at)
        return replace(end, control={control_log.id: at})
    control_log.acknowledge(reader.id, at)
    next_ = control_log.window_end(at, budget.tuples, budget.payload, request.log_limit)
    budget.subtract(next_ - at, control_log.size(at, next_))
    return replace(end, control={control_log.id: next_})


def has_control_before(
    control_log: ControlLog, start: Offset, end: Offset, request: ReaderNext
) -> bool:
    """Return whether entries of a log that ``start`` does not know come before all rows."""
    at = end.control.get(control_log.id)
    if at is None or control_log.id in start.control:
        return False
    return control_log.window_end(at, 1, 0, request.log_limit) > at
