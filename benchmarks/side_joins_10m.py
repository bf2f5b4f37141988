"""Rows that meet a table of 10,000,000 entries, as ``side_joins`` has it with smaller ones."""

from __future__ import annotations

import side_joins
from measure import Figures, Settings

PURPOSE = "the same as side_joins with a table of 10,000,000 entries; needs 20 GB"


def run(settings: Settings) -> Figures:
    """Measure."""
    large = {"1M": 1_000_000} if settings.quick else {"10M": 10_000_000}
    return side_joins.compared(settings, {"1k": 1_000, **large})
