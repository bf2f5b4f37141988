"""What a broker shows of ports whose queries fail: real agents report it, and when it is over."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pe_agent.client.connect import connect
from streambroker_core.errors import StreambrokerError
from support.agents.agents import Publishing, Reading, error_code, rows
from support.agents.connected import Connected
from support.agents.sources import Run
from support.processes.waiting import until

SECONDS = 60.0
OVER_SECONDS = 150.0
"""A failure is over after half a minute, and busy machines are late."""

pytestmark = pytest.mark.slow


@pytest.fixture
def connected(tmp_path: Path) -> Iterator[Connected]:
    made = Connected(tmp_path)
    try:
        yield made
    finally:
        made.end()


def begin(connected: Connected) -> None:
    connected.start()
    connected.declare(connected.exporter, "export", properties={"kind": "trade"})
    connected.declare(
        connected.importer, "import", subscription='kind == "trade"', start="earliest"
    )
    until(lambda: connected.at() == connected.exporter.location, SECONDS, "the route")


def await_health(
    connected: Connected, kind: str, reason: str, meanwhile: Callable[[], object] = lambda: None
) -> str:
    """Wait until the broker shows a reason in the status of a port; return its message."""
    namespace = connect(connected.broker.url).in_namespace("default")
    job = "feed" if kind == "exports" else "alerts"
    read = namespace.exports if kind == "exports" else namespace.imports

    def shown() -> str | None:
        meanwhile()
        (port,) = [one for one in read() if one["spec"]["job"] == job]
        healthy = port["status"].get("healthy", {})
        return f"{reason}: {healthy['message']}" if healthy.get("reason") == reason else None

    return str(until(shown, OVER_SECONDS, f"{kind} {reason}"))


def test_data_loss_is_shown_until_a_query_runs_again_and_then_what_that_query_has_lost(
    connected: Connected,
) -> None:
    begin(connected)
    await_health(connected, "imports", "AsExpected")
    publisher = Publishing(connected.exporter)
    publisher.publish(0, rows(0, 3))
    run = Run(connected.importer, reconnect=SECONDS)
    until(lambda: run.plan() != run.at and run.read(run.plan()), SECONDS, "the first rows")
    publisher.publish(1, rows(3, 3))

    connected.exporter.kill()
    shutil.rmtree(connected.exporter.home / "log")
    connected.exporter.start()
    again = Publishing(connected.exporter, run="run-2")
    until(lambda: "admitted" in again.admit(2), SECONDS, "the exporter's lease")
    again.publish(2, rows(6, 3))

    def dies() -> bool:
        try:
            run.plan()
        except StreambrokerError as error:
            return error.code == "DataLoss"
        return False

    until(dies, SECONDS, "data loss")
    run.stop()
    message = await_health(connected, "imports", "DataLoss")
    assert "A query that reads it failed at" in message
    assert "epoch" in message

    later = Run(connected.importer, reconnect=SECONDS, skip_lost=True)

    def go_on() -> None:
        if (end := later.plan()) != later.at:
            later.read(end)

    await_health(connected, "imports", "RowsLost", meanwhile=go_on)
    later.stop()


def test_failures_of_readers_and_publishers_are_shown_until_they_are_over(
    connected: Connected,
) -> None:
    connected.importer.environment = {"STREAMBROKER_MAX_READERS": "1"}
    begin(connected)
    publisher = Publishing(connected.exporter)
    publisher.publish(0, rows(0, 3))
    first, second = (Reading(connected.importer, session=f"session-{n}") for n in (1, 2))
    reader = first.open()["reader"]
    assert error_code(second.next, None) == "ReadersExceeded"
    failed: dict[str, Any] = {"code": "QueryFailed", "message": "ValueError. Correct the cause."}
    ended: dict[str, Any] = {"query": publisher.query, "run": publisher.run, "exports": ["trades"]}
    connected.exporter.client.call("query.end", **ended, **failed)
    connected.exporter.client.call("publisher.renounce", export="trades", query=publisher.query)

    assert "$STREAMBROKER_MAX_READERS" in await_health(connected, "imports", "ReadersExceeded")
    message = await_health(connected, "exports", "QueryFailed")
    assert "A query that publishes to it failed at" in message
    assert "ValueError. Correct the cause." in message

    connected.importer.client.call("reader.leave", reader=reader, session=first.session)
    later = Publishing(connected.exporter, run="run-2")
    until(lambda: "admitted" in later.admit(1), SECONDS, "the lease of a later run")
    start = None

    def go_on() -> None:
        nonlocal start
        start = second.next(start).get("offset") or start
        connected.exporter.client.call("publisher.renew", export="trades", query=publisher.query)

    await_health(connected, "imports", "AsExpected", meanwhile=go_on)
    await_health(connected, "exports", "AsExpected", meanwhile=go_on)
