"""What an agent reports of its readers, and that a report never disturbs anything."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pe_agent.agent.broker.reporter import (
    MAX_INTERVAL_SECONDS,
    MAX_REPORT_BYTES,
    StatusReporter,
    build_report,
    mask_reader_id,
)
from streambroker_client.errors import BrokerRefusedError, BrokerUnavailableError
from streambroker_core.wire.reports.storage_status import MAX_ERROR
from support.agents.exports import Bench, bench, rows
from support.processes.waiting import until

RECEIVED = {"lagEpochs": 2, "duplicates": [1, 10], "successors": 1}
NOTHING: dict[str, Any] = {"exports": {}, "imports": {"readers": {}}}


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as one:
        yield one


def status(made: Bench, **own: Any) -> dict[str, Any]:
    """Return the status of an agent with one export and readers of imports."""
    return {"exports": {made.export.key: made.export.status()}, "imports": {"readers": own}}


def test_a_report_has_totals_and_what_each_reader_has_still_to_read(made: Bench) -> None:
    made.route("wait")
    made.publish(0, rows(0, 4))
    made.plan(filter_="n > 1")
    made.publish(1, rows(10, 5))
    made.publish(2, rows(20, 6))
    made.plan({made.stream: 1}, filter_="n > 1")
    report = build_report(status(made))

    (port,) = report["exports"]
    export = report["exports"][port]
    (reader,) = export["readers"]
    held = made.export.state.ledger.streams[made.stream]
    assert port == made.export.key.rpartition("/")[2]
    assert (export["streams"], export["epochs"], export["rows"]) == (1, 3, 15)
    assert export["bytes"] == held.bytes
    assert (reader["delivered"], reader["filtered"], reader["droppedRows"]) == (2, 2, 0)
    assert (reader["lagEpochs"], reader["lagBytes"]) == (2, held.bytes_from(1))
    assert (reader["policy"], reader["alive"]) == ("wait", True)
    assert (reader["lagRows"], reader["congestion"], reader["blockedSeconds"]) == (11, 0, 0)
    assert (reader["sentRows"], reader["sentBytes"], reader["releasedPlans"]) == (0, 0, 0)
    assert (reader["lostEpochs"], reader["lostRows"], reader["duplicateRows"]) == (0, 0, 0)
    assert reader["stalledSeconds"] == 0
    assert reader["plannedSince"] == "1970-01-01T00:16:40Z"
    assert (export["waitingSince"], export["gaps"], export["damaged"]) == (None, 0, [])


def test_a_report_names_a_reader_alike_on_both_sides_and_not_by_its_id(made: Bench) -> None:
    made.publish(0, rows(0, 1))
    made.plan(reader="secret")
    own = {"import": "default/feed/0/quotes", "alive": True, "pinned": {}, "refused": {}}
    found = build_report(
        status(made, secret={**RECEIVED, **own, "dropped": [0, 0], "lost": [0, 0]})
    )
    (port,) = found["exports"].values()
    (reader,) = port["readers"]
    (import_,) = found["imports"].values()
    assert import_["readers"][0]["reader"] == reader["reader"]
    assert "secret" not in json.dumps(found)


def test_a_reader_that_has_everything_lags_by_nothing(made: Bench) -> None:
    made.route("wait")
    made.publish(0, rows(0, 4))
    made.plan()
    made.plan({made.stream: 1})
    (reader,) = next(iter(build_report(status(made))["exports"].values()))["readers"]

    assert (reader["lagEpochs"], reader["lagBytes"]) == (0, 0)


def test_a_report_says_of_each_export_whether_it_has_ended(made: Bench) -> None:
    made.publish(0, rows(0, 4))
    said = []
    for _ in range(2):
        said += [export["ended"] for export in build_report(status(made))["exports"].values()]
        made.export.publisher.finish(query="q", run="r")

    assert said == [False, True]


def test_a_report_has_uploads_where_the_agent_has_object_storage(made: Bench) -> None:
    (without,) = build_report(status(made))["exports"].values()
    export = made.export.status()
    uploads = {"bytes": 5, "seconds": 61.9, "error": None, "superseded": False}
    found: list[Any] = []
    for error, count in ((None, 1), ("e" * 999, 1), ("e" * 999, 300)):
        one = {**export, "storage": {**uploads, "error": error}}
        exports = {f"{made.export.key}{n}": one for n in range(count)}
        report = build_report({"exports": exports, "imports": {"readers": {}}})
        found.append(next(iter(report["exports"].values()))["storage"])

    assert "storage" not in without
    assert found[0] == {"bytes": 5, "seconds": 61}
    assert [len(storage["error"]) for storage in found[1:]] == [MAX_ERROR, 50]
    assert {storage["error"][-2:] for storage in found[1:]} == {"e…"}


def test_a_report_has_the_version_that_was_published_last_and_not_its_columns(made: Bench) -> None:
    def reported() -> Any:
        (export,) = build_report(status(made))["exports"].values()
        return export.get("schemaVersion")

    found = [reported()]
    made.publish(0, rows(0, 1))
    found.append(reported())
    wider = rows(1, 1).append_column("m", pa.array([1], pa.int64()))
    more = {"ddl": f"{made.export.state.streams[made.stream].ddl}, m bigint"}
    made.admit(1, **more)
    stage = made.stage(1, wider, **more)
    found.append(reported())
    made.commit(1, stage, **more)
    found += [reported(), reported()]
    made.export = made.reopen()
    found.append(reported())

    assert found[:3] == [None, {"number": 1}, {"number": 1}], "staged rows are not published"
    assert [list(one) for one in found[3:]] == [["number", "since"]] * 3
    assert found[3]["number"] == 2
    assert found[3:] == [found[3]] * 3


def test_dropped_epochs_are_no_lag_any_more(made: Bench) -> None:
    made.limit(max_bytes=1)
    made.route("drop")
    made.publish(0, rows(0, 8))
    made.plan()
    for batch in range(1, 4):
        made.publish(batch, rows(100 * batch, 10))
    made.plan({made.stream: 1})
    made.plan({made.stream: 4})
    (reader,) = next(iter(build_report(status(made))["exports"].values()))["readers"]

    assert (reader["lagEpochs"], reader["droppedRows"]) == (0, 20)


def test_an_export_that_waits_names_the_imports_once(made: Bench) -> None:
    made.limit(max_bytes=1)
    made.route("wait")
    made.publish(0, rows(0, 8))
    made.plan()
    export = next(iter(build_report(status(made))["exports"].values()))

    assert export["waitingFor"] == [export["readers"][0]["import"]]
    assert export["held"] >= export["limit"] == 1


def test_own_readers_are_reported_by_port(made: Bench) -> None:
    own = {
        **RECEIVED,
        "import": "default/feed/0/quotes",
        "alive": True,
        "pinned": {"filter": "n > 1", "generation": 3},
        "refused": {"default/x/0/p": "FilterInvalid"},
        "dropped": [1, 10],
        "lost": [2, None],
    }
    report = build_report(status(made, r1=own, r2={**own, "alive": False, "pinned": {}}))

    assert report["imports"] == {
        "quotes": {
            "readers": [
                {
                    "reader": mask_reader_id("r1"),
                    **RECEIVED,
                    "alive": True,
                    "filter": "n > 1",
                    "generation": 3,
                    "refused": {"default/x/0/p": "FilterInvalid"},
                    "dropped": [1, 10],
                    "lost": [2, None],
                },
                {
                    "reader": mask_reader_id("r2"),
                    **RECEIVED,
                    "alive": False,
                    "filter": None,
                    "generation": None,
                    "refused": {"default/x/0/p": "FilterInvalid"},
                    "dropped": [1, 10],
                    "lost": [2, None],
                },
            ]
        }
    }


def test_a_report_of_very_many_readers_fits_and_leaves_out_those_that_are_away(
    made: Bench,
) -> None:
    made.route("wait")
    made.publish(0, rows(0, 4))
    made.plan()
    full = status(made)
    (figures,) = full["exports"].values()
    (one,) = figures["readers"].values()
    figures["readers"] = {f"reader {n}": {**one, "alive": n >= 990} for n in range(1_000)}
    report = build_report(full)
    alive = [r["alive"] for r in next(iter(report["exports"].values()))["readers"]]

    assert len(json.dumps(report)) <= MAX_REPORT_BYTES
    assert len(alive) >= 100
    assert alive[:10] == [True] * 10


# ---- sending ---------------------------------------------------------------------------------


class Broker:
    """Takes reports, or fails as it is told to."""

    def __init__(self, again: float = 0.5) -> None:
        self.again = again
        self.taken: list[dict[str, Any]] = []
        self.fault: Exception | None = None

    def __call__(self, report: dict[str, Any]) -> Any:
        if self.fault is not None:
            raise self.fault
        self.taken.append(report)
        return {"again": self.again}


def test_nothing_is_reported_before_the_first_poll() -> None:
    broker = Broker()
    reporter = StatusReporter(lambda: NOTHING, broker)
    reporter.start()
    assert broker.taken == []
    reporter.on_poll()
    until(lambda: broker.taken, 30, "a report")
    reporter.close()

    assert broker.taken[0] == {"exports": {}, "imports": {}}


def test_reports_go_on_as_often_as_the_broker_says() -> None:
    broker = Broker(again=0.5)
    reporter = StatusReporter(lambda: NOTHING, broker)
    reporter.start()
    reporter.on_poll()
    until(lambda: len(broker.taken) >= 3, 10.0, "a third report")
    reporter.close()


@pytest.mark.parametrize(
    ("answer", "seconds"), [(1, 1.0), (30, 30.0), (0, 0.5), (-5, 0.5), (1e9, MAX_INTERVAL_SECONDS)]
)
def test_how_soon_the_broker_may_ask_is_bounded(answer: float, seconds: float) -> None:
    assert StatusReporter(lambda: NOTHING, Broker(again=answer)).report() == seconds


@pytest.mark.parametrize(
    ("fault", "seconds"),
    [
        (BrokerUnavailableError("away"), 0.5),
        (BrokerRefusedError(404, {"code": "NotFound"}), MAX_INTERVAL_SECONDS),
        (BrokerRefusedError(429, {"code": "TooManyRequests"}), MAX_INTERVAL_SECONDS),
        (KeyError("again"), 0.5),
    ],
)
def test_a_report_that_fails_is_forgotten_and_the_next_waits_for_a_poll(
    fault: Exception, seconds: float
) -> None:
    broker = Broker()
    broker.fault = fault
    reporter = StatusReporter(lambda: NOTHING, broker)
    reporter.on_poll()

    assert reporter.report() == seconds
    assert not reporter._polled.is_set()


def test_a_status_that_fails_does_not_end_the_reports() -> None:
    failing = threading.Event()
    failing.set()

    def status() -> dict[str, Any]:
        if failing.is_set():
            failing.clear()
            raise OSError("disk")
        return NOTHING

    broker = Broker()
    reporter = StatusReporter(status, broker)
    reporter.start()

    def reported() -> list[dict[str, Any]]:
        reporter.on_poll()
        return broker.taken

    until(reported, 30, "a report after a failure")
    reporter.close()
