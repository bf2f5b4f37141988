"""How long a row is under way from the exporting query's source to the importing query's sink."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import peer_jars
from kafka_node import Kafka
from measure import Figures, Settings, quantile, turns
from processes import App, Broker
from sources import STEADY_DDL

from pe_agent.agent.exporting.manifests import Manifest
from pe_agent.log import Committer, Kind, StreamLog

PURPOSE = "latency: row available -> epoch published -> importer's sink, at 1,000 rows/s"
RATE = 1000
WARM_SECONDS = 10.0
VARIANTS = ("tuned", "untuned", "kafka")
TOTAL = "available -> sink"
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


class Pair:
    """Two applications, tuned or not; ports and checkpoints are new each round."""

    def __init__(self, settings: Settings, name: str, **plan: Any) -> None:
        self.place, self.name = settings.place, name
        self.seconds = 10.0 if settings.quick else 30.0
        self.feed, self.taker = (
            App(settings.place, f"{job}-{name}", cores=2, tuned=name != "untuned", **plan)
            for job in ("feed", "taker")
        )
        self.feed.ready()
        self.taker.ready()

    def end(self) -> None:
        """End both applications."""
        self.taker.end()
        self.feed.end()

    def ways(self, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return sink and source of a round."""
        return (
            {"kind": "export", "port": f"out-{name}", "properties": {"kind": name}},
            {
                "kind": "import",
                "port": f"in-{name}",
                "subscription": f'kind == "{name}"',
                "schema": STEADY_DDL,
            },
        )

    def run(self, round_: int) -> tuple[Path, float]:
        """Run both queries; return what the sink noted, and since when rows are counted."""
        notes = self.place / f"notes-{self.name}-{round_}"
        name = f"{self.name}-{round_}"
        sink, source = self.ways(name)
        since = time.time()
        self.feed.send(
            source={"kind": "bench_steady", "since": since, "rate": RATE},
            sink=sink,
            checkpoint=str(self.place / f"checkpoint-out-{name}"),
            seconds=self.seconds + WARM_SECONDS,
        )
        self.taker.run(
            source=source,
            sink={"kind": "bench_record", "path": str(notes)},
            checkpoint=str(self.place / f"checkpoint-in-{name}"),
            seconds=self.seconds + WARM_SECONDS,
        )
        self.feed.answer()
        return notes, since + WARM_SECONDS


class KafkaPair(Pair):
    """The same through Kafka, with the settings of ``tuned`` and Avro values."""

    def __init__(self, settings: Settings, kafka: Kafka) -> None:
        super().__init__(settings, "kafka", jars=peer_jars.jars("connector"))
        self.servers = kafka.servers

    def ways(self, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Make a topic; return sink and source of a round."""
        self.feed.run(servers=self.servers, make=name, drop=None)
        topic = {
            "kind": "kafka",
            "servers": self.servers,
            "topic": name,
            "values": "avro",
            "ddl": STEADY_DDL,
        }
        return dict(topic), {**topic, "rows": 1_000_000}


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


def total(figures: Figures, name: str, rows: list[dict[str, Any]]) -> None:
    """Add the figures of a round of which nothing is known of the middle."""
    add(figures, name, TOTAL, [row["committed"] - row["available"] for row in rows])


def evaluate(
    figures: Figures, name: str, rows: list[dict[str, Any]], epochs: list[tuple[int, float]]
) -> None:
    """Add the figures of one round."""
    at = iter(sorted(epochs))
    end, when = next(at)
    ways: dict[str, list[float]] = {
        TOTAL: [],
        "available -> published": [],
        "published -> sink": [],
    }
    for row in sorted(rows, key=lambda r: int(r["line"])):
        while row["line"] >= end:
            end, when = next(at)
        ways[TOTAL].append(row["committed"] - row["available"])
        ways["available -> published"].append(when - row["available"])
        ways["published -> sink"].append(row["committed"] - when)
    for way, seconds in ways.items():
        add(figures, name, way, seconds)


def run(settings: Settings) -> Figures:
    """Measure; the pairs take turns, the others idle."""
    figures = Figures()
    broker = Broker(settings.place)
    started: list[Any] = [broker]
    pairs: dict[str, Pair] = {}
    found: list[tuple[str, int, list[dict[str, Any]]]] = []
    try:
        for name in VARIANTS[:2]:
            pairs[name] = Pair(settings, name, broker=broker.url)
        try:
            kafka = Kafka(settings.place)
            started.append(kafka)
            pairs["kafka"] = KafkaPair(settings, kafka)
        except peer_jars.PeerMissingError as missing:
            figures.note(f"kafka: NOT MEASURED: {missing}")
        for round_ in range(settings.rounds + 1):
            figures.yardstick() if round_ else None
            for name in turns(tuple(pairs), round_):
                notes, since = pairs[name].run(round_)
                if round_:
                    found.append((name, round_, rows_of(notes, since)))
            settings.say(f"round {round_} of {settings.rounds} done")
    finally:
        for child in (*pairs.values(), *started):
            child.end()
    for name, round_, rows in found:
        if name == "kafka":
            total(figures, name, rows)
        else:
            log = pairs[name].feed.home / "log" / f"out-{name}-{round_}"
            evaluate(figures, name, rows, published(log))
    for other in [name for name in pairs if name != "tuned"]:
        figures.ratio(
            f"tuned / {other}, {TOTAL} p50", f"tuned: {TOTAL} p50", f"{other}: {TOTAL} p50"
        )
    figures.note(
        f"{RATE:,} rows/s; two applications of local[2] each, with two agents and a broker or with"
        " a Kafka on the same cores; trigger 0; the first 10 s of a round are left out; a row is"
        " available when the source's latestOffset may name it, and in the sink when the"
        " sink's commit is called."
    )
    figures.note(
        "tuned: the settings of pe_agent.local; untuned: Spark's own; kafka: those of tuned, Avro."
    )
    return figures
