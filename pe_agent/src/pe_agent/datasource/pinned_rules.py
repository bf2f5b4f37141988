"""Rules that an import carries: how many it has read, and which rows they have to see.

The rules are in a control file. The field ``relevant`` of a tuple is the filter of needed rows, up
to the next tuple with that field. The request to the agent contains the filter and the file
position together, so both belong to the same offset.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from pe_agent.log.control_file import ControlFileOffsets, FileOffset
from pe_agent.log.line_tail import Lines
from pe_agent.transport.messages import Ticket
from streambroker_core.wire.agent_rpc.reader import RulesPosition


class PinnedRules(TypedDict):
    """Position in the file that an offset pins, and the Import's own filter."""

    log: str
    next: int
    own: str | None


class PinnedRulesFile:
    """A control file with rules, as read by one reader of an import."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._file = ControlFileOffsets(self._path)
        self._pinned: RulesPosition | None = None

    def freeze_end(self) -> None:
        """Limit reading to the current end of the file."""
        self._file.freeze_end()

    def position(self, start: PinnedRules | None) -> RulesPosition:
        """Return the position behind the rules of a batch whose start offset pins ``start``.

        A window takes a limited number of tuples of a control file.
        """
        at = self._file.latest({"next": 0} if start is None else _file_offset(start))
        if self._pinned is None or at["next"] != self._pinned.next:
            relevant, why = self._last_relevant(at["next"])
            self._pinned = RulesPosition(log=at["log"], next=at["next"], relevant=relevant, why=why)
        return self._pinned

    def _last_relevant(self, count: int) -> tuple[str | None, str]:
        """Return the filter of needed rows, None for every row and why."""
        for line in Lines(self._path).backwards(count):
            payload = json.loads(line)["payload"]
            if isinstance(payload, dict) and "relevant" in payload:
                return payload["relevant"], payload["whole"]
        return None, "the rules file does not declare which rows the rules have to see"

    def is_last(self, next_: int) -> bool:
        """Return whether the file has no rules behind a position."""
        return next_ == self._file.count()

    def has_read_all(self, pinned: PinnedRules | None) -> bool:
        """Return whether an offset includes all rules in the file."""
        return pinned is not None and self.is_last(pinned["next"])

    def add_rule_slices(
        self,
        start: PinnedRules | None,
        end: PinnedRules | None,
        tickets: Sequence[Ticket],
        event_time: str | None,
    ) -> list[Ticket]:
        """Return the slices of a batch, with one that has its rules, from start to end offset."""
        if end is None:
            return list(tickets)
        slices = [one.copy() for one in tickets]
        for one in slices:
            if event_time is not None and one["filter"] != end["own"]:
                one["latest"] = {"column": event_time, "filter": end["own"]}
        before = start or PinnedRules(log=end["log"], next=0, own=None)
        if lines := self._file.read(_file_offset(before), _file_offset(end)):
            tuples = [[0, json.loads(line)] for line in lines]
            slices.append(
                {"control": True, "tuples": tuples, "part": 0, "before": [0], "filter": None}
            )
        return slices


def _file_offset(pinned: PinnedRules) -> FileOffset:
    return {"log": pinned["log"], "next": pinned["next"]}
