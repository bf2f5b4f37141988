"""Patterns on the core's engine against Flink CEP: the same events, the same matches, one core."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from flink_peer import Flink, Mode, write
from measure import Figures, Settings, turns
from pattern_runs import BATCH, Engine, Workload

PURPOSE = "patterns over Arrow batches without Spark, one core, against Flink CEP on one core"
WORKLOADS = (
    *(Workload(shape="relaxed", share=share) for share in (0.001, 0.01, 0.1)),
    Workload(shape="relaxed", stages=5),
    *(Workload(shape="strict", share=share) for share in (0.001, 0.01, 0.1)),
    Workload(shape="strict", stages=5),
    *(Workload(shape="loop", share=share) for share in (0.01, 0.1)),
    Workload(shape="negation", stages=2),
    Workload(shape="relaxed", keys=100_000),
)
TIMED = (WORKLOADS[2], WORKLOADS[9])
"""Workloads whose timed-out partial matches are reported, too."""
OURS = {"": (False, WORKLOADS), ", time-outs reported": (True, TIMED)}
"""How ours runs: whether it reports time-outs, and with which workloads."""
MODES: dict[str, tuple[Mode, str, tuple[Workload, ...]]] = {
    "Flink": ("plain", "", WORKLOADS),
    "Flink without exchange": ("chained", "", (WORKLOADS[1],)),
    "Flink, time-outs reported": ("timeouts", ", time-outs reported", TIMED),
}
"""How Flink runs, its peer of ours, and with which workloads."""


class MatchesDifferError(Exception):
    """Ours and the peer's are not the same number."""

    def __init__(self, workload: Workload, ours: int, theirs: int) -> None:
        super().__init__(f"{workload}: {ours:,} matches, and Flink has {theirs:,}")


class Prepared:
    """The events of a workload, in memory and as a file."""

    def __init__(self, workload: Workload, count: int, place: Path) -> None:
        self.workload = workload
        self.batch: pa.RecordBatch = workload.events(count)
        self.file = place / f"events-{workload.share}-{workload.keys}"
        if not self.file.exists():
            write(self.batch, self.file)


def checked(workload: Workload, ours: int, theirs: int) -> None:
    """See that both have found the same.

    Raises:
        MatchesDifferError: they have not.
    """
    if ours != theirs:
        raise MatchesDifferError(workload, ours, theirs)


def run(settings: Settings) -> Figures:
    """Measure the workloads in turns; of each first one side, then the other."""
    figures = Figures()
    given = {str(each): Prepared(each, settings.rows, settings.place) for each in WORKLOADS}
    flink = Flink(settings.place, cores=1)
    try:
        for round_ in settings.turns:
            if round_:
                figures.yardstick()
            for name in turns(list(given), round_):
                settings.say(f"round {round_}: {name}")
                found = _both(given[name], flink, ours_first=bool(round_ % 2))
                for what, rate in found.items() if round_ else ():
                    figures.add(f"{name}{what}", rate, "M/s")
    finally:
        flink.end()
    for name in given:
        for peer, (_, ours, _) in MODES.items():
            if f"{name}, {peer}" in figures.samples:
                figures.ratio(f"{name}: against {peer}", f"{name}{ours}", f"{name}, {peer}")
    figures.note(
        f"{settings.rows:,} events; ours in windows of {BATCH:,}, state written and read each"
        " window; Flink 1.20 with its state in memory, no checkpoints, object reuse, event time."
    )
    figures.note("Seconds are those that the core gave to a side, so others count little.")
    figures.note("The number of matches was the same, of all workloads and in each round.")
    return figures


def _both(given: Prepared, flink: Flink, *, ours_first: bool) -> dict[str, float]:
    """Return M events/s of each side."""
    found: dict[str, float] = {}
    counts: dict[str, int] = {}

    def ours() -> None:
        for how, (timeouts, workloads) in OURS.items():
            if given.workload in workloads:
                engine = Engine([given.workload.pattern()], timeouts=timeouts)
                with one_core():
                    ran = engine.run(given.batch)
                found[how], counts["ours"] = ran.seconds, ran.matches

    def theirs() -> None:
        for how, (mode, _, workloads) in MODES.items():
            if given.workload in workloads:
                answer = flink.run(given.workload, given.file, mode)
                found[f", {how}"], counts["theirs"] = answer.processor, answer.matches

    for side in (ours, theirs) if ours_first else (theirs, ours):
        side()
    checked(given.workload, counts["ours"], counts["theirs"])
    return {what: given.batch.num_rows / seconds / 1e6 for what, seconds in found.items()}


@contextmanager
def one_core() -> Iterator[None]:
    """Keep this thread on the core that the peer has, which rests meanwhile."""
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(every)[:1])
    try:
        yield
    finally:
        os.sched_setaffinity(0, every)
