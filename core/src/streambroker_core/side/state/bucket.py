"""State of one bucket: side inputs, waiting rows, rows ahead of the watermark, and counters."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from streambroker_core.control.operators.operator import Blobs, Changes, StateError
from streambroker_core.side.control_messages import ControlMessage, SideComplete, SideVersion
from streambroker_core.side.definition import MAIN
from streambroker_core.side.errors import SideError, SideTooLargeError
from streambroker_core.side.state.event_queue import EventQueue
from streambroker_core.side.state.input_state import SideState, TableReader
from streambroker_core.side.state.layout import StateLayout
from streambroker_core.side.state.waiting_rows import GROUP, WaitingRows
from streambroker_core.side.windows import is_start

_META = "side"


class BucketState:
    """State of one bucket.

    Attributes:
        sides: state of each side input, by its number.
        waiting: main rows that wait for something.
        queue: rows and control messages ahead of the watermark.
        numbers: number of each side input, by its name.
        last_times: greatest event time of each side input that was received.
        policies_changed: the state was written under other policies.
    """

    def __init__(self, layout: StateLayout, tables: TableReader | None, blobs: Blobs) -> None:
        """Restore the state; raise StateError if it is damaged or of another definition."""
        self._layout, self._meta = layout, blobs.get(_META)
        try:
            dumped = json.loads(self._meta) if self._meta is not None else {}
        except ValueError as error:
            raise StateError(f"state {_META} is damaged: {error}.") from error
        inputs = layout.join.inputs
        sides = dumped.get("sides") or [None] * len(inputs)
        if len(sides) != len(inputs):
            raise StateError(
                f"the state is of {len(sides)} side inputs, the operator has {len(inputs)}."
                " Start a new checkpoint."
            )
        self._check_form_digests(dumped.get("forms"))
        self.policies_changed = bool(dumped) and dumped.get("policies") != layout.policy_digest
        self.sides = [
            SideState(layout, number, blobs, sides[number], tables) for number in range(len(inputs))
        ]
        self.waiting = WaitingRows(layout, blobs, dumped.get("waiting", []))
        schemas = [*(one.schema for one in inputs), layout.join.schema] if layout.is_by_time else []
        self.queue = EventQueue(schemas, blobs, dumped.get("control", []))
        self.last_times: list[int | None] = dumped.get("last") or [None] * len(inputs)
        self.numbers = {one.name: number for number, one in enumerate(inputs)}
        self._seq: int = dumped.get("seq", 0)

    def _check_form_digests(self, stored: list[str] | None) -> None:
        """Reject state of another definition, whose bytes would be misread."""
        names = [*(one.name for one in self._layout.join.inputs), MAIN]
        for name, form, before in zip(names, self._layout.form_digests, stored or (), strict=False):
            if form != before:
                what = "order, key" if name == MAIN else "name, kind, key, values"
                raise StateError(
                    f"the state of `{name}` has another definition: its {what}, columns, types or"
                    " windows have changed. Define it as before, or start a new checkpoint."
                )

    def next_seqs(self, rows: int) -> pa.Array:
        """Return the sequence numbers of the next rows."""
        self._seq += rows
        return pa.arange(self._seq - rows, self._seq)

    def check_control(self, message: ControlMessage) -> None:
        """Check that a control message fits its side input.

        Raises:
            SideError: it is for a stream, and the side input a table, or the reverse; there is no
                such window; or ``whole`` is set although rows are visible on arrival, so there is
                no load to replace.
        """
        side, start = self.sides[self.numbers[message["input"]]].side, message.get("window")
        problem = None
        if message["type"] == SideVersion.__name__:
            if not side.static:
                problem = "is a stream; send SideComplete instead"
        elif side.static:
            problem = "is a table; send SideVersion instead"
        elif message.get("whole") and side.readiness != "complete":
            problem = (
                "is seen row by row, so it cannot be replaced as a whole; define it with"
                " ready='complete'"
            )
        elif start is not None and not is_start(side.windows, start):
            problem = f"has no window that begins at {start}: {side.windows}"
        if problem is not None:
            raise SideError(side.name, f"Side input `{side.name}` {problem}.")

    def apply_control(self, message: ControlMessage, now: int) -> tuple[int, int | None]:
        """Apply a control message; return its side input and window, None for every window."""
        self.check_control(message)
        number = self.numbers[message["input"]]
        state = self.sides[number]
        if message["type"] == SideVersion.__name__:
            state.set_version(str(message["version"]), now)
            return number, None
        window = message.get("window")
        whole, version = bool(message.get("whole")), message.get("version")
        state.complete(window, whole=whole, version=version, now=now)
        return number, window

    def effective_time(self, message: ControlMessage, watermark: int | None) -> int | None:
        """Return the event time at which a control message takes effect; None for now."""
        if not self._layout.is_by_time:
            return None
        at = message.get("at")
        if at is None and message["type"] == SideComplete.__name__:
            at = self.last_times[self.numbers[message["input"]]]
        return at if at is not None and (watermark is None or at > watermark) else None

    def changes(self) -> Changes:
        """Return the blobs to write; None marks a removed blob."""
        out: Changes = {}
        for state in self.sides:
            out.update(state.changes())
        out.update(self.waiting.changes())
        out.update(self.queue.changes())
        meta = json.dumps(
            {
                "seq": self._seq,
                "last": self.last_times,
                "sides": [state.dump() for state in self.sides],
                "waiting": self.waiting.dump(),
                "control": self.queue.dump(),
                "forms": self._layout.form_digests,
                "policies": self._layout.policy_digest,
            },
            sort_keys=True,
            separators=(",", ":"),
        ).encode()
        if meta != self._meta:
            out[_META] = meta
        return out

    def metrics(self) -> dict[str, Any]:
        """Return sizes and counts, by side input and for waiting rows."""
        stalls = self.waiting.stalls()
        queued, size = self.queue.sizes()
        return {
            "waiting_rows": sum(stall.rows for stall in stalls),
            "waiting_bytes": sum(stall.size for stall in stalls),
            "waiting_since": min((s.since for s in stalls if s.since is not None), default=None),
            "unordered_rows": queued,
            "unordered_bytes": size,
            "inputs": {
                state.side.name: {
                    **state.metrics(),
                    "version": state.version,
                    "version_since": state.version_since,
                }
                for state in self.sides
            },
        }

    def check_size(self) -> None:
        """Raise SideTooLargeError if too many rows or bytes wait."""
        rows, size = self.queue.sizes()
        size += self.waiting.size
        join = self._layout.join
        if size > join.max_waiting_bytes:
            raise self._too_many(
                "bytes of rows that wait in one bucket", size, join.max_waiting_bytes
            )
        if rows + self.waiting.max_count <= join.max_waiting_rows:
            return
        rows += sum(stall.rows for stall in self.waiting.stalls())
        if rows > join.max_waiting_rows:
            raise self._too_many(
                "rows that wait in one bucket", rows, self._layout.join.max_waiting_rows
            )

    def _too_many(self, what: str, actual: int, limit: int) -> SideTooLargeError:
        stalls = self.waiting.stalls()
        name = MAIN
        if stalls:
            worst = max(stalls, key=lambda stall: stall.rows)
            name = self._layout.join.inputs[worst.input].name if worst.input != GROUP else MAIN
        remedy = "is its stream running? Set timeout=, or ready='not required', or raise the limit"
        return SideTooLargeError(name, what, actual, limit, remedy)
