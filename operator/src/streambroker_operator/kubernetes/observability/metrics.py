"""Prometheus metrics of the broker: own counters, and gauges read at each scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, TypeAlias

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from streambroker_core.wire.manifests.ports import OBJECTS
from streambroker_telemetry import otlp

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labelled: TypeAlias = Mapping[Any, float]
"""Values by label values."""

WRITE_RESULTS = ("done", "conflict", "refused", "failed")

_MATCH_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
_APPLIED_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_REQUEST_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True)
class _Family:
    """Family of metrics: help text and labels.

    Attributes:
        initial: label values exported with 0 from the start. Prometheus sees no increase if a
            series starts with 1.
    """

    text: str
    labels: tuple[str, ...] = ()
    initial: tuple[tuple[str, ...], ...] = ()


GAUGES: Mapping[str, _Family] = {
    "build_info": _Family("The release that runs.", ("version",)),
    "feed_synced": _Family("1 once all resources have been read."),
    "leader": _Family("1 if this process holds the Lease."),
    "routes": _Family("Routes on the board."),
    "board_version": _Family("Processed version.", ("kind",)),
    "watch_age_seconds": _Family("Seconds since the last sign of life.", ("kind",)),
    "namespace_followed": _Family(
        "1 if resources of a watched namespace can be listed.", ("kind", "watched")
    ),
    "broker_certificate_expiry_timestamp_seconds": _Family(
        "When a certificate of the broker ends.", ("use",)
    ),
    "resources": _Family("Exports and Imports.", ("kind", "state")),
    "quota_limit": _Family("Quota of a namespace.", ("of", "resource")),
    "quota_used": _Family("What it uses of the quota.", ("of", "resource")),
    "agents": _Family("Registered agents.", ("state",)),
    "reported_routes": _Family("Routes that agents report.", ("state",)),
    "lineage_pending": _Family("Jobs and datasets whose lineage is still to be sent."),
}
COUNTERS: Mapping[str, _Family] = {
    "hints_sent": _Family("Hints handed to the network."),
    "hints_lost": _Family("Hints that did not arrive."),
    "sweeps": _Family("Comparisons of the cache with a list."),
    "sweep_differences": _Family(
        "Differences that the comparisons found.",
        ("kind", "difference"),
        tuple(product(OBJECTS.values(), ("missing", "changed", "ghost"))),
    ),
    "relists": _Family("Lists after the first.", ("kind",)),
    "feeder_restarts": _Family("Starts of the feeder."),
    "api_writes": _Family(
        "Writes in the cluster.",
        ("object", "result"),
        tuple(product(("spec", "status", "event", "lease"), WRITE_RESULTS)),
    ),
    "reviews": _Family(
        "Token and access reviews.",
        ("review", "result"),
        tuple(product(("token", "access"), ("allowed", "denied", "failed"))),
    ),
    "lineage_events": _Family(
        "Attempts to send a lineage event.",
        ("result",),
        (("sent",), ("failed",), ("refused",)),
    ),
}


def count_writes(
    objects: Mapping[tuple[str, str], int], **writes: Mapping[str, int]
) -> Counter[tuple[str, str]]:
    """Return the counts of writes to the cluster, by object and result.

    `objects` counts writes for agents and by REST, see `Objects.writes`; `writes` those of
    statuses, Events and the Lease, by result.
    """
    counts = Counter(objects)
    for (name, results), result in product(writes.items(), WRITE_RESULTS):
        counts[name, result] += results.get(result, 0)
    return counts


class Metrics(Collector):
    """All metrics of a broker.

    Args:
        read: returns the values of `GAUGES` and `COUNTERS`; called at each scrape.
    """

    def __init__(self, read: Callable[[], Mapping[str, Labelled]]) -> None:
        self._read = read
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(self)
        self._match = self._histogram("match_seconds", "Time to match one change.", _MATCH_S)
        self._applied = self._histogram(
            "change_applied_seconds",
            "Time from a changed view until its agent runs it.",
            _APPLIED_S,
        )
        self._requests = Histogram(
            "streambroker_rest_request_seconds",
            "Time to answer a REST request, without long polls and streams of events.",
            ("method",),
            registry=self.registry,
            buckets=_REQUEST_S,
        )
        self._answers: Counter[tuple[str, str]] = Counter()

    def _histogram(self, name: str, text: str, buckets: Iterable[float]) -> Histogram:
        return Histogram(
            f"streambroker_{name}", text, registry=self.registry, buckets=tuple(buckets)
        )

    def describe(self) -> list[Metric]:
        """Return nothing, so that registration does not call `collect` early."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the current values."""
        values = self._read()
        for name, family in GAUGES.items():
            yield _metric(GaugeMetricFamily, name, family, values[name])
        for name, family in COUNTERS.items():
            yield _metric(CounterMetricFamily, name, family, values[name])
        requests = _Family("Responses of the REST API.", ("method", "code"))
        yield _metric(CounterMetricFamily, "rest_requests", requests, self._answers)

    def observe_match(self, seconds: float) -> None:
        """Record the duration of matching one change."""
        self._match.observe(seconds)

    def observe_applied(self, seconds: float) -> None:
        """Record the time from a change of an agent's view until the agent ran it."""
        self._applied.observe(seconds)

    def count_answer(self, method: str, code: int, seconds: float | None) -> None:
        """Count a REST response; `seconds` is None for a long poll or an event stream."""
        self._answers[method, str(code)] += 1
        if seconds is not None:
            self._requests.labels(method).observe(seconds)

    def families(self) -> list[otlp.Family]:
        """Return all metrics as OTLP has them."""
        return [_family(metric) for metric in self.registry.collect()]

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)


def _metric(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    family: _Family,
    values: Labelled,
) -> Metric:
    metric = kind(f"streambroker_{name}", family.text, labels=family.labels)
    for labels, value in {**dict.fromkeys(family.initial, 0), **values}.items():
        metric.add_metric(labels, value)
    return metric


def _family(metric: Metric) -> otlp.Family:
    if metric.type == "histogram":
        return metric.name, metric.documentation, _read_histograms(metric)
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    samples = [(s.labels, s.value) for s in metric.samples if s.name == name]
    return name, metric.documentation, samples


def _read_histograms(metric: Metric) -> list[otlp.Sample]:
    """Return histograms by labels; Prometheus has a sample for each bound, which counts all below.

    Samples of one histogram follow each other, bounds first, in order.
    """
    found: list[otlp.Sample] = []
    bounds: list[tuple[float, float]] = []
    for sample in metric.samples:
        if sample.name.endswith("_bucket"):
            bounds.append((float(sample.labels["le"]), sample.value))
        elif sample.name.endswith("_sum"):
            counts = [int(b - a) for a, b in pairwise([0.0, *(count for _, count in bounds)])]
            upper = [bound for bound, _ in bounds[:-1]]
            found.append((sample.labels, otlp.Histogram(upper, counts, sample.value)))
            bounds = []
    return found
