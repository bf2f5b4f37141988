"""The flights and weather of 2013 as Arrow tables, read once per process."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pyarrow as pa

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
if str(EXAMPLES) not in sys.path:
    sys.path.append(str(EXAMPLES))

from flights import tables  # noqa: E402 - found by the line above


@functools.cache
def flights_table() -> pa.Table:
    """Return the 336,776 departures: int64 ``line`` (from 2), typed columns, missing = null."""
    return tables.flights_table()


@functools.cache
def weather_table() -> pa.Table:
    """Return the 26,115 hourly observations: int64 ``line`` (from 2), typed, missing = null."""
    return tables.weather_table()
