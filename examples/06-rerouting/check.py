"""Compare the flights that team Delays has received with the files, day by day."""

from collections import Counter
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from days import departures

MINUTES = 60

flights = departures()
wanted = flights.filter(pc.greater(flights["dep_delay"], MINUTES))
received = pq.read_table("received", columns=["line", "date", "origin", "dep_delay"])
received = received.filter(pc.greater(received["dep_delay"], MINUTES))
days = sorted(set(flights["date"].to_pylist()))


def lines_by_day(table: pa.Table, airport: str) -> dict[str, Counter[int]]:
    """Return the lines of an airport's flights, by day, with how often each is there."""
    rows = table.filter(pc.equal(table["origin"], airport)).select(["date", "line"]).to_pylist()
    found: dict[str, Counter[int]] = {}
    for row in rows:
        found.setdefault(row["date"], Counter())[row["line"]] += 1
    return found


for airport in sorted(set(received["origin"].to_pylist())):
    have, want = lines_by_day(received, airport), lines_by_day(wanted, airport)
    wrong = [day for day in have if have[day] != want[day]]
    numbers = [days.index(day) for day in sorted(have)]
    runs = [list(run) for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    spans = ", ".join(f"{days[run[0][1]]} to {days[run[-1][1]]}" for run in runs)
    flights_received = sum(each.total() for each in have.values())
    print(f"{airport}: {flights_received} flights; {spans}; days that differ: {wrong or 'none'}")
