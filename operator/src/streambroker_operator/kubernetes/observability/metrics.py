"""Prometheus metrics of the broker: own counters, and gauges read at each scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal, TypeAlias

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from streambroker_core.model import AnyKind
from streambroker_core.wire.manifests.ports import OBJECTS
from streambroker_operator.kubernetes.replicas.lease import Lease
from streambroker_operator.kubernetes.status.events import EventWriter
from streambroker_operator.kubernetes.status.programmed import AgentState
from streambroker_operator.kubernetes.status.writer import StatusMetrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

ResourceState: TypeAlias = Literal["accepted", "refused"]
Labelled: TypeAlias = Mapping[Any, float]
"""Values by label values."""

# Exported with 0 from the start: Prometheus sees no increase if a series starts with 1.
_DIFFERENCES = tuple(product(OBJECTS.values(), ("missing", "changed", "ghost")))
_WRITES = tuple(
    product(("spec", "status", "event", "lease"), ("done", "conflict", "refused", "failed"))
)
_REVIEWS = tuple(product(("token", "access"), ("allowed", "denied", "failed")))
_MATCH_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
_APPLIED_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_REQUEST_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerGauges:
    """Values read at each scrape.

    Attributes:
        synced: whether both kinds have been read once, so that requests are served.
        board_versions: processed version by kind.
        watch_age_s: seconds since the last sign of life, by kind.
        followed: whether each watched namespace can be listed, by kind and namespace.
        resources: number of resources by kind and state.
        agents: number of registered agents by state; empty if unknown.
        reported_routes: number of routes by state, as agents reported to this process.
        hints_sent: datagrams sent.
        hints_lost: hints that did not arrive: the agent came only by its poll.
        resyncs: comparisons of the cache with a list.
        resync_differences: differences they found, by kind and ``missing``, ``changed`` or
            ``ghost``.
        relists: full lists after the first, by kind.
        feeder_restarts: restarts of the feeder's child process.
        writes: writes to the cluster by object and result, see `count_writes`.
        reviews: reviews by type and result, see `ReviewClient.counts`.
    """

    release: str
    synced: bool = False
    leads: bool = False
    routes: int = 0
    board_versions: Mapping[AnyKind, int] = field(default_factory=dict)
    watch_age_s: Mapping[AnyKind, float] = field(default_factory=dict)
    followed: Mapping[tuple[AnyKind, str], bool] = field(default_factory=dict)
    resources: Mapping[tuple[AnyKind, ResourceState], int] = field(default_factory=dict)
    agents: Mapping[AgentState, int] = field(default_factory=dict)
    reported_routes: Mapping[str, int] = field(default_factory=dict)
    hints_sent: int = 0
    hints_lost: int = 0
    resyncs: int = 0
    resync_differences: Mapping[tuple[AnyKind, str], int] = field(default_factory=dict)
    relists: Mapping[AnyKind, int] = field(default_factory=dict)
    feeder_restarts: int = 0
    writes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    reviews: Mapping[tuple[str, str], int] = field(default_factory=dict)


def families(gauges: BrokerGauges) -> Iterator[Metric]:
    """Yield the Prometheus metric families of the gauges."""
    yield _gauge("build_info", "The release that runs.", ("version",), {(gauges.release,): 1})
    synced = {(): float(gauges.synced)}
    yield _gauge("feed_synced", "1 once all resources have been read.", (), synced)
    yield _gauge("leader", "1 if this process holds the Lease.", (), {(): float(gauges.leads)})
    yield _gauge("routes", "Routes on the board.", (), {(): gauges.routes})
    yield _gauge("board_version", "Processed version.", ("kind",), _by_kind(gauges.board_versions))
    yield _gauge(
        "watch_age_seconds",
        "Seconds since the last sign of life.",
        ("kind",),
        _by_kind(gauges.watch_age_s),
    )
    followed = {
        (OBJECTS[kind], watched): float(is_followed)
        for (kind, watched), is_followed in gauges.followed.items()
    }
    text = "1 if resources of a watched namespace can be listed."
    yield _gauge("namespace_followed", text, ("kind", "watched"), followed)
    resources = {(OBJECTS[kind], state): n for (kind, state), n in gauges.resources.items()}
    yield _gauge("resources", "Exports and Imports.", ("kind", "state"), resources)
    agents = {(state,): count for state, count in gauges.agents.items()}
    yield _gauge("agents", "Registered agents.", ("state",), agents)
    reported = {(state,): count for state, count in gauges.reported_routes.items()}
    yield _gauge("reported_routes", "Routes that agents report.", ("state",), reported)
    yield _counter("hints_sent", "Hints handed to the network.", (), {(): gauges.hints_sent})
    yield _counter("hints_lost", "Hints that did not arrive.", (), {(): gauges.hints_lost})
    yield _counter("sweeps", "Comparisons of the cache with a list.", (), {(): gauges.resyncs})
    differences = {
        (OBJECTS[kind], difference): n
        for (kind, difference), n in gauges.resync_differences.items()
    }
    differences = {**dict.fromkeys(_DIFFERENCES, 0), **differences}
    yield _counter(
        "sweep_differences",
        "Differences that the comparisons found.",
        ("kind", "difference"),
        differences,
    )
    yield _counter("relists", "Lists after the first.", ("kind",), _by_kind(gauges.relists))
    yield _counter("feeder_restarts", "Starts of the feeder.", (), {(): gauges.feeder_restarts})
    writes = {**dict.fromkeys(_WRITES, 0), **gauges.writes}
    yield _counter("api_writes", "Writes in the cluster.", ("object", "result"), writes)
    reviews = {**dict.fromkeys(_REVIEWS, 0), **gauges.reviews}
    yield _counter("reviews", "Token and access reviews.", ("review", "result"), reviews)


def count_writes(
    status: StatusMetrics,
    events: EventWriter,
    lease: Lease,
    objects: Mapping[tuple[str, str], int],
) -> Mapping[tuple[str, str], int]:
    """Return the counts of writes to the cluster, for `BrokerGauges.writes`.

    `objects` counts writes for agents and by REST, see `Objects.writes`.
    """
    counts: Counter[tuple[str, str]] = Counter(objects)
    counts["status", "done"] += status.written
    counts["status", "conflict"] += status.conflicts
    counts["status", "refused"] += status.refused
    counts["status", "failed"] += status.failed
    counts["event", "done"] += events.written
    counts["event", "refused"] += events.refused
    counts["event", "failed"] += events.failed
    for result, count in lease.writes.items():
        counts["lease", result] += count
    return counts


class Metrics(Collector):
    """All metrics of a broker; gauges are read at each scrape."""

    def __init__(self, read_gauges: Callable[[], BrokerGauges]) -> None:
        self._read_gauges = read_gauges
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
        yield from families(self._read_gauges())
        yield _counter(
            "rest_requests", "Responses of the REST API.", ("method", "code"), self._answers
        )

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

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)


def _by_kind(values: Mapping[AnyKind, float]) -> Labelled:
    return {(OBJECTS[kind],): value for kind, value in values.items()}


def _gauge(name: str, text: str, labels: tuple[str, ...], values: Labelled) -> Metric:
    family = GaugeMetricFamily(f"streambroker_{name}", text, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family


def _counter(name: str, text: str, labels: tuple[str, ...], values: Labelled) -> Metric:
    family = CounterMetricFamily(f"streambroker_{name}", text, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family
