"""Explain one import against all exports; foretell changes on a full board; lint it.

The peer of explaining is the plain way: explain every pair in full, then sort. Rank by
count and rank by explanation have to agree, and do: it is checked before the rounds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from measure import Figures, Settings, quantile
from population import export, import_

from streambroker_core.board import Board, Synced
from streambroker_core.diagnose import (
    BoardSnapshot,
    Proposal,
    collect_lint_input,
    collect_offered,
    explain_pair,
    explain_port,
    forecast,
    lint,
    lint_import,
    take_snapshot,
)
from streambroker_core.model import Import

PURPOSE = "explaining one import, what-if and lint on a full board, against explaining every pair"
EXPORTS = 10_000
IMPORTS = 10_000
ASKED = 20
LIMIT = 20


def milliseconds(work: Callable[[], Any]) -> float:
    """Return how long a piece of work takes."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


def explained(board: Board, asked: Import) -> Any:
    """Do what the broker does for one import: look at the board, rank, explain, lint."""
    known = take_snapshot(board.reader)
    ranking = explain_port(known, asked, limit=LIMIT)
    lint_import(asked, collect_offered(known), matched=bool(ranking.matched))
    return ranking.pairs


def plainly(known: BoardSnapshot, asked: Import) -> Any:
    """Do the same without counting first."""
    pairs = [explain_pair(one, asked) for one in known.exports]
    return tuple(sorted(pairs, key=lambda pair: (pair.distance, pair.export))[:LIMIT])


def filled(rng: random.Random, exports: int, imports: int) -> Board:
    """Return a board of the population."""
    board = Board()
    offered = tuple((export(rng, number), 1) for number in range(exports))
    wanted = tuple((import_(rng, number), 1) for number in range(imports))
    board.handle(Synced(kind="Export", listed=offered, version=1))
    board.handle(Synced(kind="Import", listed=wanted, version=1))
    return board


def proposal(rng: random.Random, changes: int) -> Proposal:
    """Return changes of resources that are there, half Exports, half Imports."""
    puts = [
        export(rng, number) if number % 2 else import_(rng, number) for number in range(changes)
    ]
    return Proposal(puts=tuple(replace(resource, uid="") for resource in puts))


def run(settings: Settings) -> Figures:
    """Measure; round 0 warms up and is left out."""
    figures = Figures()
    share = 10 if settings.quick else 1
    rng = random.Random(4)
    settings.say("filling the board")
    board = filled(rng, EXPORTS // share, IMPORTS // share)
    for number in range(3):
        asked = import_(rng, number)
        if explained(board, asked) != plainly(take_snapshot(board.reader), asked):
            raise AssertionError(f"counted and explained distances differ: {asked.subscription}")
    for round_ in range(settings.rounds + 1):
        samples = _round(board, rng)
        if round_:
            figures.yardstick()
            for name, value in samples.items():
                figures.add(name, value, "ms")
    figures.ratio("explain, p50 / every pair in full", "explain, p50", "every pair in full, p50")
    figures.note(
        f"{EXPORTS // share:,} exports, {IMPORTS // share:,} imports, {board.reader.route_count:,} "
        f"routes; {ASKED} new subscriptions per round, {LIMIT} pairs explained in full."
    )
    return figures


def _round(board: Board, rng: random.Random) -> dict[str, float]:
    asked = [import_(rng, number) for number in range(ASKED)]
    known = take_snapshot(board.reader)
    times = [milliseconds(partial(explained, board, one)) for one in asked]
    plain = [milliseconds(partial(plainly, known, one)) for one in asked[:2]]
    one, many = proposal(rng, 1), proposal(rng, 200)
    return {
        "explain, p50": quantile(times, 0.5),
        "explain, max": max(times),
        "every pair in full, p50": quantile(plain, 0.5),
        "what-if of 1 change": milliseconds(partial(forecast, board.reader, one)),
        "what-if of 200 changes": milliseconds(partial(forecast, board.reader, many)),
        "lint everything": milliseconds(lambda: lint(collect_lint_input(board.reader, known))),
    }
