"""Two Spark applications, one's rows to the other: through agents, and through Kafka."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cpu
import kafka_queries
import peer_jars
import queries
import rows
from kafka_node import Kafka
from measure import Figures, Settings, turns
from processes import STARTED, App, Broker, Family

PURPOSE = "Spark -> Spark through streambroker, against the same through Kafka, Avro and JSON"
VARIANTS = ("streambroker", "kafka avro", "kafka json")
CORES = 2
SECONDS = 600.0
JOBS = ("feed", "taker")


@dataclass
class Ran:
    """What one way did: batches, the share of rows an importer is given, processor seconds."""

    wrote: list[dict[str, Any]]
    read: list[list[dict[str, Any]]]
    share: float
    used: dict[str, float]


class Ways(Family):
    """A broker, a Kafka, and for each an exporting and an importing application."""

    def __init__(self, settings: Settings) -> None:
        connector = peer_jars.jars("connector")
        self.place = settings.place
        self.rows, self.quick = settings.rows, settings.quick
        super().__init__()
        try:
            self.kafka = self.with_(Kafka(self.place))
            self.broker = self.with_(Broker(self.place))
            ours: dict[str, Any] = {"broker": self.broker.url, "cores": CORES}
            theirs: dict[str, Any] = {"jars": connector, "cores": CORES}
            self.apps = {
                (way, job): self.with_(App(self.place, f"{way}-{job}", **plan))
                for way, plan in (("streambroker", ours), ("kafka", theirs))
                for job in JOBS
            }
            for app in self.apps.values():
                app.answer(SECONDS)
        except BaseException:
            self.end()
            raise

    def trip(
        self,
        name: str,
        tag: str,
        *,
        batches: int,
        filter_: str | None = None,
        importers: int = 1,
        at_once: int = 1,
    ) -> Ran:
        """Let one application write so many batches and queries of the other read all of them.

        A query takes up to ``at_once`` of the batches written in one of its own.
        """
        way, _, values = name.partition(" ")
        feed, taker = (self.apps[way, job] for job in JOBS)
        topic: dict[str, Any] = {"servers": self.kafka.servers}
        if values:
            feed.run(**topic, make=tag, drop=None)
        share = 0.1 if filter_ and not values else 1.0
        middle = self.kafka if values else self.broker
        processes = {"exporter": feed, "importer": taker, "": middle}
        before = {who: cpu.used(one.process.pid) for who, one in processes.items()}
        taker.send(
            queries=[
                {
                    "source": self._source(values, f"{tag}-{n}", tag, filter_, at_once),
                    "sink": {"kind": "noop"},
                    "checkpoint": str(self.place / "checkpoints" / f"from-{tag}-{n}"),
                    "rows": int(batches * self.rows * share),
                    "seconds": SECONDS,
                }
                for n in range(importers)
            ]
        )
        taker.line(STARTED)
        feed.send(
            source={"kind": "rate", "rows": self.rows},
            sink=self._sink(values, tag),
            checkpoint=str(self.place / "checkpoints" / f"to-{tag}"),
            batches=batches,
            seconds=SECONDS,
        )
        wrote = feed.answer(SECONDS)
        read = taker.answer(SECONDS)
        used: dict[str, float] = {}
        for who, one in processes.items():
            for kind, seconds in cpu.between(before[who], cpu.used(one.process.pid)).items():
                label = f"{who}'s {kind}" if who else "Kafka" if values else "broker"
                used[label] = used.get(label, 0.0) + seconds
        if values:
            feed.run(**topic, make=None, drop=tag)
        return Ran(wrote, read, share, used)

    def _sink(self, values: str, tag: str) -> dict[str, Any]:
        if values:
            return {
                "kind": "kafka",
                "servers": self.kafka.servers,
                "topic": tag,
                "values": values,
            }
        return {
            "kind": "export",
            "port": tag,
            "properties": {"kind": tag},
            "buffer": {"maxBytes": rows.BUFFER},
        }

    def _source(
        self, values: str, port: str, tag: str, filter_: str | None, at_once: int
    ) -> dict[str, Any]:
        if values:
            return {
                "kind": "kafka",
                "servers": self.kafka.servers,
                "topic": tag,
                "values": values,
                "rows": self.rows * at_once,
                "filter": filter_,
            }
        return {
            "kind": "import",
            "port": port,
            "subscription": f'kind == "{tag}"',
            "schema": rows.DDL,
            "filter": filter_,
            "max_bytes_per_batch": int((at_once - 0.5) * self.rows * rows.ROW_BYTES),
        }


def seconds(ran: Ran, fill: int, count: int, batch_rows: int) -> float:
    """Return seconds per 1 M rows that were written and read by all importers.

    From the begin of the first batch written after ``fill``, until each importer has done as
    many rows more than it had done then as were written in the ``count`` batches. So one that
    lags behind is not asked for rows that were written before, nor spared any.
    """
    since = float([b for b in ran.wrote if b["rows"]][fill]["began"])
    total = count * batch_rows
    until = max(
        queries.ended(read, queries.done(read, since) + ran.share * total) for read in ran.read
    )
    return (until - since) * 1e6 / total


def fill(ways: Ways, name: str) -> int:
    """Return how many batches are left out: until an export is full, or Kafka is warm."""
    return queries.FILL if name == "streambroker" and not ways.quick else queries.WARM


def measure(ways: Ways, figures: Figures, name: str, round_: int, count: int) -> float:
    """Measure one way; round 0 is left out. Returns seconds per 1 M rows."""
    ran = ways.trip(name, f"{name.replace(' ', '-')}-{round_}", batches=fill(ways, name) + count)
    took = seconds(ran, fill(ways, name), count, ways.rows)
    if round_:
        figures.add(f"{name}: rows", 1 / took, "M rows/s")
        figures.add(f"{name}: MB", rows.megabytes(1e6 / took), "MB/s")
        millions = sum(b["rows"] for b in ran.wrote) / 1e6
        for who, used in ran.used.items():
            figures.add(f"{name}: processor: {who}", used / millions, "s/M rows")
    return took


def run(settings: Settings) -> Figures:
    """Measure; round 0 warms up and is left out."""
    figures = Figures()
    count = 2 if settings.quick else 8
    ways = Ways(settings)
    try:
        for round_ in settings.turns:
            figures.yardstick() if round_ else None
            took = {
                name: measure(ways, figures, name, round_, count)
                for name in turns(VARIANTS, round_)
            }
            settings.say(f"round {round_} of {settings.rounds} done: {took}")
    finally:
        ways.end()
    for values in ("avro", "json"):
        figures.ratio(
            f"streambroker / kafka {values}", "streambroker: rows", f"kafka {values}: rows"
        )
    figures.note(
        f"two applications, local[{CORES}] each, and two agents with a broker, or a Kafka of one"
        f" node, on the same {CORES} cores; the other way's processes idle; {count} batches per"
        f" round after {queries.FILL} ({queries.WARM} of Kafka)."
    )
    figures.note(
        "from the begin of the exporter's first counted batch until the importer has done as many"
        " rows more as were written since."
    )
    figures.note(
        f"Kafka: {kafka_queries.PARTITIONS} partitions, one copy, no compression, acks=all, no"
        " fsync; an agent's fdatasync is in its figures."
    )
    return figures
