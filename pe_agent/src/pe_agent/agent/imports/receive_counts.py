"""Counts of a reader of this agent: duplicates, successor streams, lag."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streambroker_core.ledger.offset import Offset
from streambroker_core.wire.agent_rpc.peer import PlannedRange

log = logging.getLogger("pe_agent")


@dataclass(slots=True)
class ReceiveCounts:
    """Counts of one reader since the agent's start.

    Attributes:
        duplicate_epochs: skipped epochs that an exporter published again after it lost its log.
        duplicate_rows: their rows.
        successors: number of streams that succeeded others.
        successor: export and stream of the last of them.
        lag_epochs: epochs that the reader has not read, as of its last call, by export.
    """

    duplicate_epochs: int = 0
    duplicate_rows: int = 0
    successors: int = 0
    successor: dict[str, str] | None = None
    lag_epochs: dict[str, int] = field(default_factory=dict)
    _counted: dict[str, int] = field(default_factory=dict)

    def note_plan(self, export: str, planned: Sequence[PlannedRange], start: Offset) -> None:
        """Count a plan; idempotent."""
        for plan in planned:
            known = self._counted.get(plan.stream)
            read_before = start.last.get(export) is not None
            if known is None and plan.stream not in start.streams and read_before:
                self.successors += 1
                self.successor = {"export": export, "stream": plan.stream}
                log.warning(
                    "export %s continues in stream %s: its checkpoint or its log is a new one,"
                    " or it has other columns",
                    export,
                    plan.stream,
                )
            if plan.duplicates[0] and plan.from_ > (known or 0):
                self.duplicate_epochs += plan.duplicates[0]
                self.duplicate_rows += plan.duplicates[1]
            self._counted[plan.stream] = max(known or 0, plan.from_)

    def note_lag(
        self,
        export: str,
        heads: Mapping[str, int] | None,
        start: Offset,
        rowless_until: Mapping[str, int] | None = None,
    ) -> None:
        """Record an export's lag above ``rowless_until``; unknown heads remove the entry."""
        if heads is None:
            self.lag_epochs.pop(export, None)
            return
        rowless = rowless_until or {}
        at = {s: max(start.streams[s].next, rowless.get(s, 0)) for s in heads if s in start.streams}
        self.lag_epochs[export] = sum(max(0, heads[s] - next_) for s, next_ in at.items())

    def status(self) -> dict[str, Any]:
        """Return the counts."""
        return {
            "duplicates": [self.duplicate_epochs, self.duplicate_rows],
            "successors": self.successors,
            "successor": self.successor,
            "lagEpochs": sum(self.lag_epochs.values()),
        }
