"""What the queries of the job tell of their side inputs: figures of the moment, in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.reports.side_status import ToldSide, read_sides, together, write_side

MOST_BUCKETS = 1 << 16
NEW_SECONDS = 10.0
"""A query that told so lately is taken to be there, whoever has not seen it yet."""


@dataclass(slots=True)
class _Query:
    """What one operator of a query told: window and figures by bucket, and when (monotonic)."""

    at: float
    buckets: dict[int, tuple[int, tuple[ToldSide, ...]]] = field(default_factory=dict)


class JobSides:
    """Keeps the last figures of each bucket; safe to call from any thread.

    Args:
        clock: a monotonic clock, in seconds.
        today: seconds since 1970.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], float] = time.time,
    ) -> None:
        self._clock, self._today = clock, today
        self._lock = threading.Lock()
        self._queries: dict[tuple[str, str], _Query] = {}

    def take(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Take figures of buckets; those of an older window than what is known are passed over.

        Args:
            body: ``buckets``: of each ``query``, ``operator``, ``bucket``, ``window`` and ``sides``
                as ``read_sides`` reads them.

        Raises:
            ManifestError: a field is wrong.
        """
        given = Fields(body)
        read = [
            _read(given.entry("buckets", number, one))
            for number, one in enumerate(given.items("buckets", most=MOST_BUCKETS))
        ]
        with self._lock:
            for name, bucket, window, sides in read:
                query = self._queries.setdefault(name, _Query(self._clock()))
                query.at = self._clock()
                if window >= query.buckets.get(bucket, (-1, ()))[0]:
                    query.buckets[bucket] = (window, sides)
        return {}

    def running(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Forget the queries that do not run any more.

        Args:
            body: ``queries``: the ids of those that run.
        """
        there, since = set(body["queries"]), self._clock() - NEW_SECONDS
        with self._lock:
            self._queries = {
                name: query
                for name, query in self._queries.items()
                if name[0] in there or query.at > since
            }
        return {}

    def status(self) -> list[dict[str, Any]]:
        """Return the figures of each side input, with the seconds since each time in them.

        ``age`` are those since they came.
        """
        found = []
        with self._lock:
            for (query, _), told in sorted(self._queries.items()):
                by_input: dict[str, list[ToldSide]] = {}
                for _, sides in told.buckets.values():
                    for side in sides:
                        by_input.setdefault(side.input, []).append(side)
                age = round(self._clock() - told.at, 1)
                for several in by_input.values():
                    side = together(several)
                    found.append(
                        {
                            **write_side(side),
                            "query": query,
                            "age": age,
                            "waitingSeconds": self._since(side.waiting_since),
                            "versionSeconds": self._since(side.version_since),
                        }
                    )
        return found

    def _since(self, micros: int | None) -> float | None:
        return None if micros is None else round(max(0.0, self._today() - micros / 1e6), 1)


def _read(given: Fields) -> tuple[tuple[str, str], int, int, tuple[ToldSide, ...]]:
    name = (given.text("query"), given.text("operator"))
    bucket = given.integer("bucket", high=MOST_BUCKETS)
    return name, bucket, given.integer("window", high=1 << 62), read_sides(given, "sides")
