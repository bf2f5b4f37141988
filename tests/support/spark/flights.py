"""The flights and weather of 2013 as Arrow tables, read once per process."""

from __future__ import annotations

import functools
from pathlib import Path

import pyarrow as pa
from flights import tables

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@functools.cache
def flights_table() -> pa.Table:
    """Return the 336,776 departures: int64 ``line`` (from 2), typed columns, missing = null."""
    return tables.flights_table()


@functools.cache
def weather_table() -> pa.Table:
    """Return the 26,115 hourly observations: int64 ``line`` (from 2), typed, missing = null."""
    return tables.weather_table()
