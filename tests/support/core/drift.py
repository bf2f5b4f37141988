"""Whether something that goes up and down grows in the long run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import combinations


def drift(series: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the median of a series, and by how much it grew from its first to its last moment.

    The slope is the median of those between all pairs (Theil 1950, Sen 1968): looks at a process
    that was just started do not move it.
    """
    slopes = [(v - u) / (t - s) for (s, u), (t, v) in combinations(series, 2) if t > s]
    seconds = series[-1][0] - series[0][0]
    return statistics.median(v for _, v in series), statistics.median(slopes) * seconds
