"""What a broker says of itself and of agents: its figures are those of the docs, and true."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from streambroker_operator.kubernetes import presence
from streambroker_operator.kubernetes.client import Timing
from streambroker_operator.kubernetes.feed import CrdMissingError, KindFeed
from support import charts
from support.cluster import ApiServer
from support.operators import (
    Agent,
    Operator,
    condition,
    connected,
    make_key,
    operator_here,
    ready_over,
    status_of,
)
from support.waiting import until

AWAY_S = 4.0
KINDS = {"exports", "imports"}
FREE = {"version", "method", "code", "le"}
"""Labels whose values no table could name."""

Values = dict[tuple[str, ...], float]


@pytest.fixture
def broker(
    api: ApiServer, tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Operator]:
    monkeypatch.setattr(presence, "AWAY_S", AWAY_S)
    make_key(api, namespace)
    timing = Timing(sweep_s=1.0, settle_s=0.2)
    with operator_here(api, tmp_path, namespace, timing=timing) as found:
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


def stays_away(api: ApiServer, namespace: str, broker: Operator, alerts: Agent) -> None:
    """Have one agent ask on, until the other is told to be away at both ends."""

    def told() -> bool:
        alerts.poll(broker)
        return reasons(api, namespace) == {"AgentAway"}

    until(told, 20.0, "the silent agent is away")


def test_an_agent_that_is_silent_is_away_and_costs_one_write_at_each_end(
    api: ApiServer, broker: Operator, namespace: str
) -> None:
    feed, alerts = connected(api, namespace, broker)
    before = statuses_written(api, namespace)

    stays_away(api, namespace, broker, alerts)
    assert condition(api, namespace, "imports", "alerts", "Ready") == "False"
    assert value(broker, 'streambroker_agents{state="away"}') == 1
    swept = value(broker, "streambroker_sweeps_total")
    until(
        lambda: (
            alerts.poll(broker) is None and value(broker, "streambroker_sweeps_total") > swept + 4
        ),
        20.0,
        "some time has gone",
    )
    assert statuses_written(api, namespace) == before + 2

    until(lambda: ready_over(api, namespace, broker, (feed, alerts)), 20.0, "it is back")
    assert statuses_written(api, namespace) == before + 4
    assert value(broker, 'streambroker_agents{state="away"}') == 0
    assert value(broker, 'streambroker_agents{state="current"}') == 2


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
        assert samples, name
        assert all(set(sample) - {"le"} == set(labels) for sample in samples), name
        told = {v for sample in samples for k, v in sample.items() if k not in FREE}
        assert told - KINDS == set(values) - KINDS, name
        assert not set(labels) & {"kind"} or told >= KINDS, name
    assert value(broker, 'streambroker_api_writes_total{object="spec",result="done"}') == 1
    assert value(broker, 'streambroker_api_writes_total{object="status",result="done"}') >= (
        statuses_written(api, namespace)
    )


def test_a_broker_that_has_lost_its_feed_still_serves(
    api: ApiServer, broker: Operator, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed, _ = connected(api, namespace, broker)

    async def missing(_: KindFeed) -> str:
        raise CrdMissingError

    with monkeypatch.context() as without_definitions:
        without_definitions.setattr(KindFeed, "_definition", missing)
        until(lambda: "feed lost" in broker.probe("/readyz")[1], 10.0, "it is noticed")
        assert feed.poll(broker) is None
        assert value(broker, "streambroker_feed_synced") == 1
