"""What the readers of an export got of it, in rows: delivered, filtered, dropped, read before."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Delivery:
    """What one reader got of this export, in rows, counted before the filter.

    Attributes:
        pending: what the plan under way leaves out, by stream: the epoch it begins with, then
            epochs and rows dropped, epochs and rows that were read before from a lost log.
        counted: first epoch of each stream that is not counted yet, so that a replay from an
            older checkpoint counts once.
    """

    delivered: int = 0
    filtered: int = 0
    dropped_epochs: int = 0
    dropped_rows: int = 0
    duplicate_epochs: int = 0
    duplicate_rows: int = 0
    filter: str | None = None
    columns: list[str] | None = None
    pending: dict[str, tuple[int, int, int, int, int]] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)

    def leave_out(self, stream: str) -> None:
        """Count what a plan left out, now that the reader has taken it."""
        from_, epochs, rows, again, rows_again = self.pending.pop(stream)
        if from_ <= self.counted.get(stream, 0):
            return
        self.counted[stream] = from_
        self.dropped_epochs += epochs
        self.dropped_rows += rows
        self.duplicate_epochs += again
        self.duplicate_rows += rows_again
