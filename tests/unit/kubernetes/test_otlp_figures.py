"""What OTLP takes of the broker's figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from streambroker_operator.kubernetes.observability.metrics import COUNTERS, GAUGES, Metrics
from streambroker_telemetry.otlp import Histogram


def test_counts_of_a_histogram_are_those_between_its_bounds() -> None:
    values: Mapping[str, Mapping[tuple[str, ...], float]] = defaultdict(dict)
    metrics = Metrics(lambda: values)
    for seconds in (0.0002, 0.0002, 0.5, 7.0):
        metrics.observe_match(seconds)
    metrics.count_answer("GET", 200, 0.002)
    metrics.count_answer("PUT", 200, 0.002)
    families = {name: list(samples) for name, _, samples in metrics.families()}
    [(labels, match)] = families["streambroker_match_seconds"]
    assert isinstance(match, Histogram)
    assert (dict(labels), match.sum) == ({}, 7.5004)
    assert match.bounds[:2] == [0.0001, 0.0003]
    assert match.counts == [0, 2, 0, 0, 0, 0, 0, 0, 1, 1]
    requests = families["streambroker_rest_request_seconds"]
    assert [dict(of) for of, _ in requests] == [{"method": "GET"}, {"method": "PUT"}]


def test_counters_end_with_total_and_gauges_do_not() -> None:
    metrics = Metrics(lambda: {name: {} for name in (*GAUGES, *COUNTERS)} | {"routes": {(): 3}})
    metrics.count_answer("GET", 200, None)
    families = {name: list(samples) for name, _, samples in metrics.families()}
    assert families["streambroker_routes"] == [({}, 3)]
    answered = ({"method": "GET", "code": "200"}, 1)
    assert families["streambroker_rest_requests_total"] == [answered]
