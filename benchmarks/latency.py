"""How long a row is under way from the exporting query's source to the importing query's sink."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, TypeAlias

import peer_jars
import timed_source
from kafka_node import Kafka
from measure import Figures, Settings, quantile, turns
from processes import App, Broker
from sources import STEADY_DDL

from pe_agent.agent.exports.stream.manifests import Manifest
from pe_agent.log.commit import Committer
from pe_agent.log.frames import Kind
from pe_agent.log.log import StreamLog

PURPOSE = (
    "latency: row available -> published -> importer's sink, 1,000 and 10,000 rows/s; our part"
)
RATES = {1000: ("tuned", "untuned", "empty", "kafka"), 10_000: ("tuned", "empty", "kafka")}
WARM_SECONDS = 8.0
TOTAL = "available -> sink"
Round: TypeAlias = "tuple[str, int, int, list[dict[str, Any]], float]"
"""Name of the pair, rate, round, rows, and since when they are counted."""
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
FEW = {name: share for name, share in SHARES.items() if name != "p99"}
"""Of a round's 60 micro-batches; their p99 would be their maximum, so it is of all rounds."""


class Pair:
    """Two applications; ports and checkpoints are new each round."""

    def __init__(self, settings: Settings, name: str, **plan: Any) -> None:
        self.place, self.name = settings.place, name
        self.seconds = 10.0 if settings.quick else 20.0
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

    def ways(self, name: str, steady: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
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

    def run(self, rate: int, round_: int) -> tuple[Path, float]:
        """Run both queries; return what the sink noted, and since when rows are counted."""
        name = f"{self.name}-{rate}-{round_}"
        notes = self.place / f"notes-{name}"
        since = time.time()
        steady = {"since": since, "rate": rate}
        sink, source = self.ways(name, steady)
        self.feed.send(
            source={"kind": "bench_steady", **steady},
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


class EmptyPair(Pair):
    """The same two queries, and between them a file with a number."""

    def ways(self, name: str, steady: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return sink and source of a round."""
        way = {"kind": "bench_hand_over", "path": str(self.place / f"line-{name}")}
        return dict(way), {**way, **steady}


class KafkaPair(Pair):
    """The same through Kafka, with the settings of ``tuned`` and Avro values."""

    def __init__(self, settings: Settings, kafka: Kafka) -> None:
        super().__init__(settings, "kafka", jars=peer_jars.jars("connector"))
        self.servers = kafka.servers

    def ways(self, name: str, steady: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
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
        for _, _, meta in stream.recovered_frames({Kind.MANIFEST}):
            manifest = Manifest.decode(meta)
            result.append((manifest.rows_before + manifest.rows, manifest.published))
        stream.close()
    committer.close()
    return result


def add(
    figures: Figures, name: str, way: str, seconds: list[float], shares: dict[str, float] = SHARES
) -> None:
    """Add a round's quantiles of one way."""
    for label, share in shares.items():
        figures.add(f"{name}: {way} {label}", quantile(seconds, share) * 1e3, "ms")


def total(figures: Figures, name: str, rows: list[dict[str, Any]]) -> None:
    """Add how long the rows of a round took in all."""
    add(figures, name, TOTAL, [row["committed"] - row["available"] for row in rows])


def halves(
    figures: Figures, name: str, rows: list[dict[str, Any]], epochs: list[tuple[int, float]]
) -> None:
    """Add how long the rows took until they were published, and from then on."""
    at = iter(epochs)
    end, when = next(at)
    ways: dict[str, list[float]] = {"available -> published": [], "published -> sink": []}
    for row in sorted(rows, key=lambda r: int(r["line"])):
        while row["line"] >= end:
            end, when = next(at)
        ways["available -> published"].append(when - row["available"])
        ways["published -> sink"].append(row["committed"] - when)
    for way, seconds in ways.items():
        add(figures, name, way, seconds)


def own(
    figures: Figures,
    name: str,
    noted: list[dict[str, Any]],
    epochs: list[tuple[int, float]],
    counted_from: float,
) -> dict[str, list[float]]:
    """Add what we take of the importing query's micro-batches; return it, too.

    From the publishing of an epoch to the answer of ``latestOffset``, or from the call if that
    came later: until then Spark was busy. And what ``partitions`` and ``read`` take.
    """
    parts: dict[str, list[float]] = {"answer": [], "partitions": [], "read": [], "our part": []}
    done = 0
    for offset in (n for n in noted if n["kind"] == "offset"):
        if not offset["next"]:
            continue  # the export is open, and has no epoch yet
        ((stream, next_),) = offset["next"].items()
        first, done = done, next_
        if offset["asked"] < counted_from or first == next_:
            continue
        took = {
            "answer": offset["answered"] - max(offset["asked"], epochs[first][1]),
            "partitions": sum(
                n["took"] for n in noted if n["kind"] == "cut" and n["next"] == offset["next"]
            ),
            "read": sum(
                n["took"]
                for n in noted
                if n["kind"] == "read" and n["stream"] == stream and first <= n["epoch"] < next_
            ),
        }
        for way, seconds in took.items():
            parts[way].append(seconds)
        parts["our part"].append(took["answer"] + took["read"])
    for way, every in parts.items():
        add(figures, name, way, every, FEW)
    return parts


def pairs_of(settings: Settings, figures: Figures, started: list[Any]) -> dict[str, Pair]:
    """Start what is measured; all that was started is in ``started``."""
    broker = Broker(settings.place)
    started.append(broker)
    folder = settings.place / "timed"
    folder.mkdir()
    pairs: dict[str, Pair] = {}

    def take(name: str, pair: Pair) -> None:
        pairs[name] = pair
        started.insert(0, pair)

    take("tuned", Pair(settings, "tuned", broker=broker.url, notes=str(folder)))
    take("untuned", Pair(settings, "untuned", broker=broker.url))
    take("empty", EmptyPair(settings, "empty"))
    try:
        kafka = Kafka(settings.place)
        started.append(kafka)
        take("kafka", KafkaPair(settings, kafka))
    except peer_jars.PeerMissingError as missing:
        figures.note(f"kafka: NOT MEASURED: {missing}")
    return pairs


def evaluate(
    settings: Settings, figures: Figures, pairs: dict[str, Pair], found: list[Round]
) -> None:
    """Add the figures of all rounds."""
    of_all: dict[tuple[str, str], list[float]] = {}
    for name, rate, round_, rows, since in found:
        label = f"{name}, {rate:,}/s"
        total(figures, label, rows)
        if name not in ("tuned", "untuned"):
            continue
        port = f"{name}-{rate}-{round_}"
        epochs = published(pairs[name].feed.home / "log" / f"out-{port}")
        halves(figures, label, rows, epochs)
        if name == "tuned":
            noted = timed_source.notes(settings.place / "timed", f"in-{port}")
            for way, seconds in own(figures, label, noted, epochs, since).items():
                of_all.setdefault((label, way), []).extend(seconds)
    for (label, way), seconds in of_all.items():
        figures.add(f"{label}: {way} p99 of all rounds", quantile(seconds, 0.99) * 1e3, "ms")


def run(settings: Settings) -> Figures:
    """Measure; the pairs take turns, the others idle."""
    figures = Figures()
    started: list[Any] = []
    found: list[Round] = []
    try:
        pairs = pairs_of(settings, figures, started)
        for round_ in range(settings.rounds + 1):
            figures.yardstick() if round_ else None
            for rate, variants in RATES.items():
                for name in turns(tuple(v for v in variants if v in pairs), round_):
                    notes, since = pairs[name].run(rate, round_)
                    if round_:
                        found.append((name, rate, round_, rows_of(notes, since), since))
            settings.say(f"round {round_} of {settings.rounds} done")
    finally:
        for child in started:
            child.end()
    evaluate(settings, figures, pairs, found)
    compare(figures, set(pairs))
    return figures


def compare(figures: Figures, there: set[str]) -> None:
    """Add the ratios, and what to know."""
    for rate, variants in RATES.items():
        for other in (v for v in variants if v != "tuned" and v in there):
            for share in ("p50", "p99"):
                figures.ratio(
                    f"tuned / {other}, {rate:,}/s, {TOTAL} {share}",
                    f"tuned, {rate:,}/s: {TOTAL} {share}",
                    f"{other}, {rate:,}/s: {TOTAL} {share}",
                )
    figures.note(
        "two applications of local[2] each, with two agents and a broker or with a Kafka on the"
        f" same cores; trigger 0; the first {WARM_SECONDS:.0f} s of a round are left out; a row is"
        " available when the source's latestOffset may name it, and in the sink when the"
        " sink's commit is called."
    )
    figures.note(
        "tuned: the settings of pe_agent.spark.local_session; untuned: Spark's own; kafka: those of"
        " tuned, Avro; empty: those of tuned, with a Python sink that writes a number into a file"
        " and a Python source that reads it and makes the rows again."
    )
    figures.note(
        "our part: from the publishing of an epoch, or from the call if that came later, to the"
        " answer of latestOffset, and what read() takes; partitions() is given apart."
    )
