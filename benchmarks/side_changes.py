"""Rows that meet a stream that changes slowly, on Spark, against a join of two streams.

The join keeps both streams in its state, gives a row for each entry that was valid in the hour
before, and none for a key without one. A side input gives each row the entry that holds.
"""

from __future__ import annotations

import queries
import side_ways
from measure import Figures, Settings, turns
from processes import App

PURPOSE = "rows/s with a stream that changes slowly on Spark, against a stream-stream join"
WAYS = ("keyed", "timed", "stream-stream")
ENTRIES = 1_000_000
CHANGED = 100
FILES = 30
COUNT = 3
SECONDS = 250.0
MEMORY = {"spark.driver.memory": "4g"}


def run(settings: Settings) -> Figures:
    """Measure; one application, the queries take turns."""
    figures = Figures()
    entries = 10_000 if settings.quick else ENTRIES
    folder = settings.place / "entries"
    side_ways.side_files(folder, entries, FILES, CHANGED)
    app = App(settings.place, "changes", cores=2, conf=MEMORY).ready()
    try:
        for round_ in range(1, settings.rounds + 1):
            figures.yardstick()
            for way in turns(WAYS, round_):
                ran = queries.batches(
                    app,
                    {"kind": "rate", "rows": settings.rows},
                    {"kind": "noop"},
                    str(settings.place / f"checkpoint-{way}-{round_}"),
                    count=COUNT,
                    seconds=SECONDS,
                    way={
                        "kind": way,
                        "count": entries,
                        "rows": settings.rows,
                        "folder": str(folder),
                    },
                )
                took = ", ".join(str(batch["ms"]["triggerExecution"]) for batch in ran)
                settings.say(f"{way}: batches of {took} ms")
                queries.add(figures, way, ran, settings.rows)
            settings.say(f"round {round_} of {settings.rounds} done")
    finally:
        app.end()
    for way in WAYS[:-1]:
        figures.ratio(f"{way} / stream-stream", f"{way}: rows", "stream-stream: rows")
    figures.note(
        f"a map of {entries:,} entries that come in the first batch, {CHANGED} of them anew in"
        f" each further one; batches of {settings.rows:,} rows of nine columns from the JVM, into"
        f" noop; local[2], RocksDB; {COUNT} batches per round and variant after {queries.WARM}."
        " `keyed` takes rows as they arrive, `timed` by event time, as the join does."
    )
    return figures
