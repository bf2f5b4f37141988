"""Leader election: rules of a Lease, without clock and network.

- The times in a record are never compared with a clock. A record expires when it has not changed
  for its duration, measured from when this candidate observed the change.
- Leadership ends by itself `deadline_s` after the last successful renewal was *sent*.
- Every write names the version that it replaces, so only one of two concurrent writes succeeds.

No candidate observes a renewal before it is sent. So none takes over within ``duration_s`` of its
own clock after that. Two never lead at once as long as clock rates differ by less than
``duration_s / deadline_s``; the absolute times do not matter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

MARGIN = 1.2
"""Minimum ratio of the duration of a Lease to the deadline of its holder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTiming:
    """Timing of a Lease.

    Attributes:
        duration_s: whole seconds after which an unchanged record expires.
        deadline_s: seconds without a renewal after which a holder stops leading.
        retry_s: pause between reads or renewals.

    Raises:
        ValueError: leading would be unsafe or too short.
    """

    duration_s: int = 13
    deadline_s: float = 10.0
    retry_s: float = 2.0

    def __post_init__(self) -> None:
        if self.retry_s <= 0 or self.deadline_s <= 2 * self.retry_s:
            raise ValueError(
                f"deadline {self.deadline_s} s has to be more than two retries of {self.retry_s} s"
            )
        if self.duration_s < MARGIN * self.deadline_s:
            raise ValueError(
                f"the Lease has to live at least {MARGIN} times the deadline of {self.deadline_s} s"
                f", not {self.duration_s} s"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """Content of a Lease.

    Attributes:
        holder: identity of the holder; empty if released.
        duration_s: seconds after which an unchanged record expires.
        acquired: when the holder acquired it, seconds since 1970; informational.
        renewed: when it was last renewed, seconds since 1970; informational.
    """

    holder: str
    duration_s: int
    acquired: float = 0.0
    renewed: float = 0.0
    transitions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseWrite:
    """A record that replaces the Lease at a version; without version it creates the Lease."""

    record: LeaseRecord
    version: str | None


class Election:
    """State of one candidate for a Lease.

    Args:
        identity: unique to this process; a restarted one needs another.
    """

    def __init__(self, identity: str, timing: LeaseTiming) -> None:
        self._identity = identity
        self._timing = timing
        self._record: LeaseRecord | None = None
        self._version: str | None = None
        self._changed_at = 0.0
        self._leads_until = float("-inf")
        self.must_read = True
        """The Lease has to be read before it is written."""

    @property
    def leads_until(self) -> float:
        """Time at which leadership ends by itself; minus infinity without leadership."""
        return self._leads_until

    @property
    def holder(self) -> str:
        """Holder of the Lease when last seen; empty for none."""
        return "" if self._record is None else self._record.holder

    @property
    def expires_at(self) -> float:
        """Time at which the last record read expires unless it changes."""
        record = self._record
        if record is None or not record.holder:
            return float("-inf")
        return self._changed_at + max(record.duration_s, self._timing.duration_s)

    def leads(self, now: float) -> bool:
        """Return whether this candidate leads at a time of its monotonic clock."""
        return now < self._leads_until

    def on_read(self, record: LeaseRecord | None, version: str | None, now: float) -> None:
        """Process the content of the Lease, None if there is none, at the time of the response."""
        if record != self._record or version != self._version:
            self._record = record
            self._changed_at = now
        self._version = version
        self.must_read = False
        if self.holder != self._identity:
            self._leads_until = float("-inf")

    def next_write(self, now: float, wall: float) -> LeaseWrite | None:
        """Return the record to write; None while another candidate holds the Lease.

        `now` is monotonic; `wall` (seconds since 1970) is informational.
        """
        current = self._record
        if current is not None and current.holder == self._identity:
            renewed = replace(current, duration_s=self._timing.duration_s, renewed=wall)
            return LeaseWrite(record=renewed, version=self._version)
        if now < self.expires_at:
            self.must_read = True
            return None
        record = LeaseRecord(
            holder=self._identity,
            duration_s=self._timing.duration_s,
            acquired=wall,
            renewed=wall,
            transitions=0 if current is None else current.transitions + 1,
        )
        return LeaseWrite(record=record, version=self._version)

    def on_written(self, record: LeaseRecord, version: str, *, sent: float, now: float) -> None:
        """Process a successful write of a record from `next_write`.

        `version` is the new one. `sent` and `now` are the times of request and response.
        """
        self.on_read(record, version, now)
        if self.holder == self._identity:
            self._leads_until = max(self._leads_until, sent + self._timing.deadline_s)

    def on_failed(self) -> None:
        """Handle a failed request, or one with an unknown result."""
        self.must_read = True

    def release(self, wall: float) -> LeaseWrite | None:
        """Stop leading; return the record that lets others lead at once, or None.

        A pending request may still change the Lease. If `must_read` is set, read it first.
        """
        self._leads_until = float("-inf")
        record = self._record
        if record is None or record.holder != self._identity:
            return None
        return LeaseWrite(
            record=replace(record, holder="", duration_s=1, renewed=wall), version=self._version
        )
