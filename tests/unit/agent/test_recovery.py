"""What an agent finds again after a restart, and what it has to leave aside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pe_agent.agent.actions import job_actions
from pe_agent.agent.agent import Agent, HomeForeignError
from pe_agent.agent.exports.export import AgentExport
from pe_agent.agent.exports.export_state import steady_clock
from streambroker_core.ledger.plan import PlanRequest
from streambroker_core.ledger.publisher import LEASE_SECONDS, FencedError
from streambroker_core.ledger.retention import RetentionLimits
from streambroker_core.ledger.routes import NotRoutedError
from streambroker_core.model import Buffer, PeKey
from streambroker_core.wire.broker.view import ExportPort, View, with_version
from support.agents.exports import DDL, IMPORT, SCHEMA, Bench, bench, plan_one, rows

FEED = PeKey.parse("default/feed/0")


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as made:
        yield made


def test_a_reader_of_a_stream_that_was_removed_meanwhile_goes_on_after_a_restart(
    made: Bench,
) -> None:
    made.route("wait")
    made.publish(0, rows(0, 5))
    first = made.stream
    made.plan()
    made.now += LEASE_SECONDS
    made.publish(0, rows(5, 5), query="other")
    made.plan({first: 1})
    made.plan({first: 1, made.stream: 1})
    made.limit(max_bytes=1)
    made.export.tick()
    assert first not in made.export.state.ledger.streams

    made.reopen()
    made.route("drop")
    made.publish(1, rows(10, 5), query="other")
    (planned,) = made.plan({first: 1, made.stream: 1}).planned
    assert (planned.from_, planned.next) == (1, 2)


def test_epoch_numbers_go_on_where_only_the_log_knows_them(made: Bench) -> None:
    made.publish(0, rows(0, 5))
    made.publish(1, rows(5, 5))
    made.store.write("UPDATE streams SET next = 0, rows = 0")
    made.reopen()
    assert made.publish(2, rows(10, 5))["epoch"] == 2


def test_a_data_directory_of_another_pe_is_refused_by_name(tmp_path: Path) -> None:
    Agent(FEED, tmp_path, progress=lambda *_: None).close()
    with pytest.raises(HomeForeignError, match=r"default/feed/0, not to default/alerts/0"):
        Agent(PeKey.parse("default/alerts/0"), tmp_path, progress=lambda *_: None)

    Agent(FEED, tmp_path, progress=lambda *_: None).close()


def test_an_export_that_is_ill_does_not_keep_the_others_from_their_order(tmp_path: Path) -> None:
    hosts = Agent(FEED, tmp_path, progress=lambda *_: None)
    ticked: list[str] = []
    for port in ("ill", "well"):
        job_actions(hosts).handle("declare", {"kind": "export", "port": port, "spec": None})

    def fails() -> None:
        raise OSError("disk")

    hosts.exports.get("ill").tick = fails  # type: ignore[method-assign]
    hosts.exports.get("well").tick = lambda: ticked.append("well")  # type: ignore[method-assign]
    hosts.tick()
    hosts.close()

    assert ticked == ["well"]


def opened(home: Path) -> tuple[Agent, AgentExport]:
    hosts = Agent(FEED, home, progress=lambda *_: None)
    job_actions(hosts).handle("declare", {"kind": "export", "port": "trades", "spec": None})
    export = hosts.exports.get("trades")
    export.set_routes({IMPORT: "wait"})
    return hosts, export


def publish(export: AgentExport, *batches: int) -> None:
    of: dict[str, Any] = {"query": "q", "run": "r", "ddl": DDL}
    for batch in batches:
        export.publisher.admit(**of, batch=batch, renewed=None)
        stage = export.publisher.stage(**of, batch=batch, schema=SCHEMA, batches=[rows(batch, 1)])
        export.publisher.publish(**of, batch=batch, stages=[stage])


def test_the_end_and_the_runs_of_an_export_without_rows_are_known_after_a_restart(
    tmp_path: Path,
) -> None:
    hosts, export = opened(tmp_path)
    for run in ("old", "new"):
        export.publisher.publish(query="q", run=run, batch=0, stages=[], ddl=None)
    export.publisher.finish(query="q", run="new")
    hosts.close()

    hosts, export = opened(tmp_path)
    assert export.state.ended()
    with pytest.raises(FencedError):
        export.publisher.publish(query="q", run="old", batch=1, stages=[], ddl=None)
    hosts.close()


def test_a_reader_of_an_export_without_rows_holds_its_first_epochs_after_a_restart(
    tmp_path: Path,
) -> None:
    asked = PlanRequest(
        reader="reader", import_=IMPORT, policy="wait", start="latest", positions={}
    )
    hosts, export = opened(tmp_path)
    plan_one(export, asked, filter_=None, columns=None)
    hosts.close()

    hosts, export = opened(tmp_path)
    publish(export, 0, 1)
    export.set_limits(RetentionLimits(max_bytes=1))
    (planned,) = plan_one(export, asked, filter_=None, columns=None).planned
    assert (planned.from_, planned.next) == (0, 2)
    hosts.close()


BUFFER = Buffer(max_bytes=10 << 30, max_age_s=86400.0, grace_s=60.0)
SPEC = {"properties": {}, "buffer": {"maxBytes": "10Gi", "maxAge": "24h", "grace": "1m"}}


def shown(hosts: Agent, *ports: str) -> None:
    """Let a view come that has these exports."""
    port = ExportPort(uid="e", stream_id="s", buffer=BUFFER)
    hosts.routes.apply(with_version(View(pe=FEED, exports=dict.fromkeys(ports, port))))


def declared(hosts: Agent) -> AgentExport:
    job_actions(hosts).handle("declare", {"kind": "export", "port": "trades", "spec": SPEC})
    return hosts.exports.get("trades")


def kept_after_grace(export: AgentExport, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many epochs are retained when grace is over, and maximal age is not."""
    monkeypatch.setattr(export.state, "clock", lambda: steady_clock() + 3600.0)
    export.tick()
    return sum(s["retained"] for s in export.status()["streams"].values())


