"""How long a row is under way from the exporting query's source to the importing query's sink."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from measure import Figures, Settings, quantile, turns
from processes import App, Broker
from sources import STEADY_DDL

from pe_agent.agent.manifests import Manifest
from pe_agent.log import Committer, Kind, StreamLog

PURPOSE = "latency: row available -> epoch published -> importer's sink, at 1,000 rows/s"
RATE = 1000
WARM_SECONDS = 10.0
VARIANTS = ("tuned", "untuned")
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


class Pair:
    """Two applications, tuned or not; ports and checkpoints are new each round."""

    def __init__(self, settings: Settings, name: str, broker: str) -> None:
        self.place, self.name = settings.place, name
        self.seconds = 10.0 if settings.quick else 30.0
        tuned = name == "tuned"
        self.feed, self.taker = (
            App(settings.place, f"{job}-{name}", broker=broker, cores=2, tuned=tuned)
            for job in ("feed", "taker")
        )
        self.feed.ready()
        self.taker.ready()

    def end(self) -> None:
        """End both applications."""
        self.taker.end()
        self.feed.end()

    def run(self, round_: int) -> tuple[Path, float]:
        """Run both queries; return what the sink noted, and since when rows are counted."""
        notes = self.place / f"notes-{self.name}-{round_}"
        name = f"{self.name}-{round_}"
        since = time.time()
        self.feed.send(
            source={"kind": "bench_steady", "since": since, "rate": RATE},
            sink={"kind": "export", "port": f"out-{name}", "properties": {"kind": name}},
            checkpoint=str(self.place / f"checkpoint-out-{name}"),
            seconds=self.seconds + WARM_SECONDS,
        )
        self.taker.run(
            source={
                "kind": "import",
                "port": f"in-{name}",
                "subscription": f'kind == "{name}"',
                "schema": STEADY_DDL,
            },
            sink={"kind": "bench_record", "path": str(notes)},
            checkpoint=str(self.place / f"checkpoint-in-{name}"),
            seconds=self.seconds + WARM_SECONDS,
        )
        self.feed.answer()
        return notes, since + WARM_SECONDS


def rows_of(notes: Path, counted_from: float) -> list[dict[str, Any]]:
    """Return the rows that were available after a time: line, available, seen, committed."""
    result = []
    for text in notes.read_text().splitlines():
        note = json.loads(text)
        result += [
            {"line": line, "available": at, "seen": note["seen"], "committed": note["committed"]}
            for line, at in zip(note["lines"], note["available"], strict=True)
            if at >= counted_from
        ]
    return result


def published(log: Path) -> list[tuple[int, float]]:
    """Return ``(first line behind the epoch, time it was published)`` of a log, in order."""
    committer = Committer()
    result = []
    for directory in sorted(log.iterdir()):
        stream = StreamLog.open(directory, committer=committer)
        for _, _, meta in stream.frames({Kind.MANIFEST}):
            manifest = Manifest.decode(meta)
            result.append((manifest.rows_before + manifest.rows, manifest.published))
        stream.close()
    committer.close()
    return result


def add(figures: Figures, name: str, way: str, seconds: list[float]) -> None:
    """Add a round's quantiles of one way."""
    for label, share in SHARES.items():
        figures.add(f"{name}: {way} {label}", quantile(seconds, share) * 1e3, "ms")


def evaluate(
    figures: Figures, name: str, rows: list[dict[str, Any]], epochs: list[tuple[int, float]]
) -> None:
    """Add the figures of one round."""
    at = iter(sorted(epochs))
    end, when = next(at)
    ways: dict[str, list[float]] = {
        "available -> sink": [],
        "available -> published": [],
        "published -> sink": [],
    }
    for row in sorted(rows, key=lambda r: int(r["line"])):
        while row["line"] >= end:
            end, when = next(at)
        ways["available -> sink"].append(row["committed"] - row["available"])
        ways["available -> published"].append(when - row["available"])
        ways["published -> sink"].append(row["committed"] - when)
    for way, seconds in ways.items():
        add(figures, name, way, seconds)


def run(settings: Settings) -> Figures:
    """Measure; the tuned and the untuned pair take turns, one of them idle."""
    figures = Figures()
    broker = Broker(settings.place)
    pairs: dict[str, Pair] = {}
    found: list[tuple[str, int, list[dict[str, Any]]]] = []
    try:
        for name in VARIANTS:
            pairs[name] = Pair(settings, name, broker.url)
        for round_ in range(settings.rounds + 1):
            figures.yardstick() if round_ else None
            for name in turns(VARIANTS, round_):
                notes, since = pairs[name].run(round_)
                if round_:
                    found.append((name, round_, rows_of(notes, since)))
            settings.say(f"round {round_} of {settings.rounds} done")
    finally:
        for pair in pairs.values():
            pair.end()
        broker.end()
    for name, round_, rows in found:
        log = pairs[name].feed.home / "log" / f"out-{name}-{round_}"
        evaluate(figures, name, rows, published(log))
    figures.ratio(
        "tuned / untuned, available -> sink p50",
        "tuned: available -> sink p50",
        "untuned: available -> sink p50",
    )
    figures.note(
        f"{RATE:,} rows/s; two applications of local[2], two agents and a broker on the"
        " same cores; trigger 0; the first 10 s of a round are left out; a row is"
        " available when the source's latestOffset may name it, and in the sink when the"
        " sink's commit is called."
    )
    figures.note("tuned: the settings of pe_agent.local; untuned: Spark's own.")
    return figures
