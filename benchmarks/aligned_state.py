"""State of many keys on Spark: what a batch costs by the keys it touches and by the keys held."""

from __future__ import annotations

import statistics
from typing import Any

import queries
from measure import Figures, Settings, turns
from processes import App

PURPOSE = "state of 100,000 to 10,000,000 keys on Spark: a batch by keys touched and by keys held"
HELD = {"100k": 100_000, "1M": 1_000_000, "10M": 10_000_000}
TOUCHED = (1_000, 10_000)
FILLING = 500_000
"""Rows of a batch that fills."""
SECONDS = 400.0


def run(settings: Settings) -> Figures:
    """Fill a state of each size, then touch keys of each in turns."""
    figures = Figures()
    held = {"10k": 10_000, "100k": 100_000} if settings.quick else HELD
    app = App(settings.place, "state", cores=2).ready()
    try:
        for word, keys in held.items():
            _fill(figures, app, word, keys, settings)
        variants = [f"{touched:,} of {word}" for touched in TOUCHED for word in held]
        for round_ in range(1, settings.rounds + 1):
            figures.yardstick()
            for name in turns(variants, round_):
                _touch(figures, app, name, held, settings)
            settings.say(f"round {round_} of {settings.rounds} done")
    finally:
        app.end()
    *_, low, high = held
    for touched in TOUCHED:
        over, under = f"touch {touched:,} of {high} keys", f"touch {touched:,} of {low} keys"
        figures.ratio(f"{touched:,} keys: {high} held / {low} held", over, under)
    figures.note(
        "`KeyedState`, 64 buckets, keys and values of eight bytes, keys touched lie as far apart as"
        " can be; local[2], two partitions; a batch from its trigger to its end."
    )
    return figures


def _fill(figures: Figures, app: App, word: str, keys: int, settings: Settings) -> None:
    rows = min(keys, FILLING)
    ran = _run(app, word, keys, rows, keys // rows, settings)
    seconds = sum(batch["ms"]["triggerExecution"] for batch in ran) / 1e3
    settings.say(f"{keys:,} keys are held, after {seconds:.0f} s")
    figures.add(f"put {word} keys into the state", keys / seconds / 1e6, "M keys/s")


def _touch(figures: Figures, app: App, name: str, held: dict[str, int], settings: Settings) -> None:
    text, _, word = name.partition(" of ")
    touched = int(text.replace(",", ""))
    ran = _run(app, word, held[word], touched, 4 + queries.WARM, settings)[queries.WARM :]
    took = statistics.median(batch["ms"]["triggerExecution"] for batch in ran)
    settings.say(f"touch {text} of {word} keys: {took:.0f} ms")
    figures.add(f"touch {text} of {word} keys", took, "ms")


def _run(
    app: App, word: str, keys: int, rows: int, count: int, settings: Settings
) -> list[dict[str, Any]]:
    app.send(
        source={"kind": "rate", "rows": rows},
        way={"kind": "keeping", "keys": keys},
        sink={"kind": "noop"},
        checkpoint=str(settings.place / f"checkpoint-{word}"),
        batches=count,
        seconds=SECONDS,
    )
    return [batch for batch in app.answer(SECONDS) if batch["rows"]][:count]
