"""Slice planner: registers a batch's plan again and divides its blocks among tasks."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pe_agent.agent.imports.import_state import ImportState
from pe_agent.agent.imports.peer_agents import PLAN_SECONDS, READER_LEASE
from pe_agent.agent.imports.readers import ImportReader, Missed
from pe_agent.transport.agent_client import AgentClient, send
from pe_agent.transport.flight_errors import AgentRefusedError, AgentUnreachableError
from streambroker_core.control.tuples.envelope import encode
from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.losses import MissingRange
from streambroker_core.ledger.offset import BlockRange, Offset, cut_slices, ranges, sum_losses
from streambroker_core.model import port_of
from streambroker_core.wire.agent_rpc.peer import PeerReplan, RegisteredPlan
from streambroker_core.wire.agent_rpc.reader import (
    Busy,
    Located,
    ReaderSlices,
    ReaderWhere,
    Slices,
)


class PlanRefusedError(StreambrokerError):
    """The exporter's agent refuses a plan; the caller retries for a while."""

    code = "PlanRefused"


@dataclass(frozen=True, slots=True)
class _ExportBatch:
    """Part of a batch at one exporter: the epochs ``planned_ranges`` between two offsets.

    ``stream_numbers`` numbers the streams of all exporters, with ``control`` only. ``traces`` takes
    the contexts of the epochs' spans.
    """

    start: Offset
    end: Offset
    planned_ranges: Mapping[str, tuple[int, int]]
    skip_lost: bool
    control: bool
    stream_numbers: Iterator[int]
    traces: list[str]


