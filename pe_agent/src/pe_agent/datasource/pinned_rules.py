"""Rules that an import carries: how many it has read, and which rows they have to see.

The rules are in a control file. The field ``relevant`` of a tuple is the filter of needed rows, up
to the next tuple with that field. The request to the agent contains the filter and the file
position together, so both belong to the same offset.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pe_agent.log.control_file import ControlFileOffsets
from pe_agent.log.line_tail import Lines
from streambroker_core.wire.agent_rpc.reader import RulesPosition


class PinnedRulesFile:
    """A control file with rules, as read by one reader of an import."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._file = ControlFileOffsets(self._path)
        self._pinned: RulesPosition | None = None

    def freeze_end(self) -> None:
        """Limit reading to the current end of the file."""
        self._file.freeze_end()

    def position(self, start: Mapping[str, Any]) -> RulesPosition:
        """Return the position behind the rules of a batch that begins at ``start``.

        A window takes a limited number of tuples of a control file.
        """
        at = self._file.latest(start.get("rules") or {"next": 0})
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
        last: int = self._file.latest({})["next"]
        return next_ == last

    def has_read_all(self, start: Mapping[str, Any]) -> bool:
        """Return whether an offset includes all rules in the file."""
        pinned = start.get("rules")
        return pinned is not None and self.is_last(pinned["next"])

    def add_rule_slices(
        self,
        start: Mapping[str, Any],
        end: Mapping[str, Any],
        tickets: Sequence[dict[str, Any]],
        event_time: str | None,
    ) -> list[dict[str, Any]]:
        """Return the slices of a batch, with one that has its rules, from start to end offset."""
        pinned = end.get("rules")
        if pinned is None:
            return list(tickets)
        slices = [dict(one) for one in tickets]
        for one in slices:
            if event_time is not None and one["filter"] != pinned["own"]:
                one["latest"] = {"column": event_time, "filter": pinned["own"]}
        before = start.get("rules") or {"log": pinned["log"], "next": 0}
        if lines := self._file.read(before, pinned):
            tuples = [[0, json.loads(line)] for line in lines]
            slices.append(
                {"control": True, "tuples": tuples, "part": 0, "before": [0], "filter": None}
            )
        return slices
