"""How many routes are in which state, by what agents have reported."""

from __future__ import annotations

from typing import Any

from streambroker_core.model import PeKey
from streambroker_operator.rest.reports import FULL, STALE_S, Reports, read_report

FEED = PeKey.parse("default/feed/0")


def reader(import_: str, **figures: Any) -> dict[str, Any]:
    return {"import": f"default/alerts/0/{import_}", "reader": import_, "alive": True, **figures}


def export(*readers: dict[str, Any], waiting: tuple[str, ...] = ()) -> dict[str, Any]:
    waits = [f"default/alerts/0/{name}" for name in waiting]
    return {"exports": {"trades": {"waitingFor": waits, "readers": list(readers)}}}


def test_each_route_is_in_one_state() -> None:
    told = export(
        reader("slow", congestion=100, alive=False),
        reader("full", congestion=FULL),
        reader("away", alive=False, congestion=FULL - 1),
        reader("well", congestion=FULL - 1),
        reader("good"),
        waiting=("slow",),
    )
    reports = Reports()
    reports.take(FEED, read_report(told, 100.0))
    assert reports.states(100.0) == {"waits": 1, "full": 1, "away": 1, "reads": 2}


def test_readers_of_one_import_are_one_route() -> None:
    reports = Reports()
    two = export(reader("in", alive=False), reader("in", congestion=FULL))
    reports.take(FEED, read_report(two, 100.0))
    assert reports.states(100.0) == {"waits": 0, "full": 1, "away": 0, "reads": 0}


def test_the_last_report_of_an_agent_counts_until_it_is_stale() -> None:
    reports = Reports()
    reports.take(FEED, read_report(export(reader("in"), reader("other")), 100.0))
    reports.take(FEED, read_report(export(reader("in")), 130.0))
    reports.take(PeKey.parse("default/other/0"), read_report(export(reader("in")), 100.0))
    assert reports.states(130.0 + STALE_S)["reads"] == 1
    assert reports.states(130.5 + STALE_S)["reads"] == 0
