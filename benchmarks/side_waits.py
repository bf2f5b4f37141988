"""What a query does meanwhile: a table is read anew under it, and a million rows wait."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

import queries
import side_ways
from measure import Figures, Settings
from processes import SECONDS, App, until

from streambroker.operators import ControlFile
from streambroker_core.control.tuples import Delivery
from streambroker_core.side import SideComplete

PURPOSE = "a table of 1,000,000 entries changed under a query on Spark; 1,000,000 rows that wait"
ENTRIES = 1_000_000
BEFORE = 5
"""Batches before something happens, the first ones left out."""
AFTER = 4
PIECES = 10


def run(settings: Settings) -> Figures:
    """Measure; one application."""
    figures = Figures()
    entries = 10_000 if settings.quick else ENTRIES
    app = App(settings.place, "waits", cores=2).ready()
    try:
        for round_ in range(1, settings.rounds + 1):
            figures.yardstick()
            _refresh(figures, app, entries, round_, settings)
            _wait(figures, app, round_, settings)
            settings.say(f"round {round_} of {settings.rounds} done")
    finally:
        app.end()
    figures.note(
        f"batches of {settings.rows:,} rows, or a tenth of that where rows wait; 64 buckets,"
        " local[2]. `longest` is of the batches after the files of the table were changed,"
        " `before` the median of those before."
    )
    return figures


class _Query:
    """A query that goes on until it is told to end."""

    def __init__(self, app: App, place: Path, rows: int, way: dict[str, Any]) -> None:
        self._app, self._place = app, place
        place.mkdir()
        app.send(
            source={"kind": "rate", "rows": rows},
            way={"rows": rows, **way},
            sink={"kind": "noop"},
            checkpoint=str(place / "checkpoint"),
            until=str(place / "end"),
        )

    def finished(self) -> int:
        """Return how many batches it has finished."""
        return len(list((self._place / "checkpoint" / "commits").glob("[0-9]*")))

    def await_(self, more: int) -> int:
        """Wait for so many batches more; return how many there are."""
        goal = self.finished() + more
        until(lambda: self.finished() >= goal, f"batch {goal}")
        return self.finished()

    def end(self) -> list[dict[str, Any]]:
        """End it; return its batches."""
        (self._place / "end").touch()
        return [batch for batch in self._app.answer(SECONDS) if batch["rows"]]


def _took(batches: list[dict[str, Any]]) -> list[float]:
    return [batch["ms"]["triggerExecution"] for batch in batches]


def _refresh(figures: Figures, app: App, entries: int, round_: int, settings: Settings) -> None:
    place = settings.place / f"refresh-{round_}"
    folder, store = settings.place / f"entries-{round_}", settings.place / f"store-{round_}"
    side_ways.write(folder, "000", side_ways.entries(entries))
    way = {"kind": "table", "count": entries, "folder": str(folder), "store": str(store)}
    query = _Query(app, place, settings.rows, way)
    query.await_(queries.WARM + BEFORE)
    changed = side_ways.entries(entries, shift=1.0)
    at = time.time()
    side_ways.write(folder, "000", changed)
    until(lambda: _read_by_all(store), "the version in every bucket")
    held = time.time()
    query.await_(AFTER)
    ran = query.end()
    before = [b for b in ran[queries.WARM :] if b["began"] < at]
    after = [b for b in ran if b["began"] + b["ms"]["triggerExecution"] / 1e3 >= at]
    usual = statistics.median(_took(before[:-1]))
    longest = max(_took(after))
    settings.say(f"refresh: {usual:.0f} ms, then {[int(ms) for ms in _took(after)]}")
    figures.add("refresh: batch before", usual, "ms")
    figures.add("refresh: longest batch", longest, "ms")
    figures.add("refresh: longest / before", longest / usual, "ratio")
    figures.add("refresh: files changed → finished with it", held - at, "s")


def _read_by_all(store: Path) -> bool:
    """Tell whether a second version was announced, and the query has finished a batch with it."""
    kept = json.loads((store / "rates" / "versions.json").read_bytes())["kept"]
    place = kept[-1]["announced"].get("rates")
    readers = [json.loads(one.read_bytes())["next"] for one in store.glob("readers/*.json")]
    changed = kept[-1]["name"].startswith("v2-") and place is not None
    return bool(changed and readers and place < min(readers))


def _wait(figures: Figures, app: App, round_: int, settings: Settings) -> None:
    place, rows = settings.place / f"wait-{round_}", settings.rows // PIECES
    folder, control = settings.place / f"load-{round_}", settings.place / f"control-{round_}"
    side_ways.write(folder, "000", side_ways.entries(1_000))
    said = ControlFile(control)
    way = {"kind": "waiting", "count": 1_000, "folder": str(folder), "control": str(control)}
    query = _Query(app, place, rows, way)
    query.await_(PIECES)
    at = time.time()
    said.append(SideComplete(input="rates"), delivery=Delivery.BEGIN)
    query.await_(AFTER)
    ran = query.end()
    ended = [b for b in ran if b["began"] + b["ms"]["triggerExecution"] / 1e3 >= at]
    released = max(ended[:2], key=lambda batch: batch["ms"]["triggerExecution"])
    keeping = [b for b in ran if b["batch"] < released["batch"]]
    waited = sum(b["rows"] for b in keeping)
    usual = statistics.median(_took(keeping[queries.WARM :]))
    settings.say(f"{waited:,} rows waited: {usual:.0f} ms a batch, then {_took([released])} ms")
    figures.add("rows that waited", waited / 1e6, "M rows")
    figures.add(f"a batch of {rows:,} rows that go and wait", usual, "ms")
    figures.add("the batch that releases them", _took([released])[0], "ms")
    later = [b for b in ran if b["batch"] > released["batch"]]
    figures.add(f"a batch of {rows:,} rows afterwards", statistics.median(_took(later)), "ms")
