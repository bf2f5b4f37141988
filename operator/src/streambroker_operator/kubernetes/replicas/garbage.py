"""PEs that nothing is left of: no resource, and no agent that says anything.

Jobs come and go under ever new names. What was known of those that are gone would stay for
ever, and so would the binding of their names to service accounts.
"""

from __future__ import annotations

from collections.abc import Iterable

from streambroker_core.model import PeKey

SILENT_S = 600.0
"""For how long an agent without resources may say nothing here, in seconds."""


class PeGarbage:
    """Since when nothing was heard of PEs without resources."""

    def __init__(self) -> None:
        self._since: dict[PeKey, tuple[str | None, float]] = {}

    def collect(self, portless: Iterable[tuple[PeKey, str | None]], now: float) -> list[PeKey]:
        """Return the PEs to be forgotten.

        Args:
            portless: the PEs that have no resource, and when each was heard of last, as it is told.
            now: of a monotonic clock, in seconds.
        """
        before, self._since, found = self._since, {}, []
        for pe, heard in portless:
            known = before.get(pe)
            since = known[1] if known is not None and known[0] == heard else now
            if now - since >= SILENT_S:
                found.append(pe)
            else:
                self._since[pe] = heard, since
        return found
