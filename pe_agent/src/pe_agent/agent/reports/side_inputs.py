"""What the queries of the job tell of their side inputs: figures of the moment, in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.reports.side_status import (
    SideStatus,
    merge_buckets,
    read_sides,
    write_side,
)

MAX_BUCKETS = 1 << 16
NEW_QUERY_SECONDS = 10.0
"""A query that told so lately is taken to be there, whoever has not seen it yet."""


@dataclass(slots=True)
class _QueryReport:
    """What one operator of a query told: window and figures by bucket, and when (monotonic)."""

    at: float
    buckets: dict[int, tuple[int, tuple[SideStatus, ...]]] = field(default_factory=dict)


class SideReports:
    """Keeps the last figures of each bucket; safe to call from any thread.

    Args:
        clock: a monotonic clock, in seconds.
        wall_clock: seconds since 1970.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock, self._wall_clock = clock, wall_clock
        self._lock = threading.Lock()
        self._queries: dict[tuple[str, str], _QueryReport] = {}

    def record(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Take figures of buckets; those of an older window than what is known are passed over.

        Args:
            body: ``buckets``: of each ``query``, ``operator``, ``bucket``, ``window`` and ``sides``
                as ``read_sides`` reads them.

        Raises:
            ManifestError: a field is wrong.
        """
        given = Fields(body)
        read = [
            _read_bucket(given.entry("buckets", number, one))
            for number, one in enumerate(given.items("buckets", max_items=MAX_BUCKETS))
        ]
        with self._lock:
            for name, bucket, window, sides in read:
                query = self._queries.setdefault(name, _QueryReport(self._clock()))
                query.at = self._clock()
                if window >= query.buckets.get(bucket, (-1, ()))[0]:
                    query.buckets[bucket] = (window, sides)
        return {}

    def retain_running(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Forget the queries that do not run any more.

        Args:
            body: ``queries``: the ids of those that run.
        """
        there, since = set(body["queries"]), self._clock() - NEW_QUERY_SECONDS
        with self._lock:
            self._queries = {
                name: query
                for name, query in self._queries.items()
                if name[0] in there or query.at > since
            }
        return {}

    def status(self) -> list[dict[str, Any]]:
        """Return the figures of each side input, with the seconds since each time in them.

        ``format_age`` are those since they came.
        """
        found = []
        with self._lock:
            for (query, _), told in sorted(self._queries.items()):
                by_input: dict[str, list[SideStatus]] = {}
                for _, sides in told.buckets.values():
                    for side in sides:
                        by_input.setdefault(side.input, []).append(side)
                age = round(self._clock() - told.at, 1)
                for several in by_input.values():
                    side = merge_buckets(several)
                    found.append(
                        {
                            **write_side(side),
                            "query": query,
                            "age": age,
                            "waitingSeconds": self._seconds_since(side.waiting_since),
                            "versionSeconds": self._seconds_since(side.version_since),
                        }
                    )
        return found

    def _seconds_since(self, micros: int | None) -> float | None:
        return None if micros is None else round(max(0.0, self._wall_clock() - micros / 1e6), 1)


def _read_bucket(fields: Fields) -> tuple[tuple[str, str], int, int, tuple[SideStatus, ...]]:
    name = (fields.text("query"), fields.text("operator"))
    bucket = fields.integer("bucket", high=MAX_BUCKETS)
    return name, bucket, fields.integer("window", high=1 << 62), read_sides(fields, "sides")
