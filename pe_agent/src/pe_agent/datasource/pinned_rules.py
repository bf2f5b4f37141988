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


def open_rules_file(path: str | None) -> PinnedRulesFile | None:
    """Return the reader of an import's rules; None if it carries none."""
    return None if path is None else PinnedRulesFile(path)


class PinnedRulesFile:
    """A control file with rules, as read by one reader of an import."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._file = ControlFileOffsets(self._path)
        self._pinned: dict[str, Any] = {"next": -1}

    def freeze_end(self) -> None:
        """Limit reading to the current end of the file."""
        self._file.freeze_end()

    def request_fields(self, start: Mapping[str, Any]) -> dict[str, Any]:
        """Return the rule fields of the request to the agent.

        A window takes a limited number of tuples of a control file. Until the last rules are
        read, no rows are requested, so replaced rules never see a row.

        Args:
            start: start offset of the batch.

        Returns:
            ``rules``: ``log``, ``next``, ``relevant`` (a filter, None for every row) and ``why``
            (the reason for None). ``limit`` is empty, which allows no rows, if rules remain unread.
        """
        before = start.get("rules") or {"next": 0}
        at = self._file.latest(before)
        if at["next"] != self._pinned["next"]:
            self._pinned = {"log": at["log"], "next": at["next"], **self._last_relevant(at["next"])}
        fields = {"rules": dict(self._pinned)}
        return fields if self.has_read_all(fields) else {**fields, "limit": {}}

    def _last_relevant(self, count: int) -> dict[str, Any]:
        for line in Lines(self._path).backwards(count):
            payload = json.loads(line)["payload"]
            if isinstance(payload, dict) and "relevant" in payload:
                return {"relevant": payload["relevant"], "why": payload["whole"]}
        return {
            "relevant": None,
            "why": ("the rules file does not declare which rows the rules have to see"),
        }

    def has_read_all(self, start: Mapping[str, Any]) -> bool:
        """Return whether an offset includes all rules in the file."""
        pinned = start.get("rules")
        return pinned is not None and pinned["next"] == self._file.latest({})["next"]

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
