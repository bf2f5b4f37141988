"""Patterns in a Spark query against Flink CEP, on one core and on two."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pattern_app
from cep_peer import Prepared, checked
from flink_peer import Flink
from measure import Figures, Settings, turns
from pattern_app import BATCHES, BUCKETS, FEW, WARM, PatternApp
from pattern_runs import Workload
from processes import Family

PURPOSE = "patterns in a Spark query against Flink CEP, on one core and on two"
WORKLOADS = (
    Workload(shape="relaxed"),
    Workload(shape="relaxed", share=0.1),
    Workload(shape="strict"),
    Workload(shape="loop", share=0.1),
    Workload(shape="relaxed", keys=100_000),
)
CORES = {"1 core": 1, "2 cores": 2}


def run(settings: Settings) -> Figures:
    """Measure the workloads in turns, of each one side after the other."""
    figures = Figures()
    family = Family()
    given = {str(each): Prepared(each, settings.rows, settings.place) for each in WORKLOADS}
    try:
        ours = {how: family.with_(_app(settings, n)) for how, n in CORES.items()}
        theirs = {how: family.with_(Flink(settings.place, n)) for how, n in CORES.items()}
        _write(settings, given)
        if not settings.quick:
            _warm(settings, ours)
        for round_ in settings.turns:
            if round_:
                figures.yardstick()
            for name in turns(list(given), round_):
                for how in turns(list(CORES), round_):
                    settings.say(f"round {round_}: {name}, {how}")
                    each = given[name]
                    place = _files(settings, each, CORES[how])
                    ran = ours[how].run(**_order(settings, each.workload, place, CORES[how]))
                    answer = theirs[how].run(each.workload, each.file)
                    checked(each.workload, ran["matches"], answer.matches)
                    if round_:
                        flink = settings.rows / answer.seconds / 1e6
                        figures.add(f"{name}, {how}", rate(ran["batches"]), "M/s")
                        figures.add(f"{name}, {how}, Flink", flink, "M/s")
    finally:
        family.end()
    for name in [f"{each}, {how}" for each in given for how in CORES]:
        figures.ratio(f"{name}: against Flink", name, f"{name}, Flink")
    figures.note(
        f"{settings.rows:,} events; ours from Parquet files in {BATCHES} micro-batches, of which"
        f" the first is left out, after {WARM} small ones that warm up, into noop, with Spark's"
        f" checkpoint and state store, in {BUCKETS} buckets;"
        " Flink 1.20 from memory, without checkpoints, as many tasks as cores. Neither tells"
        " time-outs."
    )
    figures.note("The number of matches was the same, of all workloads and in each round.")
    return figures


def rate(batches: list[dict[str, Any]]) -> float:
    """Return M events/s: from the end of the first micro-batch to that of the last full one."""
    ends = [each["began"] + each["ms"]["triggerExecution"] / 1e3 for each in batches]
    rows = sum(each["rows"] for each in batches[1:BATCHES])
    return float(rows / (ends[BATCHES - 1] - ends[0]) / 1e6)


def _app(settings: Settings, cores: int) -> PatternApp:
    conf = {"spark.sql.shuffle.partitions": str(cores)}
    app = PatternApp(settings.place, f"patterns-{cores}", cores=cores, conf=conf)
    app.ready()
    return app


def _write(settings: Settings, given: dict[str, Prepared]) -> None:
    for each in given.values():
        for cores in CORES.values():
            if not _files(settings, each, cores).exists():
                pattern_app.write(each.batch, _files(settings, each, cores), cores)


def _warm(settings: Settings, ours: dict[str, PatternApp]) -> None:
    """Let JVMs compile what is called as often in a small micro-batch as in a large one."""
    for how, cores in CORES.items():
        place = settings.place / f"warm-{cores}"
        pattern_app.write(WORKLOADS[0].events(WARM * FEW), place, cores, WARM)
        ours[how].run(**_order(settings, WORKLOADS[0], place, cores))
        settings.say(f"{how}: warm")


def _files(settings: Settings, each: Prepared, cores: int) -> Path:
    return settings.place / f"{each.file.name}-{cores}"


def _order(settings: Settings, each: Workload, place: Path, cores: int) -> dict[str, Any]:
    return {
        "place": str(place),
        "files": cores,
        "workload": asdict(each),
        "checkpoint": mkdtemp(dir=settings.place, prefix="checkpoint-"),
    }
