"""One export and many importing queries that keep a tenth of its rows, against Kafka."""

from __future__ import annotations

from measure import Figures, Settings, turns
from spark_to_kafka_to_spark import Ways, fill, seconds

PURPOSE = "fan-out: 1 and 10 importing queries that keep a tenth, against Kafka with Avro"
WAYS = ("streambroker", "kafka avro")
IMPORTERS = (1, 10)
FEW = (1, 2)
"""For a short look."""
FILTER = "d < 100"
"""Keeps a tenth: ``d`` counts to a thousand and begins again."""
AT_ONCE = 3
"""Batches of the exporter that an importer may take in one: as many as the export's buffer keeps,
240 MB, which is about what an import takes of itself. The same of Kafka."""


def measure(ways: Ways, figures: Figures, variant: tuple[str, int], round_: int) -> float:
    """Measure one way; round 0 is left out. Returns seconds per 1 M rows exported."""
    way, importers = variant
    skipped = fill(ways, way)
    ran = ways.trip(
        way,
        f"{way.replace(' ', '-')}-{importers}-{round_}",
        batches=skipped + count(ways),
        filter_=FILTER,
        importers=importers,
        at_once=AT_ONCE,
    )
    took = seconds(ran, skipped, count(ways), ways.rows)
    if round_:
        name = f"{way}, {importers} importers"
        figures.add(f"{name}: rows exported", 1 / took, "M rows/s")
        millions = sum(b["rows"] for b in ran.wrote) / 1e6
        figures.add(f"{name}: processor", sum(ran.used.values()) / millions, "s/M rows")
        for who, used in ran.used.items():
            figures.add(f"{name}: processor: {who}", used / millions, "s/M rows")
    return took


def count(ways: Ways) -> int:
    """Return how many batches are counted; ten readers of Kafka take ten times as long."""
    return 2 if ways.quick else 9


def run(settings: Settings) -> Figures:
    """Measure; round 0 warms up, with one importer, and is left out."""
    figures = Figures()
    numbers = FEW if settings.quick else IMPORTERS
    variants = tuple((way, importers) for importers in numbers for way in WAYS)
    ways = Ways(settings)
    try:
        for way in WAYS if 0 in settings.turns else ():
            measure(ways, figures, (way, 1), 0)
        for round_ in range(1, settings.rounds + 1):
            figures.yardstick()
            order = turns([f"{n}" for n in range(len(variants))], round_)
            took = {
                variants[int(n)]: measure(ways, figures, variants[int(n)], round_) for n in order
            }
            settings.say(f"round {round_} of {settings.rounds} done: {took}")
    finally:
        ways.end()
    for importers in numbers:
        for what in ("rows exported", "processor"):
            ours, theirs = (f"{way}, {importers} importers: {what}" for way in WAYS)
            figures.ratio(f"streambroker / kafka avro, {importers} importers: {what}", ours, theirs)
    figures.note(
        f"the importing queries run in one application of local[2] and keep `{FILTER}`: an agent"
        " sends what is kept, from Kafka each query reads, decodes and then drops;"
        f" {count(ways)} batches per round, up to {AT_ONCE} of them in one of an importer;"
        " until the last importer has them."
    )
    return figures
