"""States of routes, as one word each, and their order of importance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

STALE_S = 90.0
"""Age from which a report is stale, in seconds."""
STALLED_S = 90.0
"""Time without a finished epoch, while some wait, from which on a reader is stalled; seconds."""
STATE_ORDER = ("waits", "stalled", "away", "flows", "idle", "ended", "stale", "unknown")
"""The most important state first."""


def route_state(metrics: Mapping[str, Any]) -> str:
    """Return the state of a route from its metrics, as ``GET …/top`` has them.

    Returns:
        ``waits``: its exporter waits for it; ``ended``: its export has ended and is read to the
        end; ``away``: no query reads; ``stalled``: a query reads nothing although rows wait;
        ``flows`` or ``idle``; ``stale``: the agent stopped reporting; ``unknown``: it never
        reported.
    """
    if metrics["age"] is None:
        return "unknown"
    if metrics["age"] > STALE_S:
        return "stale"
    if metrics["waiting"]:
        return "waits"
    if metrics.get("readToEnd"):
        return "ended"
    if not metrics["alive"]:
        return "away"
    if (metrics.get("stalledSeconds") or 0) >= STALLED_S and not metrics["bytesPerSecond"]:
        return "stalled"
    return "flows" if metrics["rowsPerSecond"] or metrics["lagEpochs"] else "idle"


def most_important(states: Iterable[str]) -> str | None:
    """Return the most important of several states; None of none."""
    return min(states, key=STATE_ORDER.index, default=None)
