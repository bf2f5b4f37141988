"""Control tuples on Spark: what 10,000 of them cost in a window, and how soon one is everywhere."""

from __future__ import annotations

import random
import statistics
import time
from pathlib import Path

from measure import Figures, Settings, quantile, turns
from processes import App, until
from ways import NOTED, Mark

from streambroker.operators import ControlFile, Delivery

PURPOSE = "10,000 control tuples in a window on Spark; a driver's tuple -> all partitions"
TUPLES = 10_000
DELIVERIES = ("no", "IMMEDIATE", "END_WINDOW")
SENT = 40


def run(settings: Settings) -> Figures:
    """Measure: one application, the queries take turns; then a query that waits for tuples."""
    figures = Figures()
    app = App(settings.place, "marks", cores=2).ready()
    try:
        for round_ in range(1, settings.rounds + 1):
            figures.yardstick()
            took = {
                name: _window(app, name, round_, settings) for name in turns(DELIVERIES, round_)
            }
            for name, ms in took.items():
                figures.add(f"window with {name} tuples", ms, "ms")
            for name in DELIVERIES[1:]:
                each = (took[name] - took["no"]) * 1e3 / TUPLES / 64
                figures.add(f"one of 10,000 {name} tuples in one bucket", each, "us")
            _latency(figures, app, round_, settings)
            settings.say(f"round {round_} of {settings.rounds} done")
    finally:
        app.end()
    figures.note(
        f"Two operators with 64 buckets, {settings.rows:,} rows of the JVM; the first emits the"
        f" tuples, the second takes each in each bucket and lets it go on: {TUPLES * 64:,} calls."
        " local[2], two partitions; a window from its trigger to its end, two after one to warm up."
    )
    figures.note(
        "Latency: from before `ControlFile.append` until `process_control` in the last of 64"
        " buckets; the query has a rate source of one row/s and no trigger."
    )
    return figures


def _window(app: App, name: str, round_: int, settings: Settings) -> float:
    """Return what a window takes, in ms."""
    delivery = "END_WINDOW" if name == "no" else name
    every = 1 << 40 if name == "no" else max(1, settings.rows // TUPLES)
    ran = app.run(
        source={"kind": "rate", "rows": settings.rows},
        way={"kind": "chain", "every": every, "delivery": delivery},
        sink={"kind": "noop"},
        checkpoint=str(settings.place / f"checkpoint-{name}-{round_}"),
        batches=3,
    )
    took: list[float] = [batch["ms"]["triggerExecution"] for batch in ran if batch["rows"]][:3]
    settings.say(f"{name} tuples: windows of {', '.join(map(str, took))} ms")
    return statistics.median(took[1:])


def _latency(figures: Figures, app: App, round_: int, settings: Settings) -> None:
    folder, noted = settings.place / f"control-{round_}", settings.place / f"noted-{round_}"
    control = ControlFile(folder)
    noted.mkdir()
    sent = 5 if settings.quick else SENT
    app.send(
        source={"kind": "steady"},
        way={"kind": "noting", "control": str(folder), "noted": str(noted)},
        sink={"kind": "noop"},
        checkpoint=str(settings.place / f"checkpoint-latency-{round_}"),
        until=str(noted / "end"),
    )
    took, draw = [], random.Random(round_)
    _control_seconds(control, noted)  # the first one waits for Python workers to start
    for _ in range(sent):
        time.sleep(draw.uniform(0.0, 0.5))
        took.append(_control_seconds(control, noted) * 1e3)
    (noted / "end").touch()
    app.answer()
    figures.add("latency, p50", statistics.median(took), "ms")
    figures.add("latency, p90", quantile(took, 0.9), "ms")
    figures.add("latency, max", max(took), "ms")


def _control_seconds(control: ControlFile, noted: Path) -> float:
    """Send a tuple; return the seconds until the last bucket has it."""
    began = time.time()
    name = control.append(Mark(0), delivery=Delivery.BEGIN).id.replace("/", "-")
    found = until(lambda: _all(noted, name), f"control tuple {name}")
    return max(found) - began


def _all(noted: Path, name: str) -> list[float] | None:
    found = [float(path.name.rpartition("@")[2]) for path in noted.glob(f"{name}@*")]
    return found if len(found) == NOTED else None
