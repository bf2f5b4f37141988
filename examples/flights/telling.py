"""What the demonstration prints: progress, one block per change, a table at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

EVERY_SECONDS = 2.5


class Teller:
    """Prints lines with the seconds since the start before them."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._last = 0.0

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._begun

    def say(self, text: str) -> None:
        """Print a line with the time before it."""
        self._print(f"[{self.seconds:4.0f} s] {text}")
        self._last = self.seconds

    def progress(self, text: str) -> None:
        """Print such a line, if the last one is some seconds ago."""
        if self.seconds - self._last >= EVERY_SECONDS:
            self.say(text)

    def head(self, text: str) -> None:
        """Begin a block."""
        self._print(f"\n── {text} " + "─" * max(4, 90 - len(text)))

    def detail(self, text: str) -> None:
        """Print a line of a block."""
        self._print(f"         {text}")

    def table(self, rows: Sequence[Sequence[str]]) -> None:
        """Print rows in columns, the first column to the left and figures to the right."""
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        for row in rows:
            cells = [
                c.ljust(w) if i < 2 else c.rjust(w)
                for i, (c, w) in enumerate(zip(row, widths, strict=True))
            ]
            self._print("  " + "  ".join(cells).rstrip())

    def _print(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
