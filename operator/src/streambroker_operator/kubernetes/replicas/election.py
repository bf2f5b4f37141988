"""Who leads: the rules of a Lease, without a clock and without a network.

Rule 1: the time that a record carries is never compared with a clock. A record is dead when it has
not changed for as long as it says, measured from when that was noticed here.
Rule 2: leading ends by itself, `deadline_s` after the last renewal that succeeded was *sent*.
Rule 3: every write names the version it replaces, so of two only one succeeds.

Nobody else notices a renewal before it is sent. So nobody takes over sooner than ``duration_s`` of
their clock after that, and two never lead at once while clocks agree better than
``duration_s / deadline_s``, by how fast they run, not by what they show.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

MARGIN = 1.2
"""How much longer a Lease has to live than its holder relies on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTiming:
    """How a Lease is kept.

    Attributes:
        duration_s: whole seconds after which a record that has not changed is dead.
        deadline_s: seconds after which a holder stops leading that could not renew.
        retry_s: pause between two looks or renewals.

    Raises:
        ValueError: nobody could lead safely, or for long.
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
    """What a Lease says.

    Attributes:
        holder: identity of who holds it; empty where it was released.
        duration_s: for how long a record that does not change is alive.
        acquired: when the holder got it, seconds since 1970; for people only.
        renewed: when it was last renewed, likewise.
        transitions: how often the holder changed.
    """

    holder: str
    duration_s: int
    acquired: float = 0.0
    renewed: float = 0.0
    transitions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseWrite:
    """A record to be written in place of the one at a version; None to create the Lease."""

    record: LeaseRecord
    version: str | None


class Election:
    """One candidate's view of a Lease.

    Args:
        identity: of this process alone; one that starts again needs another.
        timing: how the Lease is kept.
    """

    def __init__(self, identity: str, timing: LeaseTiming) -> None:
        self._identity = identity
        self._timing = timing
        self._record: LeaseRecord | None = None
        self._version: str | None = None
        self._changed_at = 0.0
        self._leads_until = float("-inf")
        self.must_read = True
        """The Lease has to be read before anything is written."""

    @property
    def leads_until(self) -> float:
        """The time at which leading ends by itself; minus infinity for who does not lead."""
        return self._leads_until

    @property
    def holder(self) -> str:
        """Who held the Lease when it was seen last; empty for nobody."""
        return "" if self._record is None else self._record.holder

    @property
    def expires_at(self) -> float:
        """The time at which what was read last is dead, unless it changes before."""
        known = self._record
        if known is None or not known.holder:
            return float("-inf")
        return self._changed_at + max(known.duration_s, self._timing.duration_s)

    def leads(self, now: float) -> bool:
        """Say whether this candidate leads at a time of its monotonic clock."""
        return now < self._leads_until

    def on_read(self, record: LeaseRecord | None, version: str | None, now: float) -> None:
        """Take in what the Lease says.

        Args:
            record: None where there is no Lease.
            version: of the Lease.
            now: when the answer had come, by a monotonic clock in seconds.
        """
        if record != self._record or version != self._version:
            self._record = record
            self._changed_at = now
        self._version = version
        self.must_read = False
        if self.holder != self._identity:
            self._leads_until = float("-inf")

    def next_write(self, now: float, wall: float) -> LeaseWrite | None:
        """Return the record to write; None while somebody else holds the Lease.

        Args:
            now: by the monotonic clock.
            wall: seconds since 1970, for people.
        """
        known = self._record
        if known is not None and known.holder == self._identity:
            renewed = replace(known, duration_s=self._timing.duration_s, renewed=wall)
            return LeaseWrite(record=renewed, version=self._version)
        if now < self.expires_at:
            self.must_read = True
            return None
        record = LeaseRecord(
            holder=self._identity,
            duration_s=self._timing.duration_s,
            acquired=wall,
            renewed=wall,
            transitions=0 if known is None else known.transitions + 1,
        )
        return LeaseWrite(record=record, version=self._version)

    def on_written(self, record: LeaseRecord, version: str, *, sent: float, now: float) -> None:
        """Take in that the API server took what `write` returned.

        Args:
            record: as it was written.
            version: of the Lease now.
            sent: when the request was begun, by the monotonic clock.
            now: when the answer had come.
        """
        self.on_read(record, version, now)
        if self.holder == self._identity:
            self._leads_until = max(self._leads_until, sent + self._timing.deadline_s)

    def on_failed(self) -> None:
        """Take in that a request failed, or that nobody knows what became of it."""
        self.must_read = True

    def release(self, wall: float) -> LeaseWrite | None:
        """Stop leading; return the record that lets others lead at once, if there is one to write.

        What a request still under way does to the Lease is not known; read again first where
        `must_read` says so.
        """
        self._leads_until = float("-inf")
        known = self._record
        if known is None or known.holder != self._identity:
            return None
        return LeaseWrite(
            record=replace(known, holder="", duration_s=1, renewed=wall), version=self._version
        )
