"""Figures have the names that dashboards use, and probes say what is wrong."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from streambroker_operator.kubernetes.client.http_api import Answer
from streambroker_operator.kubernetes.observability.health import (
    STUCK_S,
    BrokerState,
    check_live,
    check_ready,
)
from streambroker_operator.kubernetes.observability.metrics import (
    COUNTERS,
    GAUGES,
    Labelled,
    Metrics,
    count_writes,
)
from streambroker_operator.kubernetes.replicas.lease import Lease
from streambroker_operator.kubernetes.status.events import EventWriter
from support.kubernetes.fake_server import FakeApi

NOTHING: dict[str, Labelled] = {name: {} for name in (*GAUGES, *COUNTERS)}
FULL: dict[str, Labelled] = {
    **NOTHING,
    "build_info": {("1.2.0",): 1},
    "leader": {(): True},
    "board_version": {("exports",): 7, ("imports",): 9},
    "watch_age_seconds": {("exports",): 0.5, ("imports",): 1.5},
    "namespace_followed": {("exports", "jobs"): True, ("imports", "jobs"): False},
    "resources": {("exports", "accepted"): 2, ("imports", "refused"): 1},
    "quota_used": {("jobs", "ports"): 3},
    "agents": {("current",): 2, ("away",): 1},
    "reported_routes": {("waits",): 1, ("reads",): 2},
    "sweep_differences": {("exports", "ghost"): 2},
    "api_writes": {("status", "done"): 11},
    "reviews": {("token", "failed"): 1},
    "lineage_pending": {(): 3},
    "lineage_events": {("sent",): 5},
}


def values(metrics: Metrics) -> dict[str, float]:
    """Return each sample as it is written: name{labels}."""
    found = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def test_what_is_read_is_reported_under_its_name() -> None:
    found = values(Metrics(lambda: FULL))

    assert found["streambroker_build_info{version=1.2.0}"] == 1
    assert found["streambroker_board_version{kind=imports}"] == 9
    assert found["streambroker_watch_age_seconds{kind=exports}"] == 0.5
    assert found["streambroker_namespace_followed{kind=exports,watched=jobs}"] == 1
    assert found["streambroker_namespace_followed{kind=imports,watched=jobs}"] == 0
    assert found["streambroker_lineage_pending{}"] == 3
    assert found["streambroker_lineage_events_total{result=sent}"] == 5
    assert found["streambroker_lineage_events_total{result=refused}"] == 0
    assert found["streambroker_resources{kind=imports,state=refused}"] == 1
    assert found["streambroker_agents{state=away}"] == 1
    assert found["streambroker_quota_used{of=jobs,resource=ports}"] == 3
    assert found["streambroker_reported_routes{state=waits}"] == 1
    assert found["streambroker_api_writes_total{object=status,result=done}"] == 11
    assert found["streambroker_sweep_differences_total{difference=ghost,kind=exports}"] == 2
    assert found["streambroker_leader{}"] == 1
    assert found["process_resident_memory_bytes{}"] > 0


def test_what_is_counted_here_is_reported_as_histograms() -> None:
    metrics = Metrics(lambda: FULL)
    metrics.observe_match(0.002)
    metrics.observe_applied(0.04)
    metrics.count_answer("GET", 200, 0.002)
    metrics.count_answer("GET", 200, None)

    found = values(metrics)
    assert found["streambroker_match_seconds_count{}"] == 1
    assert found["streambroker_change_applied_seconds_bucket{le=0.03}"] == 0
    assert found["streambroker_change_applied_seconds_bucket{le=0.05}"] == 1
    assert found["streambroker_rest_request_seconds_count{method=GET}"] == 1
    assert found["streambroker_rest_requests_total{code=200,method=GET}"] == 2


def test_all_that_is_written_in_the_cluster_is_counted() -> None:
    api = FakeApi(lambda call: Answer(status=200))
    events = EventWriter(api, "broker-0")
    lease = Lease(api, namespace="streams", name="streambroker", identity="a")
    events.writes["failed"] = 2
    lease.writes["done"] = 5
    others = {("spec", "conflict"): 4, ("status", "done"): 2}

    found = count_writes(
        others,
        status={"done": 3, "refused": 1, "unchanged": 7},
        event=events.writes,
        lease=lease.writes,
    )

    assert found["spec", "conflict"] == 4
    assert found["status", "done"] == 5
    assert found["status", "refused"] == 1
    assert found["event", "failed"] == 2
    assert found["lease", "done"] == 5
    assert ("status", "unchanged") not in found


def test_what_has_not_happened_yet_is_reported_as_nothing() -> None:
    found = values(Metrics(lambda: NOTHING))

    assert found["streambroker_api_writes_total{object=spec,result=refused}"] == 0
    assert found["streambroker_reviews_total{result=failed,review=access}"] == 0
    assert found["streambroker_sweep_differences_total{difference=missing,kind=imports}"] == 0


def test_two_brokers_in_one_process_have_figures_of_their_own() -> None:
    first, second = Metrics(lambda: FULL), Metrics(lambda: FULL)
    first.observe_match(1.0)

    assert values(second)["streambroker_match_seconds_count{}"] == 0


@pytest.mark.parametrize(
    ("state", "alive", "takes"),
    [
        (BrokerState(beat_age_s=0.5, synced=True), True, True),
        (BrokerState(beat_age_s=0.5, synced=False), True, False),
        (BrokerState(beat_age_s=0.5, synced=True, stale=True, reason="CrdMissing"), True, True),
        (BrokerState(beat_age_s=0.5, synced=True, closing=True), True, False),
        (BrokerState(beat_age_s=STUCK_S + 1, synced=True), False, True),
    ],
)
def test_probes_tell_a_stuck_process_from_one_that_is_not_ready(
    state: BrokerState, alive: bool, takes: bool
) -> None:
    assert (check_live(state).is_ok, check_ready(state).is_ok) == (alive, takes)
    assert check_ready(state).status == (200 if takes else 503)


def test_a_probe_names_what_is_wrong() -> None:
    text = check_ready(
        BrokerState(beat_age_s=0.0, synced=False, stale=True, reason="CrdMissing")
    ).text

    assert "[-]synced failed: resources have not been read yet" in text
    assert "[+]feed lost CrdMissing" in text
