"""Draw a chart of each performance claim: ``python docs/charts.py [FIGURES] [FOLDER]``.

FIGURES is a file that ``python -m benchmarks --json FIGURES`` wrote. A bar is the median of the
rounds, the line across it goes from the least to the greatest. Charts whose benchmark was not
measured are left out.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "benchmarks/measured.json"
IMAGES = ROOT / "docs/images"
OURS, PEERS = "#2563a8", "#9aa3ad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """What one chart shows.

    Attributes:
        benchmark: name of the benchmark.
        title: what was measured.
        better: the direction that is better, ``more`` or ``less``.
        ours: label of each of our bars, and the name of its figure.
        peers: the same of what it is compared with.
        is_logarithmic: whether the axis is; then a bar begins at its least power of ten.
    """

    benchmark: str
    title: str
    better: str
    ours: Mapping[str, str]
    peers: Mapping[str, str]
    is_logarithmic: bool = False


CHARTS: dict[str, Chart] = {
    "kafka": Chart(
        benchmark="spark_to_kafka_to_spark",
        title="Rows from one Spark application to another",
        better="more",
        ours={"streambroker": "streambroker: rows"},
        peers={"Kafka, Avro": "kafka avro: rows", "Kafka, JSON": "kafka json: rows"},
    ),
    "fan-out": Chart(
        benchmark="fan_out",
        title="Rows exported to ten queries that keep a tenth each",
        better="more",
        ours={"streambroker": "streambroker, 10 importers: rows exported"},
        peers={"Kafka, Avro": "kafka avro, 10 importers: rows exported"},
    ),
    "change": Chart(
        benchmark="change_to_route",
        title="A filter change by REST until the exporter's agent applies it, p50",
        better="less",
        ours={"with hints": "hints: p50"},
        peers={"next poll, without hints": "no hints: p50"},
        is_logarithmic=True,
    ),
    "matching": Chart(
        benchmark="matching",
        title="Match a new Export against 100,000 subscriptions, p50",
        better="less",
        ours={"index": "new export against 100,000, p50"},
        peers={"try each subscription": "new export against 100,000, scan, p50"},
        is_logarithmic=True,
    ),
    "latency": Chart(
        benchmark="latency",
        title="From a row that is available to the importer's sink, 10,000 rows/s, p99",
        better="less",
        ours={
            "streambroker": "tuned, 10,000/s: available -> sink p99",
        },
        peers={
            "a pair that hands over a number": "empty, 10,000/s: available -> sink p99",
            "Kafka, Avro": "kafka, 10,000/s: available -> sink p99",
        },
    ),
    "latency-median": Chart(
        benchmark="latency",
        title="From a row that is available to the importer's sink, 1,000 rows/s, p50",
        better="less",
        ours={"streambroker": "tuned, 1,000/s: available -> sink p50"},
        peers={
            "a pair that hands over a number": "empty, 1,000/s: available -> sink p50",
            "Kafka, Avro": "kafka, 1,000/s: available -> sink p50",
        },
    ),
    "stored": Chart(
        benchmark="spark_to_spark_stored",
        title="Rows from one Spark application to another, with a bucket behind the export",
        better="more",
        ours={"durability: local": "local: rows", "durability: stored": "stored: rows"},
        peers={"no bucket": "disk: rows"},
    ),
    "side-joins": Chart(
        benchmark="side_joins",
        title="Join rows with a table of 1,000,000 entries",
        better="more",
        ours={
            "side input, by default without state": "stateless, 1M: rows",
            "side input, with state": "table, 1M: rows",
        },
        peers={"Spark's broadcast join": "broadcast, 1M: rows"},
    ),
    "micro-batch": Chart(
        benchmark="micro_batch",
        title="A micro-batch of a stateful query with 1,000 rows/s, p50",
        better="less",
        ours={
            "one operator": "1000/s: operator: p50",
            "four operators": "1000/s: 4 operators: p50",
            "four operators in one hop": "1000/s: 4 operators in one hop: p50",
        },
        peers={
            "dropDuplicates": "1000/s: dropDuplicates: p50",
            "a bare stateful hop": "1000/s: bare hop with state: p50",
        },
    ),
    "patterns": Chart(
        benchmark="cep_spark",
        title="Events through a pattern of three stages, two cores",
        better="more",
        ours={
            "1 % of events fit a stage": "relaxed 3, 1.0%, 2 cores",
            "10 % fit": "relaxed 3, 10.0%, 2 cores",
        },
        peers={
            "Flink CEP, 1 %": "relaxed 3, 1.0%, 2 cores, Flink",
            "Flink CEP, 10 %": "relaxed 3, 10.0%, 2 cores, Flink",
        },
    ),
    "rules": Chart(
        benchmark="cep_rules",
        title="Time of a core for an event, with 10,000 keys",
        better="less",
        ours={
            "500 rules": "500 rules, 10,000 keys, last of 20 windows",
            "50 rules": "50 rules, 10,000 keys, last of 100 windows",
        },
        peers={},
    ),
}


def spec_of(chart: Chart, results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Vega-Lite specification of a chart.

    Raises:
        KeyError: the results lack one of its figures.
    """
    measured = results["benchmarks"][chart.benchmark]
    bars = [(label, name, OURS) for label, name in chart.ours.items()]
    bars += [(label, name, PEERS) for label, name in chart.peers.items()]
    figures = {name: measured["figures"][name] for _, name, _ in bars}
    values = [
        {"label": label, "colour": colour, "text": format_number(figures[name]["median"])}
        | {key: figures[name][key] for key in ("median", "min", "max")}
        for label, name, colour in bars
    ]
    (unit,) = {figure["unit"] for figure in figures.values()}
    cores, day = results["machine"]["cpus"], measured["at"][:10]
    x: dict[str, Any] = {"field": "median", "type": "quantitative", "title": unit}
    x2: dict[str, Any] = {}
    if chart.is_logarithmic:
        least, greatest = (f([v["median"] for v in values]) for f in (min, max))
        domain = [10 ** math.floor(math.log10(least)), 10 ** math.ceil(math.log10(greatest))]
        x["scale"], x2["x2"] = {"type": "log", "domain": domain}, {"datum": domain[0]}
    label = {"field": "label", "type": "nominal", "sort": None, "title": None}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "background": "white",
        "padding": 12,
        "width": 460,
        "height": {"step": 32},
        "data": {"values": values},
        "title": {
            "text": chart.title,
            "subtitle": f"{chart.better} is better; median of {measured['rounds']} rounds, the line"
            f" from least to greatest; {cores} cores, {day}",
            "anchor": "start",
        },
        "encoding": {"y": label | {"axis": {"domain": False, "ticks": False, "labelLimit": 260}}},
        "layer": [
            {
                "mark": {"type": "bar", "height": 18},
                "encoding": {"x": x, **x2, "color": {"field": "colour", "scale": None}},
            },
            {
                "mark": {"type": "rule", "strokeWidth": 2, "color": "#222222"},
                "encoding": {"x": x | {"field": "min"}, "x2": {"field": "max"}},
            },
            {
                "mark": {"type": "text", "align": "left", "dx": 6},
                "encoding": {"x": x | {"field": "max"}, "text": {"field": "text"}},
            },
        ],
        "config": {"view": {"stroke": None}, "axis": {"gridColor": "#eeeeee"}},
    }


def format_number(value: float) -> str:
    """Return a figure with three digits, and without an exponent."""
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}"


def mark_of(spec: Mapping[str, Any]) -> str:
    """Return the comment that a drawing of this specification begins with."""
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
    return f"<!-- drawn by docs/charts.py from {digest[:16]} -->"


def main(figures: Path, folder: Path) -> None:
    """Draw the charts of a file of figures into a folder."""
    import vl_convert  # only the environment of `make docs` has it

    results = json.loads(figures.read_text())
    for name, chart in CHARTS.items():
        if chart.benchmark in results["benchmarks"]:
            spec = spec_of(chart, results)
            drawing = vl_convert.vegalite_to_svg(spec, vl_version="5.20")
            (folder / f"chart-{name}.svg").write_text(f"{mark_of(spec)}\n{drawing}\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]), *(MEASURED, IMAGES)[len(sys.argv) - 1 :])
