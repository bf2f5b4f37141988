"""Rows that meet a table, on Spark, against the broadcast join with a static frame.

A table of ours is met by an operator with state, and without. Spark plans the join anew in each
micro-batch, and so makes its hash table anew; workers keep the version of a side input. What a join
lacks, versions and readiness, costs the join nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cpu
import pyarrow.compute as pc
import pyarrow.dataset as ds
import queries
import side_ways
from measure import Figures, Settings, turns
from processes import App

PURPOSE = "rows/s with a table of 1,000 and 1,000,000 entries on Spark, against a broadcast join"
HELD = {"1k": 1_000, "1M": 1_000_000}
OURS = ("table", "stateless")
WAYS = (*OURS, "broadcast")
COUNT, WARM = 3, 60
SMALL = 10_000
"""Rows of the batches that warm up and with which memory is measured: they need little of it."""
LARGE = 10_000_000
"""Entries whose memory is more than workers differ by."""
MEMORY = {"spark.driver.memory": "12g", "spark.driver.maxResultSize": "6g"}
"""What the join needs for 10,000,000 entries: 5 GiB are not enough."""


def run(settings: Settings) -> Figures:
    """Measure; one application, the queries take turns."""
    return compared(settings, {"1k": 1_000, "100k": 100_000} if settings.quick else HELD)


def compared(settings: Settings, held: dict[str, int]) -> Figures:
    """Measure with tables of so many entries by a word for each, the smallest first."""
    figures = Figures()
    app = App(settings.place, "joins", cores=2, conf=MEMORY).ready()
    try:
        for word, entries in held.items():
            first = word == next(iter(held)) and not settings.quick
            folder = settings.place / f"entries-{word}"
            side_ways.write(folder, "000", side_ways.entries(entries))
            _compare(app, word, entries, settings)
            for way in WAYS if first else ():
                _batches(app, way, word, entries, "warm", SMALL, settings, WARM)
            _memory(figures, app, word, entries, settings)
        variants = [f"{way}, {word}" for word in held for way in WAYS]
        for round_ in range(1, settings.rounds + 1):
            figures.yardstick()
            for name in turns(variants, round_):
                way, _, word = name.partition(", ")
                ran = _batches(app, way, word, held[word], f"{round_}", settings.rows, settings)
                queries.add(figures, name, ran, settings.rows)
            settings.say(f"round {round_} of {settings.rounds} done")
    finally:
        app.end()
    for way in OURS:
        for word in held:
            figures.ratio(
                f"{way} / broadcast, {word}", f"{way}, {word}: rows", f"broadcast, {word}: rows"
            )
    figures.note(
        f"batches of {settings.rows:,} rows of nine columns from the JVM, two columns added, into"
        f" noop; local[2]; {COUNT} batches per round and variant after {queries.WARM}, and"
        f" before the rounds {WARM} of {SMALL:,} rows each way. The frame that is joined is"
        " cached. All gave equal rows before. Memory is that of all"
        " Python workers once they have the table, what they have in common counted once."
    )
    return figures


def _batches(
    app: App,
    way: str,
    word: str,
    entries: int,
    turn: str,
    rows: int,
    settings: Settings,
    count: int = COUNT,
) -> list[dict[str, Any]]:
    ran = queries.batches(
        app,
        {"kind": "rate", "rows": rows},
        {"kind": "noop"},
        str(settings.place / f"checkpoint-{way}-{word}-{turn}"),
        count=count,
        way=_way(way, word, entries, rows, settings.place),
    )
    took = ", ".join(str(batch["ms"]["triggerExecution"]) for batch in ran)
    settings.say(f"{way}, {word}: batches of {took} ms")
    return ran


def _way(way: str, word: str, entries: int, rows: int, place: Path) -> dict[str, Any]:
    reported = {
        "kind": way,
        "count": entries,
        "rows": rows,
        "folder": str(place / f"entries-{word}"),
    }
    return {**reported, "store": str(place / f"store-{word}")} if way in OURS else reported


def _compare(app: App, word: str, entries: int, settings: Settings) -> None:
    """Compare what all make of the same rows.

    Raises:
        AssertionError: they differ.
    """
    found = []
    for way in WAYS:
        out = settings.place / f"out-{way}-{word}"
        app.run(
            source={"kind": "rate", "rows": 50_000},
            sink={"kind": "parquet", "path": str(out)},
            checkpoint=str(settings.place / f"checkpoint-check-{way}-{word}"),
            batches=2,
            way=_way(way, word, entries, 50_000, settings.place),
        )
        got = ds.dataset(str(out), exclude_invalid_files=True).to_table()
        first = got.filter(pc.less(got["a"], 100_000)).sort_by("a")
        found.append(first.select(["a", side_ways.KEY, "rate", "label"]))
    for way, one in zip(WAYS, found, strict=True):
        if one.num_rows != 100_000 or not one.equals(found[-1]):
            raise AssertionError(f"{way} with {word} entries and the join differ")


def _memory(figures: Figures, app: App, word: str, entries: int, settings: Settings) -> None:
    """Note what workers have with this table; sizes go up, so those before are small beside it."""
    _batches(app, "table", word, entries, "memory", SMALL, settings)
    have = cpu.proportional(app.process.pid, "Python workers")
    figures.add(f"Python workers with a table of {word}", have, "MiB")
    settings.say(f"Python workers have {have:,.0f} MiB with {entries:,} entries")
    least = figures.samples["Python workers with a table of 1k"][0]
    if entries >= LARGE:
        figures.add(f"memory per entry, {word}", (have - least) * 2**20 / entries, "bytes")
