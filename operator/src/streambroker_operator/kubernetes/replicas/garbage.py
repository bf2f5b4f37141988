"""Garbage collection of PEs without resources whose agents are silent.

Jobs often get new names. Without collection the state of finished jobs would stay forever, as would
the binding of their names to service accounts.
"""

from __future__ import annotations

from collections.abc import Iterable

from streambroker_core.model import PeKey

SILENT_S = 600.0
"""Seconds of silence after which an agent without resources is garbage."""


class PeGarbage:
    """Tracks since when PEs without resources are silent."""

    def __init__(self) -> None:
        self._since: dict[PeKey, tuple[str | None, float]] = {}

    def collect(self, portless: Iterable[tuple[PeKey, str | None]], now: float) -> list[PeKey]:
        """Return the PEs to remove, from PEs without resources and the last contact of each.

        `now` is monotonic, in seconds.
        """
        before, self._since, garbage = self._since, {}, []
        for pe, last_contact in portless:
            previous = before.get(pe)
            since = previous[1] if previous is not None and previous[0] == last_contact else now
            if now - since >= SILENT_S:
                garbage.append(pe)
            else:
                self._since[pe] = last_contact, since
        return garbage
