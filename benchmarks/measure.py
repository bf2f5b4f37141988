"""Rounds, medians, spreads and ratios, and what is to be known of the machine.

Every comparison is a ratio of two figures of the same round, never of two medians: what the
machine does to one of them it does, mostly, to the other.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

YARD_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How much is measured.

    Attributes:
        rounds: how often each variant is measured.
        rows: rows of a micro-batch.
        quick: one short look at everything; the figures mean little.
        place: an empty directory on the disk that is to be measured.
        say: told what is going on.
    """

    rounds: int
    rows: int
    quick: bool
    place: Path
    say: Callable[[str], None]

    @property
    def turns(self) -> range:
        """The rounds; 0 warms up and is left out, of a short look altogether."""
        return range(1 if self.quick else 0, self.rounds + 1)


@dataclass
class Figures:
    """Samples by name, in the order of the rounds, and what to know about them."""

    samples: dict[str, list[float]] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, value: float, unit: str) -> None:
        """Add a round's figure."""
        self.samples.setdefault(name, []).append(value)
        self.units[name] = unit

    def ratio(self, name: str, over: str, under: str) -> None:
        """Add the ratio of two figures, formed round by round."""
        pairs = zip(self.samples[over], self.samples[under], strict=True)
        for a, b in pairs:
            self.add(name, a / b, "ratio")

    def note(self, text: str) -> None:
        """Add a sentence to be printed under the figures, once."""
        if text not in self.notes:
            self.notes.append(text)

    def yardstick(self) -> None:
        """Measure how fast the machine is now: a fixed piece of work for one core."""
        data = bytes(YARD_BYTES)
        began = time.perf_counter()
        zlib.crc32(data)
        sum(range(1_000_000))
        self.add("machine: a fixed piece of work", (time.perf_counter() - began) * 1e3, "ms")

    def encode(self) -> dict[str, Any]:
        """Return everything as JSON."""
        return {
            "figures": {
                name: {"unit": self.units[name], **spread(values), "rounds": values}
                for name, values in self.samples.items()
            },
            "notes": self.notes,
        }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, least and greatest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def quantile(values: Sequence[float], share: float) -> float:
    """Return the least value that at least ``share`` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def turns(variants: Sequence[str], round_: int) -> list[str]:
    """Return the order of a round: each variant comes first, and last, equally often."""
    shift = round_ % len(variants)
    return [*variants[shift:], *variants[:shift]]


def machine() -> dict[str, Any]:
    """Return what does not change during a run."""
    return {
        "cpus": os.cpu_count(),
        "cpu": _cpu(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("pyspark", "pyarrow", "numpy")},
    }


def load() -> list[float]:
    """Return the load averages over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def table(figures: dict[str, dict[str, Any]]) -> list[str]:
    """Return figures as lines of text."""
    width = max(map(len, figures), default=0)
    return [
        f"  {name:{width}}  {_number(f['median']):>9} {f['unit']:8}"
        f" [{_number(f['min'])} .. {_number(f['max'])}]"
        for name, f in figures.items()
    ]


def _number(value: float) -> str:
    for limit, digits in ((100, 0), (10, 1)):
        if abs(value) >= limit:
            return f"{value:,.{digits}f}"
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.3f}"
