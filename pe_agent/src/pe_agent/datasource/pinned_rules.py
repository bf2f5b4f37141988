"""Rules that an import carries: which it has read, and which rows they have to see.

They stand in a control file. A tuple of it says in ``relevant`` which rows are needed until the
next one that does; that goes to the agent with how far the file is read, so both are of one offset.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_agent.log.line_tail import Lines

if TYPE_CHECKING:
    from pe_agent.aligned.control_source import ControlFileReader


def open_rules_file(path: str | None) -> PinnedRulesFile | None:
    """Return what reads the rules of an import; None if it carries none."""
    return None if path is None else PinnedRulesFile(path)


class PinnedRulesFile:
    """A control file with rules, as one reader of an import reads it."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._pinned: dict[str, Any] = {"next": -1}

    @cached_property
    def _file(self) -> ControlFileReader:
        from pe_agent.aligned.control_source import ControlFileReader  # tasks do without

        return ControlFileReader(self._path)

    def freeze_end(self) -> None:
        """Read what there is now, and no more."""
        self._file.prepareForTriggerAvailableNow()

    def request_fields(self, start: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the agent is told.

        A window has so many rules as a window takes of a control file. With those that are not
        the last no row is asked for: none is seen by rules that have been replaced.

        Args:
            start: offset behind the batch before.

        Returns:
            ``rules``: ``log``, ``next``, ``relevant`` (a filter, None for every row) and ``why``
            that is so; and ``limit``, below which there is no row, if the window has not all rules.
        """
        before = start.get("rules") or {"next": 0}
        at = self._file.latestOffset(before, None)
        if at["next"] != self._pinned["next"]:
            self._pinned = {"log": at["log"], "next": at["next"], **self._last_relevant(at["next"])}
        asked = {"rules": dict(self._pinned)}
        return asked if self.has_read_all(asked) else {**asked, "limit": {}}

    def _last_relevant(self, count: int) -> dict[str, Any]:
        for line in Lines(self._path).backwards(count):
            payload = json.loads(line)["payload"]
            if isinstance(payload, dict) and "relevant" in payload:
                return {"relevant": payload["relevant"], "why": payload["whole"]}
        return {"relevant": None, "why": "nothing is said of the rows that rules have to see"}

    def has_read_all(self, start: Mapping[str, Any]) -> bool:
        """Whether an offset has all rules that there are."""
        pinned = start.get("rules")
        return pinned is not None and pinned["next"] == self._file.latestOffset({}, None)["next"]

    def add_rule_slices(
        self,
        start: Mapping[str, Any],
        end: Mapping[str, Any],
        tickets: Sequence[dict[str, Any]],
        event_time: str | None,
    ) -> list[dict[str, Any]]:
        """Return the slices of a batch, with one that has its rules.

        Args:
            start: offset behind the batch before.
            end: offset behind the batch.
            tickets: slices of rows and of other control tuples.
            event_time: column with the event time; None if there is none.

        Raises:
            AlignedError: the file is another one, or has lost lines.
        """
        pinned = end.get("rules")
        if pinned is None:
            return list(tickets)
        found = [dict(one) for one in tickets]
        for one in found:
            if event_time is not None and one["filter"] != pinned["own"]:
                one["latest"] = {"column": event_time, "filter": pinned["own"]}
        before = start.get("rules") or {"log": pinned["log"], "next": 0}
        for part in self._file.partitions(before, pinned):
            tuples = [[0, json.loads(line)] for line in part.value]
            found.append(
                {"control": True, "tuples": tuples, "part": 0, "before": [0], "filter": None}
            )
        return found