@pytest.mark.parametrize("reported", [False, True])
def test_an_export_that_no_view_ever_had_is_not_taken_for_a_deleted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reported: bool
) -> None:
    hosts = Agent(FEED, tmp_path, progress=lambda *_: None)
    shown(hosts, "other")
    publish(declared(hosts), 0, 1)
    hosts.declarations.by_name["export/trades"]["told"] = reported
    hosts.declarations.save("export/trades")
    hosts.close()

    hosts = Agent(FEED, tmp_path, progress=lambda *_: None)
    assert kept_after_grace(hosts.exports.get("trades"), monkeypatch) == 2
    hosts.close()


@pytest.mark.parametrize("restarted", [False, True])
def test_an_export_that_a_view_has_no_more_is_emptied_after_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    hosts = Agent(FEED, tmp_path, progress=lambda *_: None)
    shown(hosts, "trades")
    export = hosts.exports.get("trades")
    publish(export, 0, 1)
    shown(hosts)
    if restarted:
        hosts.close()
        hosts = Agent(FEED, tmp_path, progress=lambda *_: None)
        export = hosts.exports.get("trades")
    export.tick()
    assert sum(s["retained"] for s in export.status()["streams"].values()) == 2
    assert kept_after_grace(export, monkeypatch) == 0
    hosts.close()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_deleted_export_that_is_declared_again_is_kept_though_the_view_lacks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    hosts = Agent(FEED, tmp_path, progress=lambda *_: None)
    shown(hosts, "trades")
    shown(hosts)
    assert kept_after_grace(hosts.exports.get("trades"), monkeypatch) == 0
    publish(declared(hosts), 0, 1)
    if restarted:
        hosts.close()
        hosts = Agent(FEED, tmp_path, progress=lambda *_: None)
    assert kept_after_grace(hosts.exports.get("trades"), monkeypatch) == 2
    hosts.close()


def test_what_a_view_allows_holds_after_a_restart_without_one(tmp_path: Path) -> None:
    hosts = Agent(FEED, tmp_path, progress=lambda *_: None)
    shown(hosts, "trades")
    limits = hosts.exports.get("trades").state.ledger.retention.limits
    assert limits.max_bytes == BUFFER.max_bytes
    publish(hosts.exports.get("trades"), 0)
    hosts.close()
    (tmp_path / "routes.json").unlink()

    hosts = Agent(FEED, tmp_path, progress=lambda *_: None)
    assert hosts.exports.get("trades").state.ledger.retention.limits == limits
    job_actions(hosts).handle(
        "declare", {"kind": "export", "port": "trades", "spec": {"properties": {}}}
    )
    assert hosts.exports.get("trades").state.ledger.retention.limits == limits
    hosts.close()


def test_what_is_declared_may_be_kept_until_a_view_comes(tmp_path: Path) -> None:
    hosts = Agent(FEED, tmp_path, progress=lambda *_: None)
    limits = declared(hosts).state.ledger.retention.limits
    assert (limits.max_bytes, limits.max_age, limits.grace) == (10 << 30, 86400.0, 60.0)
    hosts.close()

    hosts = Agent(FEED, tmp_path, progress=lambda *_: None)
    assert hosts.exports.get("trades").state.ledger.retention.limits == limits
    hosts.close()


def test_what_a_cut_reader_was_given_is_known_after_a_restart(made: Bench) -> None:
    made.route("wait")
    for batch in range(3):
        made.publish(batch, rows(batch, 1))
    made.plan(budget=1)
    made.export.set_routes({})
    made.reopen()
    with pytest.raises(NotRoutedError):
        made.replan({made.stream: (0, 3)})
    assert list(made.replan({made.stream: (0, 1)}).blocks[made.stream]) == [0]