class SlicePlanner:
    """Requests of Spark's ``partitions``, and of tasks that lost their agent."""

    def __init__(self, state: ImportState) -> None:
        self._state = state

    def plan_slices(self, request: ReaderSlices) -> Slices | Busy:
        """Answer ``partitions``: register the plan of a batch again and cut it into slices.

        Omitted epochs are missing from all slices alike.

        Raises:
            AgentUnreachableError, PlanRefusedError: an exporter is away, or refuses; the caller
                retries.
            DataLossError: planned epochs are missing, and the reader is not lossy.
        """
        began = time.time_ns()
        start, end = Offset.decode(request.start), Offset.decode(request.end)
        reader = self._state.claim(request, str(end.reader))
        if isinstance(reader, Busy):
            return reader
        wanted = ranges(start, end)
        lossy, give_up = request.lossy, request.lossy and request.give_up
        slices: list[dict[str, Any]] = []
        lost: dict[str, list[MissingRange]] = {}
        by_export = self._group_by_export(reader, wanted)
        parts, traces = itertools.count(), list[str]()
        for stream in by_export.pop(None, ()):
            if not (give_up and self._all_reachable(reader)):
                raise AgentUnreachableError(
                    f"no exporter that answers has stream {stream}, which the checkpoint plans to"
                    f" read (exports read so far: {', '.join(end.last) or 'none'})."
                )
            lost[stream] = [(*wanted[stream], None)]
        reader.finished -= {e for e in by_export if e is not None}
        for export, streams in sorted((e, s) for e, s in by_export.items() if e is not None):
            export_ranges = {s: wanted[s] for s in streams}
            batch = _ExportBatch(start, end, export_ranges, lossy, request.control, parts, traces)
            try:
                cut_, missing = self._plan_export(reader, export, batch)
            except (AgentUnreachableError, PlanRefusedError):
                if not (give_up and self._is_unrouted(reader, export)):
                    raise
                cut_, missing = [], {s: [(*wanted[s], None)] for s in streams}
            slices += cut_
            lost |= missing
        slices += self._control_log_slices(start, end, skip_lost=lossy)
        self._note_missed(reader, end, lost)
        if self._state.tracing is not None:
            context = self._state.tracing.plan(reader.id, reader.import_, end, traces, began)
            slices = [{**ticket, "traceparent": context} for ticket in slices]
        return Slices(slices=slices, lost={s: [g[:2] for g in of] for s, of in lost.items()})

    def _control_log_slices(
        self, start: Offset, end: Offset, *, skip_lost: bool
    ) -> list[dict[str, Any]]:
        """Return the slice of a batch's control log entries; the slice carries the tuples."""
        tuples: list[list[Any]] = []
        for id_, next_ in end.control.items():
            first = start.control.get(id_, next_)
            if first < next_:
                entries = self._state.control_log.read_range(id_, first, next_, skip_lost=skip_lost)
                tuples += [[0, encode(one)] for one in entries]
        if not tuples:
            return []
        return [{"control": True, "tuples": tuples, "part": 0, "before": [0], "filter": None}]

    def _note_missed(
        self, reader: ImportReader, end: Offset, missing: Mapping[str, list[MissingRange]]
    ) -> None:
        """Record what a batch lacks; the next offset includes it."""
        missed = {
            stream: Missed(
                already_lost=end.lost.get(stream, (0, 0))[0],
                next=end.streams[stream].next,
                lost=sum_losses((next_ - first, rows) for first, next_, rows in of),
            )
            for stream, of in missing.items()
        }
        self._state.readers.note_missed(reader, missed)

    def _group_by_export(
        self, reader: ImportReader, planned_ranges: Mapping[str, Any]
    ) -> dict[str | None, list[str]]:
        """Group streams by export, None for unknown; exporters are asked for unknown streams."""
        unknown = [s for s in planned_ranges if s not in reader.export_by_stream]
        if unknown:
            self._find_streams(reader, unknown)
        result: dict[str | None, list[str]] = {}
        for stream in planned_ranges:
            result.setdefault(reader.export_by_stream.get(stream), []).append(stream)
        return result

    def _all_reachable(self, reader: ImportReader) -> bool:
        import_ = self._state.routes.find_import(port_of(reader.import_))
        return import_ is not None and all(
            r.location is not None
            and self._state.peers.heads(str(r.export)) is not None
            and not self._state.peers.is_away(r.location)
            for r in import_.routes
        )

    def _is_unrouted(self, reader: ImportReader, export: str) -> bool:
        import_ = self._state.routes.find_import(port_of(reader.import_))
        return import_ is not None and export not in {str(r.export) for r in import_.routes}

    def _find_streams(self, reader: ImportReader, streams: list[str]) -> None:
        import_ = self._state.routes.find_import(port_of(reader.import_))
        for route in import_.routes if import_ else ():
            heads = self._state.peers.heads(str(route.export)) or {}
            present = [s for s in streams if s in heads]
            if present and route.location is not None:
                self._state.readers.note_export(reader, str(route.export), route.location, present)

    def _plan_export(
        self, reader: ImportReader, export: str, batch: _ExportBatch
    ) -> tuple[list[dict[str, Any]], dict[str, list[MissingRange]]]:
        end = batch.end
        columns = None if end.columns is None else list(end.columns)
        location, capability = self._state.find_route(reader, export)
        response = _register_plan(
            location,
            PeerReplan(
                export=export,
                import_=reader.import_,
                reader=reader.id,
                call=self._state.readers.number_plan_call(reader),
                capability=capability,
                pass_=reader.passes.get(export),
                lease=READER_LEASE,
                positions=self._state.positions(reader, export, batch.start),
                own=self._state.own_streams(reader, export, batch.start),
                ranges=batch.planned_ranges,
                lossy=batch.skip_lost,
                filter=end.filter,
                columns=columns,
                control=[] if batch.control else None,
            ),
        )
        self._state.readers.note_export(
            reader, export, location, batch.planned_ranges, response.pass_
        )
        common = {
            "location": location,
            "export": export,
            "reader": reader.id,
            "import": reader.import_,
            "filter": end.filter,
            "columns": columns,
            # Exporters of the previous release send no grant, and need none.
            **({} if response.grant is None else {"grant": response.grant}),
        }
        batch.traces.extend(response.traces)
        slices = []
        for stream in response.order or response.blocks:
            epochs = response.blocks[stream]
            numbers = (
                _RowNumbers.from_epochs(next(batch.stream_numbers), epochs)
                if batch.control
                else None
            )
            slices += cut_stream(common, stream, response, numbers)
            if numbers and (control := response.control.get(stream)):
                slices.append({**common, **numbers.for_control(stream, control)})
        missing = {s: [(g[0], g[1], g[2]) for g in of] for s, of in response.gone.items()}
        return slices, missing

    def locate(self, request: ReaderWhere) -> Located:
        """Return the current address of an export's agent, for a task that has lost it.

        Raises:
            AgentUnreachableError: no route leads to the export.
        """
        known = self._state.snapshots.get(request.reader)
        reader = known or self._state.readers[request.reader]
        return Located(location=self._state.find_route(reader, request.export)[0])


