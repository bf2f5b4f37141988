"""Rates at which an exporter's agent sends bytes: per reader, and per importing job.

Each is a token bucket that holds what may be sent in `BURST_SECONDS`. A block larger than that is
sent, and what follows waits for it. Time is an argument, in seconds.
"""

from __future__ import annotations

from streambroker_core.model import job_of

BURST_SECONDS = 1.0
MAX_DELAY = 30.0
"""Longest delay of one block: callers take an agent that sends nothing for 60 s for dead."""
MAX_BUCKETS = 10_000


class Throttle:
    """Delays blocks of readers; nothing is ever refused."""

    def __init__(self) -> None:
        self._rates: dict[str, float] = {}
        self._due: dict[tuple[str, str], float] = {}

    @property
    def is_on(self) -> bool:
        """Whether there is any rate."""
        return bool(self._rates)

    def set_rates(self, reader: float | None, job: float | None) -> None:
        """Set the bytes per second of one reader, and of one job; None is no limit."""
        rates = {"reader": reader, "job": job}
        self._rates = {kind: rate for kind, rate in rates.items() if rate}
        self._due = {one: at for one, at in self._due.items() if one[0] in self._rates}

    def take(self, reader: str, import_: str, size: int, now: float) -> float:
        """Take a block's bytes; return for how many seconds to delay it."""
        delay = 0.0
        names = {"reader": reader, "job": job_of(import_)}
        for kind, rate in self._rates.items():
            bucket = kind, names[kind]
            full = now - BURST_SECONDS
            paid = max(self._due.pop(bucket, full), full)
            self._due[bucket] = min(paid + size / rate, now + MAX_DELAY)
            delay = max(delay, paid - now)
        while len(self._due) > MAX_BUCKETS:
            del self._due[next(iter(self._due))]  # the one that has taken nothing for longest
        return delay
