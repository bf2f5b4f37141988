"""An agent's figures as Prometheus reads them."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pe_agent.agent.agent import Agent
from pe_agent.agent.exports.stream.block_reader import BlockReader, ReadRequest
from pe_agent.agent.reports.prometheus import MAX_ROUTES, MetricsServer, render_text
from streambroker_core.model import PeKey
from support.agents.exports import IMPORT, Bench, bench, rows

CONTRACT = {
    "export_published_rows_total",
    "export_held_bytes",
    "export_waiting",
    "export_waited_seconds_total",
    *(f"route_lag_{what}" for what in ("epochs", "rows", "bytes", "seconds")),
    "route_congestion",
    *(
        f"route_{what}_rows_total"
        for what in ("delivered", "filtered", "dropped", "lost", "duplicate")
    ),
    "route_sent_bytes_total",
    "route_blocked_seconds_total",
    "recovery_seconds",
    "scrub_verified_bytes_total",
}
NO_CONTROL: dict[str, Any] = {"accepted": {}, "applied": {}, "waiting": 0}
AGENT = {"recovery_seconds": 1.5, "scrub_verified_bytes_total": 7}


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as one:
        yield one


def samples(reported: str) -> dict[tuple[str, str], float]:
    """Return values by name without prefix, and import, or nothing."""
    return {
        (one.name.removeprefix("streambroker_"), one.labels.get("import", "")): one.value
        for family in text_string_to_metric_families(reported)
        for one in family.samples
    }


def status(made: Bench) -> dict[str, Any]:
    return {"exports": {made.export.key: made.export.status()}, "controlLog": NO_CONTROL}


def test_the_figures_of_an_export_and_its_routes_are_reported(made: Bench) -> None:
    made.limit(max_bytes=1)
    made.route("wait")
    made.publish(0, rows(0, 4))
    made.plan(filter_="n > 1")
    made.plan({made.stream: 1}, filter_="n > 1")
    made.publish(1, rows(0, 6))
    made.plan({made.stream: 1}, filter_="n > 1")
    made.admit(2)
    made.now += 1.5
    made.admit(2)
    found = samples(render_text(status(made), AGENT))
    held = made.export.state.ledger.streams[made.stream]
    assert {name for name, _ in found} >= CONTRACT
    assert found["export_published_rows_total", ""] == 10
    assert found["export_held_bytes", ""] == held.bytes_from(1)
    assert found["export_waiting", ""] == 1
    assert found["export_waited_seconds_total", ""] == 1.5
    assert found["route_lag_epochs", IMPORT] == 1
    assert found["route_lag_rows", IMPORT] == 6
    assert found["route_lag_seconds", IMPORT] == 1.5
    assert found["route_congestion", IMPORT] == 100
    assert found["route_delivered_rows_total", IMPORT] == 2
    assert found["route_filtered_rows_total", IMPORT] == 2
    assert found["route_blocked_seconds_total", IMPORT] == 1.5
    assert (found["recovery_seconds", ""], found["scrub_verified_bytes_total", ""]) == (1.5, 7)


def test_the_end_of_the_certificate_is_reported_with_tls_alone(made: Bench) -> None:
    name = ("certificate_expiry_timestamp_seconds", "")
    certificate = {"sha256": "f0", "until": "Jan  2 00:00:01 1970 GMT", "error": None}
    assert samples(render_text({**status(made), "certificate": certificate}, AGENT))[name] == 86_401
    assert name not in samples(render_text({**status(made), "certificate": None}, AGENT))


def test_readers_of_one_import_are_one_route_counted_together_behind_as_the_slowest(
    made: Bench,
) -> None:
    made.route("wait")
    for batch in range(3):
        made.publish(batch, rows(0, 2))
    made.plan(reader="a")
    made.plan({made.stream: 3}, reader="a")
    made.plan(reader="b", budget=1)
    made.plan({made.stream: 1}, reader="b", budget=1)
    found = samples(render_text(status(made), AGENT))
    assert found["route_delivered_rows_total", IMPORT] == 6 + 2
    assert found["route_lag_epochs", IMPORT] == 2


def test_of_very_many_routes_those_farthest_behind_are_reported(made: Bench) -> None:
    made.route("wait")
    made.publish(0, rows(0, 2))
    made.plan()
    full = status(made)
    (figures,) = full["exports"].values()
    (one,) = figures["readers"].values()
    figures["readers"] = {
        f"reader {n}": {**one, "import": f"default/alerts/0/in{n}", "lag": [n, n]}
        for n in range(MAX_ROUTES + 100)
    }
    found = {
        i: v for (name, i), v in samples(render_text(full, AGENT)).items() if "lag_bytes" in name
    }
    assert len(found) == MAX_ROUTES
    assert min(found.values()) == 100


def by_delivery(reported: str, name: str) -> dict[str, float]:
    return {
        one.labels["delivery"]: one.value
        for family in text_string_to_metric_families(reported)
        for one in family.samples
        if one.name == f"streambroker_{name}"
    }


def test_control_tuples_are_counted_by_delivery_apart_from_rows(made: Bench) -> None:
    made.route("wait")
    made.publish(0, rows(0, 2))
    for request, delivery in (("a", "BEGIN"), ("b", "END_WINDOW"), ("b", "END_WINDOW")):
        made.export.control.emit(request, {"type": "set", "delivery": delivery})
    read_control(made, "a", 1, 3)
    read_control(made, "b", 1, 2)
    of_log = {"accepted": {"AT_TIME": 3}, "applied": {"AT_TIME": 2}, "waiting": 1}
    reported = render_text({**status(made), "controlLog": of_log}, AGENT)
    both = {"BEGIN": 1, "END_WINDOW": 1}

    assert by_delivery(reported, "export_control_accepted_total") == both
    assert by_delivery(reported, "export_control_published_total") == both
    assert by_delivery(reported, "route_sent_control_total") == {"BEGIN": 2, "END_WINDOW": 1}
    assert by_delivery(reported, "control_log_accepted_total") == {"AT_TIME": 3}
    assert by_delivery(reported, "control_log_applied_total") == {"AT_TIME": 2}
    assert samples(reported)["control_log_waiting_tuples", ""] == 1
    assert samples(reported)["export_published_rows_total", ""] == 2


def read_control(made: Bench, reader: str, first: int, next_: int) -> None:
    """Let a reader of control plan all there is, and be sent the tuples of some epochs."""
    made.plan(reader=reader, control=frozenset())
    made.plan({made.stream: 1}, reader=reader, control=frozenset())
    for epoch in range(first, next_):
        made.plan({made.stream: epoch}, reader=reader, control=frozenset())
        read = ReadRequest(
            reader=reader, stream=made.stream, pieces=((epoch, 0, 0),), filter=None, columns=None
        )
        assert list(BlockReader().read_control(made.export.plans, read))


def test_text_in_names_cannot_break_the_format(made: Bench) -> None:
    reported = {**status(made), "exports": {'a"b\\c\nd': made.export.status()}}
    (family, *_) = [
        f
        for f in text_string_to_metric_families(render_text(reported, AGENT))
        if f.name == "streambroker_export_held_bytes"
    ]
    assert family.samples[0].labels == {"export": 'a"b\\c\nd'}


def test_the_documents_name_each_figure_with_its_type(made: Bench) -> None:
    reported = render_text(status(made), {**AGENT, "scrub_waiting_segments": 0})
    lines = (Path(__file__).parents[3] / "docs" / "operations.md").read_text().splitlines()
    rows = [line.split("|") for line in lines if line.startswith("| `streambroker_")]
    documented = [f"# TYPE {row[1].strip(' `')} {row[2].strip()}" for row in rows]
    assert sorted(documented) == sorted(x for x in reported.splitlines() if x.startswith("# TYPE"))


def get(port: int, path: str) -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, "", ""


def test_the_server_answers_metrics_and_nothing_else(tmp_path: Path) -> None:
    hosts = Agent(PeKey.parse("default/feed/0"), tmp_path, progress=lambda *_: None)
    server = MetricsServer("127.0.0.1", 0, hosts.metrics)
    code, type_, reported = get(server.port, "/metrics?x=1")
    assert (code, type_) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert "scrub_waiting_segments" in {name for name, _ in samples(reported)}
    assert get(server.port, "/")[0] == 404
    server.close()
    hosts.close()


def test_figures_that_cannot_be_read_are_an_answer_too() -> None:
    def fails() -> str:
        raise OSError("disk")

    server = MetricsServer("127.0.0.1", 0, fails)
    assert get(server.port, "/metrics")[0] == 500
    server.close()
