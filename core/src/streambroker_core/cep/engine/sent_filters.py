"""Filters that the rows of a bucket have passed, and which rows a new rule can see."""

from __future__ import annotations

from collections.abc import Iterable

from streambroker_core.cep.engine.active_rule import ActiveRule
from streambroker_core.cep.rules.push_down import filter_covers


class SentFilters:
    """Filters of sent rows, each with its first window; None for a window with all rows."""

    def __init__(self, filters: Iterable[tuple[int, str | None]]) -> None:
        self.filters = [(window, text) for window, text in filters]

    def add(self, since: int, text: str | None, oldest: int | None) -> None:
        """Add the filter from a window on; `oldest` is the earliest window whose rows wait."""
        filters = [each for each in self.filters if each[0] != since]
        if text != (filters[-1][1] if filters else None):
            filters.append((since, text))
        if oldest is None:
            oldest = since
        obsolete = sum(1 for window, _ in filters[1:] if window <= oldest)
        self.filters = filters[obsolete:]

    def first_visible(self, since: int, active: ActiveRule) -> int:
        """Return the first window from which all rows that a new rule needs were sent.

        From window `since` on the rule is in the set, so its rows are sent.
        """
        first = 0
        for index, (window, text) in enumerate(self.filters):
            if window < since and not filter_covers(text, active.automaton):
                following = self.filters[index + 1 :]
                first = following[0][0] if following else since
        return min(first, since)
