"""Latest side input metrics from the job's queries, in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
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
"""A query that reported so recently is kept, although `retain_running` does not list it yet."""


@dataclass(slots=True)
class _QueryReport:
    """Last reports of one operator by bucket (with window), and their receive time (monotonic)."""

    at: float
    buckets: dict[int, tuple[int, tuple[SideStatus, ...]]] = field(default_factory=dict)


class SideReports:
    """Keeps the last report of each bucket; thread-safe."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock, self._wall_clock = clock, wall_clock
        self._lock = threading.Lock()
        self._queries: dict[tuple[str, str], _QueryReport] = {}

    def record(self, buckets: Sequence[Any]) -> None:
        """Record metrics of ``buckets``; ignore those of an older window.

        Each has ``query``, ``operator``, ``bucket``, ``window`` and ``sides``.

        Raises:
            ManifestError: a field is invalid.
        """
        entries = Fields({"buckets": buckets}).entries("buckets", max_items=MAX_BUCKETS)
        read = [_read_bucket(entry) for entry in entries]
        with self._lock:
            for name, bucket, window, sides in read:
                query = self._queries.setdefault(name, _QueryReport(self._clock()))
                query.at = self._clock()
                if window >= query.buckets.get(bucket, (-1, ()))[0]:
                    query.buckets[bucket] = (window, sides)

    def retain_running(self, queries: Sequence[str]) -> None:
        """Forget the queries that are not in ``queries``, the ids of running ones."""
        running, since = set(queries), self._clock() - NEW_QUERY_SECONDS
        with self._lock:
            self._queries = {
                name: query
                for name, query in self._queries.items()
                if name[0] in running or query.at > since
            }

    def status(self) -> list[dict[str, Any]]:
        """Return the metrics of each side input; ``age`` is the seconds since their report."""
        result = []
        with self._lock:
            for (query, _), report in sorted(self._queries.items()):
                by_input: dict[str, list[SideStatus]] = {}
                for _, sides in report.buckets.values():
                    for side in sides:
                        by_input.setdefault(side.input, []).append(side)
                age = round(self._clock() - report.at, 1)
                for buckets in by_input.values():
                    side = merge_buckets(buckets)
                    result.append(
                        {
                            **write_side(side),
                            "query": query,
                            "age": age,
                            "waitingSeconds": self._seconds_since(side.waiting_since),
                            "versionSeconds": self._seconds_since(side.version_since),
                        }
                    )
        return result

    def _seconds_since(self, micros: int | None) -> float | None:
        return None if micros is None else round(max(0.0, self._wall_clock() - micros / 1e6), 1)


def _read_bucket(fields: Fields) -> tuple[tuple[str, str], int, int, tuple[SideStatus, ...]]:
    name = (fields.text("query"), fields.text("operator"))
    bucket = fields.integer("bucket", high=MAX_BUCKETS)
    return name, bucket, fields.integer("window", high=1 << 62), read_sides(fields, "sides")
