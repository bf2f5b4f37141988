"""What a broker says of itself and of agents: its figures are those of the docs, and true."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from streambroker_operator.kubernetes.client.watch_client import Timing
from streambroker_operator.kubernetes.replicas import agent_liveness as presence
from streambroker_operator.kubernetes.watch.lister import CrdMissingError, KindLister
from support.agents.collector import collecting
from support.clusters.api_server import GROUP, ApiServer
from support.clusters.calls import manifest
from support.clusters.replicas import (
    Operator,
    SignedAgent,
    condition,
    connected,
    make_key,
    operator_here,
    ready_over,
    status_of,
)
from support.kubernetes import charts
from support.processes.ports import free_port
from support.processes.waiting import until

AWAY_S = 3.0
KINDS = {"exports", "imports"}
FREE = {"version", "method", "code", "le", "watched"}
"""Labels whose values no table could name."""


@pytest.fixture
def broker(
    api: ApiServer, tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Operator]:
    monkeypatch.setattr(presence, "AWAY_S", AWAY_S)
    make_key(api, namespace)
    timing = Timing(resync_s=1.0, settle_s=0.2)
    with replica(api, tmp_path, namespace, timing=timing) as found:
        until(lambda: found.leads, 20.0, "it leads")
        yield found


@contextmanager
def replica(api: ApiServer, folder: Path, namespace: str, **how: Any) -> Iterator[Operator]:
    """Run a broker that others can tell what they hear."""
    port = free_port()
    where = {"metrics_port": port, "address": f"http://127.0.0.1:{port}"}
    with operator_here(api, folder, namespace, **where, **how) as found:
        yield found


def value(broker: Operator, sample: str) -> float:
    """Return the value of a sample, as it is written; 0 where it is not there."""
    lines = broker.probe("/metrics")[1].splitlines()
    return next((float(one.rpartition(" ")[2]) for one in lines if one.startswith(sample)), 0.0)


def reasons(api: ApiServer, namespace: str) -> set[str]:
    """Return what `Programmed` says at both ends."""
    return {
        one["reason"]
        for plural, name in (("exports", "feed"), ("imports", "alerts"))
        for one in status_of(api, namespace, plural, name).get("conditions", [])
        if one["type"] == "Programmed"
    }


def statuses_written(api: ApiServer, namespace: str) -> int:
    """Return how often a status was written."""
    refs = [entry["objectRef"] for entry in api.writes()]
    return sum(
        ref.get("namespace") == namespace and ref.get("subresource") == "status" for ref in refs
    )


def passes(seconds: float, meanwhile: Callable[[], object]) -> None:
    """Let time pass while something is done again and again."""
    end = time.monotonic() + seconds

    def passed() -> bool:
        meanwhile()
        return time.monotonic() > end

    until(passed, seconds + 10.0, "time has passed", pause_s=0.2)


def stays_away(api: ApiServer, namespace: str, broker: Operator, alerts: SignedAgent) -> None:
    """Have one agent ask on, until the other is told to be away at both ends."""

    def reported() -> bool:
        alerts.poll(broker)
        return reasons(api, namespace) == {"AgentAway"}

    until(reported, 20.0, "the silent agent is away")


def test_an_agent_that_is_silent_is_away_and_costs_one_write_at_each_end(
    api: ApiServer, broker: Operator, namespace: str
) -> None:
    feed, alerts = connected(api, namespace, broker)
    before = statuses_written(api, namespace)

    stays_away(api, namespace, broker, alerts)
    assert condition(api, namespace, "imports", "alerts", "Ready") == "False"
    assert value(broker, 'streambroker_agents{state="away"}') == 1
    passes(AWAY_S, lambda: alerts.poll(broker))
    assert statuses_written(api, namespace) == before + 2

    until(lambda: ready_over(api, namespace, broker, (feed, alerts)), 20.0, "it is back")
    assert statuses_written(api, namespace) == before + 4
    assert value(broker, 'streambroker_agents{state="away"}') == 0
    assert value(broker, 'streambroker_agents{state="current"}') == 2


def test_a_broker_sends_the_same_figures_to_a_collector(
    api: ApiServer, tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_key(api, namespace)
    with collecting() as collector, ExitStack() as running:
        for name, setting in collector.environment().items():
            monkeypatch.setenv(name, setting)
        broker = running.enter_context(replica(api, tmp_path, namespace))
        until(lambda: broker.leads, 20.0, "it leads")
        connected(api, namespace, broker)
        sent = collector.metrics

        def counted() -> bool:
            """Compare what was sent last with what Prometheus gets."""
            match = sent.get(("streambroker", "streambroker_match_seconds"))
            scraped = value(broker, "streambroker_match_seconds_count")
            return match is not None and 0 < match.histogram.data_points[0].count == scraped

        until(counted, 20.0, "the collector has the histogram")
        families = list(text_string_to_metric_families(broker.probe("/metrics")[1]))
    names = {s.name for one in families if one.type != "histogram" for s in one.samples}
    names = {name for name in names if not name.endswith("_created")}
    assert names <= {name for _, name in sent}
    assert {service for service, _ in sent} == {"streambroker"}


@pytest.mark.long
def test_replicas_tell_each_other_who_asks_and_who_leads_next_has_to_listen_first(
    api: ApiServer, tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "AWAY_S", AWAY_S)
    make_key(api, namespace)
    with ExitStack() as others, ExitStack() as first:
        leader = first.enter_context(replica(api, tmp_path, namespace))
        until(lambda: leader.leads, 20.0, "it leads")
        other = others.enter_context(replica(api, tmp_path, namespace))
        feed, alerts = connected(api, namespace, other)
        before = statuses_written(api, namespace)

        passes(2 * AWAY_S, lambda: [feed.poll(other), alerts.poll(other)])
        assert statuses_written(api, namespace) == before
        assert value(leader, 'streambroker_agents{state="current"}') == 2
        assert "streambroker_agents{" not in other.probe("/metrics")[1]

        stays_away(api, namespace, other, alerts)
        first.close()
        until(lambda: other.leads, 20.0, "the other leads")
        assert value(other, 'streambroker_agents{state="away"}') == 0
        passes(2 * AWAY_S, lambda: alerts.poll(other))
        assert value(other, 'streambroker_agents{state="away"}') == 1
        assert statuses_written(api, namespace) == before + 2
        until(lambda: ready_over(api, namespace, other, (feed, alerts)), 20.0, "it is back")


@pytest.mark.long
def test_who_cannot_know_yet_or_at_all_leaves_what_is_written(
    api: ApiServer, tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "AWAY_S", AWAY_S)
    make_key(api, namespace)
    # Where it has no address, no other replica can tell it who asks there.
    with operator_here(api, tmp_path, namespace) as broker:
        until(lambda: broker.leads, 20.0, "it leads")
        connected(api, namespace, broker)
        before = statuses_written(api, namespace)
        passes(AWAY_S + 2.0, lambda: None)
        assert reasons(api, namespace) == {"Programmed"}
    with replica(api, tmp_path, namespace) as broker:
        until(lambda: broker.leads, 20.0, "it leads")
        passes(AWAY_S / 2, lambda: None)
        assert statuses_written(api, namespace) == before
        assert value(broker, 'streambroker_agents{state="unheard"}') == 2

        until(lambda: reasons(api, namespace) == {"AgentAway"}, 20.0, "both are away")
        assert statuses_written(api, namespace) == before + 2


def test_a_broker_tells_every_figure_of_the_docs_and_no_others(
    api: ApiServer, broker: Operator, namespace: str
) -> None:
    _, alerts = connected(api, namespace, broker)
    change = alerts.at("/import/in/filter"), {"filter": "price > 1.0"}
    assert broker.call(alerts.token, "PUT", *change)[0] == 200
    until(lambda: value(broker, "streambroker_sweeps_total") > 0, 10.0, "it has swept")

    shown: dict[str, list[dict[str, str]]] = defaultdict(list)
    types = {}
    for family in text_string_to_metric_families(broker.probe("/metrics")[1]):
        name = family.name + ("_total" if family.type == "counter" else "")
        # When a histogram was made stands beside it by itself.
        if name.startswith("streambroker_") and not name.endswith("_created"):
            types[name] = family.type
            shown[name] += [dict(sample.labels) for sample in family.samples]
    rows = charts.table("docs/kubernetes.md", "metric", "type")

    assert types == {charts.words(row[0])[0]: row[1] for row in rows}
    for row in rows:
        (name,), labels, values = (charts.words(cell) for cell in (row[0], row[2], row[3]))
        samples = shown[name]
        if not samples and "absent without" in row[3]:
            continue
        assert samples, name
        assert all(set(sample) - {"le"} == set(labels) for sample in samples), name
        reported = {v for sample in samples for k, v in sample.items() if k not in FREE}
        assert reported - KINDS == set(values) - KINDS, name
        assert not set(labels) & {"kind"} or reported >= KINDS, name
    assert value(broker, 'streambroker_api_writes_total{object="spec",result="done"}') == 1
    counted = 'streambroker_api_writes_total{object="status",result="done"}'
    until(  # the API server notes a write before its answer is there
        lambda: value(broker, counted) >= statuses_written(api, namespace), 10.0, "all are counted"
    )


def test_resources_that_cannot_be_read_or_have_a_rival_are_refused(
    api: ApiServer, broker: Operator, namespace: str
) -> None:
    for name, subscription in (("alerts", "kind =="), ("first", "n > 1"), ("second", "n > 1")):
        spec = {"job": "j", "port": "alerts" if name == "alerts" else "in"}
        body = manifest("Import", name, subscription=subscription, **spec)
        path = f"{GROUP}/namespaces/{namespace}/imports"
        assert api.request("POST", path, body).status == 201

    def counted(state: str) -> float:
        return value(broker, f'streambroker_resources{{kind="imports",state="{state}"}}')

    until(lambda: (counted("refused"), counted("accepted")) == (2, 1), 20.0, "two are refused")


def test_a_broker_that_has_lost_its_feed_still_serves(
    api: ApiServer, broker: Operator, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed, _ = connected(api, namespace, broker)

    async def missing(_: KindLister) -> str:
        raise CrdMissingError

    with monkeypatch.context() as without_definitions:
        without_definitions.setattr(KindLister, "read_crd_uid", missing)
        until(lambda: "feed lost" in broker.probe("/readyz")[1], 10.0, "it is noticed")
        assert feed.poll(broker) is None
        assert value(broker, "streambroker_feed_synced") == 1
