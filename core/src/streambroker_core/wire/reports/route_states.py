"""States of routes, as one word each, and their order of importance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

STALE_S = 90.0
"""Age from which a report is stale, in seconds."""
STATE_ORDER = ("waits", "away", "flows", "idle", "ended", "stale", "unknown")
"""The most important state first."""


def route_state(metrics: Mapping[str, Any]) -> str:
    """Return the state of a route from its metrics, as ``GET …/top`` has them.

    Returns:
        ``waits``: its exporter waits for it; ``ended``: its export has ended and is read to the
        end; ``away``: no query reads; ``flows`` or ``idle``; ``stale``: the agent stopped
        reporting; ``unknown``: it never reported.
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
    return "flows" if metrics["rowsPerSecond"] or metrics["lagEpochs"] else "idle"


def most_important(states: Iterable[str]) -> str | None:
    """Return the most important of several states; None of none."""
    return min(states, key=STATE_ORDER.index, default=None)
