"""How many routes are in which state, by what agents have reported."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from streambroker_core.model import Export, Import, PeKey, PortKey, kind_of
from streambroker_core.wire.manifests.ports import read_spec
from streambroker_core.wire.reports.health import HEALTHY, Health, HealthState
from streambroker_core.wire.reports.storage_status import StorageStatus
from streambroker_operator.agents.port_reports import LocalPortReports, ReportedPorts
from streambroker_operator.rest.agents.reports import (
    FULL_PERCENT,
    STALE_S,
    Reports,
    read_report,
)

FEED = PeKey.parse("default/feed/0")


def reader(import_: str, **figures: Any) -> dict[str, Any]:
    return {"import": f"default/alerts/0/{import_}", "reader": import_, "alive": True, **figures}


def export(*readers: dict[str, Any], waiting: tuple[str, ...] = ()) -> dict[str, Any]:
    waits = [f"default/alerts/0/{name}" for name in waiting]
    return {"exports": {"trades": {"waitingFor": waits, "readers": list(readers)}}}


def test_each_route_is_in_one_state() -> None:
    reported = export(
        reader("slow", congestion=100, alive=False),
        reader("full", congestion=FULL_PERCENT),
        reader("away", alive=False, congestion=FULL_PERCENT - 1),
        reader("well", congestion=FULL_PERCENT - 1),
        reader("good"),
        waiting=("slow",),
    )
    reports = Reports()
    reports.store(FEED, read_report(reported, 100.0))
    assert reports.count_states(100.0) == {"waits": 1, "full": 1, "ended": 0, "away": 1, "reads": 2}


def test_what_is_read_to_its_end_is_not_away() -> None:
    reported = export(reader("done", alive=False), reader("behind", alive=False, lagEpochs=1))
    reported["exports"]["trades"]["ended"] = True
    reports = Reports()
    reports.store(FEED, read_report(reported, 100.0))
    assert reports.count_states(100.0) == {"waits": 0, "full": 0, "ended": 1, "away": 1, "reads": 0}


def test_readers_of_one_import_are_one_route() -> None:
    reports = Reports()
    two = export(reader("in", alive=False), reader("in", congestion=FULL_PERCENT))
    reports.store(FEED, read_report(two, 100.0))
    assert reports.count_states(100.0) == {"waits": 0, "full": 1, "ended": 0, "away": 0, "reads": 0}


def test_the_last_report_of_an_agent_counts_until_it_is_stale() -> None:
    reports = Reports()
    reports.store(FEED, read_report(export(reader("in"), reader("other")), 100.0))
    reports.store(FEED, read_report(export(reader("in")), 130.0))
    reports.store(PeKey.parse("default/other/0"), read_report(export(reader("in")), 100.0))
    assert reports.count_states(130.0 + STALE_S)["reads"] == 1
    assert reports.count_states(130.5 + STALE_S)["reads"] == 0


def board_with(port: Export | Import) -> Any:
    """Return a board with one port."""
    kind = kind_of(port)
    ports = ([port.key.port], []) if kind == "Export" else ([], [port.key.port])
    board = SimpleNamespace(
        ports=lambda _: ports, holder=lambda wanted, _: port if wanted == kind else None
    )
    return cast(Any, board)


def test_the_health_of_an_import_is_published_when_it_changes() -> None:
    wanted = read_spec("Import", {"subscription": "a == 1"}, key=PortKey(*FEED, "trades"))
    assert isinstance(wanted, Import)
    reports = LocalPortReports(board_with(wanted))
    failed = HealthState(reason="DataLoss", message="It failed.")

    def report(health: Health) -> tuple[int, HealthState | None]:
        changed = reports.apply_report(FEED, ReportedPorts(health=health))
        return len(changed), reports.facts(wanted).healthy

    assert report(Health(is_reported=False)) == (0, None)
    assert report(Health()) == (1, HEALTHY)
    assert [report(Health(problems={("Import", "trades"): failed})) for _ in range(2)] == [
        (1, failed),
        (0, failed),
    ]
    assert report(Health()) == (1, HEALTHY)


def test_a_superseded_agent_is_shown_while_it_reports_in_turns_with_its_successor() -> None:
    trades = read_spec("Export", {"properties": {"kind": "a"}}, key=PortKey(*FEED, "trades"))
    assert isinstance(trades, Export)
    reports = LocalPortReports(board_with(trades))

    def report(superseded: bool) -> tuple[int, str]:
        uploads = {"trades": StorageStatus(superseded=superseded)}
        changed = reports.apply_report(FEED, ReportedPorts(storage=uploads, health=Health()))
        stored = reports.facts(trades).stored
        assert stored is not None
        return len(changed), stored.reason

    assert report(True) == (1, "Superseded")
    assert [report(one) for one in (False, True, False)] == [(0, "Superseded")] * 3
    assert report(False) == (1, "UpToDate"), "the second report in a row: the other has ended"
