"""Spark to Spark with object storage behind the export, against the same without."""

from __future__ import annotations

import os
from typing import Any

import agent_to_spark
import queries
import rows
from measure import Figures, Settings, turns
from object_storage import WAYS, servers
from processes import App, Broker, Family
from spark_to_spark import CORES, seconds_per_million

PURPOSE = "Spark -> Spark: the disk alone, with `local` uploads behind it, and `stored` directly"
STORAGE = "STREAMBROKER_STORAGE"


class Bench(Family):
    """An exporting application for each way, and one that imports from them in turn."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.count = 2 if settings.quick else 10
        broker = self.with_(Broker(settings.place)).url
        self.feeds = dict[str, App]()
        for way in WAYS:
            os.environ.pop(STORAGE, None)
            if way != "disk":
                os.environ[STORAGE] = "s3://rows/bench"
            feed = App(settings.place, f"feed-{way}", broker=broker, cores=CORES)
            self.feeds[way] = self.with_(feed)
        os.environ.pop(STORAGE, None)
        self.taker = self.with_(App(settings.place, "taker", broker=broker, cores=CORES))
        for app in (*self.feeds.values(), self.taker):
            app.ready()

    def measure(self, way: str, round_: int) -> float:
        """Run both queries; return seconds per 1 M rows, as `spark_to_spark` does."""
        total, name = self.count + queries.FILL, f"{way}-{round_}"
        sink: dict[str, Any] = {"kind": "export", "port": name, "properties": {"kind": name}}
        sink["buffer"] = {"maxBytes": rows.BUFFER}
        if way == "stored":
            sink["durability"] = "stored"
        source = agent_to_spark.source("agent", self.settings)
        place = self.settings.place / "checkpoints"
        self.taker.send(
            source={**source, "port": f"from-{name}", "subscription": f'kind == "{name}"'},
            sink={"kind": "noop"},
            checkpoint=str(place / f"reading-{name}"),
            rows=total * self.settings.rows,
        )
        wrote = self.feeds[way].run(
            source={"kind": "rate", "rows": self.settings.rows},
            sink=sink,
            checkpoint=str(place / f"writing-{name}"),
            batches=total,
        )
        return seconds_per_million(wrote, self.taker.answer(), self.count, self.settings.rows)


def run(settings: Settings) -> Figures:
    """Measure; round 0 warms up and is left out."""
    figures = Figures()
    with servers(settings.place):
        bench = Bench(settings)
        try:
            for round_ in range(settings.rounds + 1):
                if round_:
                    figures.yardstick()
                for way in turns(WAYS, round_):
                    rate = 1 / bench.measure(way, round_)
                    settings.say(f"round {round_}, {way}: {rate:.2f} M rows/s")
                    if round_:
                        figures.add(f"{way}: rows", rate, "M rows/s")
        finally:
            bench.end()
    for way in WAYS[1:]:
        figures.ratio(f"{way} / disk", f"{way}: rows", "disk: rows")
    figures.note(
        f"two applications, local[{CORES}] each, with an agent each, a broker and the S3 server on"
        f" the same {CORES} cores; {bench.count} batches per round after {queries.FILL}."
    )
    return figures