@dataclass(frozen=True, slots=True)
class _RowNumbers:
    """Positions of rows among all rows of a stream in one batch, before any filter.

    Attributes:
        stream_number: number of the stream in the batch.
        rows: total rows.
        epochs: rows before each epoch.
        blocks: rows before each block, by epoch.
    """

    stream_number: int
    rows: int
    epochs: Mapping[int, int]
    blocks: Mapping[int, list[int]]

    @staticmethod
    def from_epochs(stream_number: int, epochs: Mapping[str, list[list[int]]]) -> _RowNumbers:
        """Count the rows of a stream's epochs from the exporter's block lists."""
        before, rows = dict[int, int](), 0
        blocks: dict[int, list[int]] = {}
        for number, of in sorted((int(n), of) for n, of in epochs.items()):
            before[number] = rows
            blocks[number] = []
            for count, _ in of:
                blocks[number].append(rows)
                rows += count
        return _RowNumbers(stream_number, rows, before, blocks)

    def for_slice(self, pieces: list[BlockRange]) -> dict[str, Any]:
        """Return the row positions for a slice's ticket, by block."""
        return {
            "part": self.stream_number,
            "rows": self.rows,
            "before": [n for p in pieces for n in self.blocks[p.epoch][p.first : p.last]],
            "numbered": True,
        }

    def for_control(self, stream: str, epochs: Sequence[int]) -> dict[str, Any]:
        """Return the ticket fields for a stream's control tuples, by epoch."""
        return {
            "control": True,
            "stream": stream,
            "pieces": [[n, 0, 1] for n in epochs],
            "part": self.stream_number,
            "rows": self.rows,
            "before": [self.epochs[n] for n in epochs],
        }


def cut_stream(
    common: Mapping[str, Any],
    stream: str,
    response: RegisteredPlan,
    numbers: _RowNumbers | None = None,
) -> list[dict[str, Any]]:
    """Cut the planned blocks of a stream; each ticket has the fields of ``common``."""
    epochs, direct = response.blocks[stream], set(response.direct.get(stream, ()))
    return [
        {
            **common,
            "stream": stream,
            "pieces": [[p.epoch, p.first, p.last] for p in pieces],
            **(numbers.for_slice(pieces) if numbers else {}),
            **({"direct": True} if direct.issuperset(p.epoch for p in pieces) else {}),
        }
        for pieces in cut_slices({int(n): [size for _, size in of] for n, of in epochs.items()})
    ]


def _register_plan(location: str, request: PeerReplan) -> RegisteredPlan:
    """Register a plan at an exporter's agent; loss, revocation and policies are final.

    Raises:
        PlanRefusedError: refused, perhaps only until both agents have the same view.
    """
    try:
        return send(AgentClient(location), request, timeout=PLAN_SECONDS)
    except AgentRefusedError as error:
        if error.code in ("DataLoss", "PolicyDenied", "Revoked"):
            raise
        raise PlanRefusedError(f"{error.code}: {error}") from error
