"""Metrics that agents report, and ``GET …/top``, which shows them by route.

Reports are kept in memory only. After a restart of the broker, every agent reports again within
30 seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from aiohttp import web

from streambroker_core.model import Kind, PeKey, PortKey, Route
from streambroker_core.wire.encoding.canonical import JsonObject
from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.reports.health import Health, read_health
from streambroker_core.wire.reports.rule_metrics import (
    RuleMetricsReport,
    WatermarkWait,
    read_all_metrics,
    read_all_watermark_waits,
    write_metrics,
)
from streambroker_core.wire.reports.rule_status import RuleStatusMap, read_statuses
from streambroker_core.wire.reports.schema_status import SchemaStatus, read_schema_status
from streambroker_core.wire.reports.side_status import SideStatus, read_sides, write_side
from streambroker_core.wire.reports.storage_status import StorageStatus, read_storage
from streambroker_operator.agents.port_reports import ReportedPorts
from streambroker_operator.rest.guard.authentication import QUIET
from streambroker_operator.rest.guard.rate_limits import caller_name
from streambroker_operator.rest.http.paths import API, REPORT
from streambroker_operator.rest.http.requests import (
    RUNTIME,
    json_body,
    parse_namespace_or_all,
    require_pe,
)
from streambroker_operator.rest.http.responses import json_answer, long_answer
from streambroker_operator.rest.lists.list_cache import LIST_CACHES

REPORT_INTERVAL_S = 30
"""Report interval of an agent, in seconds."""
WATCHED_INTERVAL_S = 1
"""Report interval while metrics are watched, in seconds."""
WATCHING_S = 10.0
"""How long metrics count as watched after a GET, in seconds."""
MIN_RATE_INTERVAL_S = 0.5
"""Minimum interval of two reports for a rate, in seconds."""
MAX_PES = 20_000
MAX_READERS = 2_000
MAX_DAMAGED = 100
MAX_DAMAGE = 1_000
"""Maximum length of the published damage of one log, in characters."""
STALE_S = 90.0
"""Age from which a report is ignored, in seconds."""
FULL_PERCENT = 80
"""A route is full if at least this percentage of the export's log is still unread."""
STATES = ("waits", "full", "ended", "away", "reads")
_LARGEST = 2**63 - 1
_MAXIMA = ("lagEpochs", "lagRows", "lagBytes", "lagSeconds", "stalledSeconds", "congestion")
_SUMS = (
    *("filtered", "droppedRows", "lostRows", "duplicateRows", "blockedSeconds", "releasedPlans"),
    "throttledSeconds",
)
_PUBLISHED_SUMS = ("filteredRows", *_SUMS[1:])

routes = web.RouteTableDef()


@dataclass(slots=True)
class RouteMetrics:
    """Metrics of all readers of one route.

    Attributes:
        delivered: total rows delivered, by reader.
        sent: total bytes sent, by reader.
        maxima: lag metrics by name, of the reader that is farthest behind.
        sums: counters by name, summed over all readers.
        is_alive: whether any reader is alive.
    """

    delivered: dict[str, int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    maxima: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_MAXIMA, 0))
    sums: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_SUMS, 0))
    is_alive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One agent's report.

    Attributes:
        at: receive time (monotonic), in seconds.
        route_metrics: by (export port, import key).
        waiting: (export port, import key) of routes that an export waits for.
        waiting_since: since when, by port of the exports that wait now.
        ended: whether an export has ended, by port; only exports for which it was reported.
        damaged: description of log damage, by port of the damaged exports.
        storage: uploads to object storage, by port of all exports.
        health: health of all ports.
        schemas: versions of columns, by port of all exports.
        states: number of routes by state; a route counts for the first of `STATES` that applies.
        rules: status of pattern rules.
        more_rules: other reports have the status of further rules.
        sides: side inputs of the job's queries.
        rule_metrics: metrics of pattern rules.
        rule_waiting: operators that wait for the watermark.
    """

    at: float
    route_metrics: Mapping[tuple[str, str], RouteMetrics]
    waiting: frozenset[tuple[str, str]]
    waiting_since: Mapping[str, str]
    ended: Mapping[str, bool]
    damaged: Mapping[str, str]
    storage: Mapping[str, StorageStatus]
    health: Health
    schemas: Mapping[str, SchemaStatus]
    states: Mapping[str, int]
    rules: RuleStatusMap = field(default_factory=dict)
    more_rules: bool = False
    sides: tuple[SideStatus, ...] = ()
    rule_metrics: tuple[RuleMetricsReport, ...] = ()
    rule_waiting: tuple[WatermarkWait, ...] = ()


AgentReports: TypeAlias = tuple[Report, Report | None]
"""Last report of an agent, and an earlier one for rates."""


class Reports:
    """Last two reports of each agent."""

    def __init__(self) -> None:
        self._last: dict[PeKey, AgentReports] = {}
        self._last_read = float("-inf")

    def store(self, pe: PeKey, report: Report) -> int:
        """Store a report; return the interval to the agent's next report, in seconds.

        Beyond `MAX_PES` agents, the one that has been silent for longest is dropped.
        """
        previous = self._last.pop(pe, None)
        base = None
        if previous is not None:
            last, base = previous
            if report.at - last.at >= MIN_RATE_INTERVAL_S:
                base = last
        self._last[pe] = (report, base)
        while len(self._last) > MAX_PES:
            del self._last[next(iter(self._last))]
        return (
            WATCHED_INTERVAL_S if report.at - self._last_read <= WATCHING_S else REPORT_INTERVAL_S
        )

    def count_states(self, now: float) -> dict[str, int]:
        """Return the number of routes by state, without stale reports."""
        counts = dict.fromkeys(STATES, 0)
        for report, _ in self._last.values():
            if now - report.at <= STALE_S:
                for state, count in report.states.items():
                    counts[state] += count
        return counts

    def snapshot(self, now: float) -> dict[PeKey, AgentReports]:
        """Return all reports, and mark metrics as watched so that agents report more often."""
        self._last_read = now
        return dict(self._last)


def top_rows(
    routes: Iterable[Route], reports: Mapping[PeKey, AgentReports], now: float
) -> list[JsonObject]:
    """Return the metrics rows of routes at monotonic time `now`; unreported values are null."""
    return [
        {**_route_row(route, reports.get(route.export.owner), now), **_problems(route, reports)}
        for route in routes
    ]


def _problems(route: Route, reports: Mapping[PeKey, AgentReports]) -> JsonObject:
    """Return the reasons why the ends of a route are not healthy; None if they are, or unknown."""
    reasons: dict[str, str | None] = {}
    ends: tuple[tuple[Kind, PortKey], ...] = (("Export", route.export), ("Import", route.import_))
    for kind, key in ends:
        report = reports.get(key.owner)
        state = None if report is None else report[0].health.find(kind, key.port)
        healthy = state is None or state.is_healthy
        reasons[f"{kind.lower()}Problem"] = None if healthy or state is None else state.reason
    return {**reasons}


def _route_row(route: Route, reports: AgentReports | None, now: float) -> JsonObject:
    if reports is None:
        return _row(route)
    report, base = reports
    pair = (route.export.port, str(route.import_))
    metrics = report.route_metrics.get(pair, RouteMetrics())
    ended = report.ended.get(pair[0])
    return _row(
        route,
        ended=ended,
        readToEnd=None
        if ended is None
        else ended and _is_read_to_end(report.route_metrics.get(pair)),
        rowsPerSecond=_rate(report, base, pair, lambda f: f.delivered),
        bytesPerSecond=_rate(report, base, pair, lambda f: f.sent),
        **metrics.maxima,
        waiting=pair in report.waiting,
        waitingSince=report.waiting_since.get(pair[0]) if pair in report.waiting else None,
        alive=metrics.is_alive,
        **dict(zip(_PUBLISHED_SUMS, metrics.sums.values(), strict=True)),
        storage=_storage_metrics(report.storage.get(pair[0])),
        age=round(max(0.0, now - report.at), 1),
    )


def _row(route: Route, **values: Any) -> JsonObject:
    return {
        "export": str(route.export),
        "import": str(route.import_),
        "policy": route.policy,
        "rowsPerSecond": None,
        "bytesPerSecond": None,
        **dict.fromkeys(_MAXIMA),
        "waiting": False,
        "waitingSince": None,
        "alive": False,
        "ended": None,
        "readToEnd": None,
        **dict.fromkeys(_PUBLISHED_SUMS),
        "storage": None,
        "age": None,
        **values,
    }


def _storage_metrics(storage: StorageStatus | None) -> JsonObject | None:
    """Return the uploads of a route's export, without the error, which names its bucket."""
    if storage is None or not storage.exists:
        return None
    return {
        "bytes": storage.bytes,
        "seconds": storage.seconds,
        "failing": bool(storage.error),
        "superseded": storage.superseded,
    }


def _rate(
    report: Report,
    base: Report | None,
    pair: tuple[str, str],
    select: Callable[[RouteMetrics], Mapping[str, int]],
) -> float | None:
    """Return the growth per second between two reports, summed over readers; None without two.

    New readers, and readers whose count decreased, add nothing: the time of growth is unknown.
    """
    if base is None:
        return None
    before = select(base.route_metrics.get(pair, RouteMetrics()))
    now = select(report.route_metrics.get(pair, RouteMetrics()))
    grown = sum(max(0, count - before[reader]) for reader, count in now.items() if reader in before)
    return round(grown / (report.at - base.at), 3)


def reported_items(
    reports: Mapping[PeKey, AgentReports],
    namespace: str,
    now: float,
    select: Callable[[Report], Iterable[JsonObject]],
) -> list[JsonObject]:
    """Return the selected items of all reports in a namespace (``*``: all).

    Stale reports are ignored; `now` is monotonic time in seconds.
    """
    return [
        {"pe": str(pe), **item, "age": round(max(0.0, now - report.at), 1)}
        for pe, (report, _) in sorted(reports.items(), key=lambda item: str(item[0]))
        if namespace in ("*", pe.namespace) and now - report.at <= STALE_S
        for item in select(report)
    ]


def read_report(body: object, at: float) -> Report:
    """Parse a report that arrived at `at` (monotonic, in seconds); ignore unknown members.

    Raises:
        ManifestError: a field is invalid; the error names it.
    """
    metrics: dict[tuple[str, str], RouteMetrics] = {}
    waiting: set[tuple[str, str]] = set()
    since: dict[str, str] = {}
    ended: dict[str, bool] = {}
    damaged: dict[str, str] = {}
    storage: dict[str, StorageStatus] = {}
    schemas: dict[str, SchemaStatus] = {}
    exports = Fields(body).child("exports")
    for port in exports.names():
        fields = exports.child(port)
        waiting_since = fields.optional_text("waitingSince", longest=40)
        if waiting_since is not None:
            since[port] = waiting_since
        if fields.has("ended"):
            ended[port] = fields.boolean("ended", False)
        storage[port] = read_storage(fields)
        schemas[port] = read_schema_status(fields)
        damage = "; ".join(str(one) for one in fields.items("damaged", max_items=MAX_DAMAGED))
        if damage:
            damaged[port] = f"{damage[:MAX_DAMAGE]}."
        for import_ in fields.items("waitingFor", max_items=MAX_READERS):
            waiting.add((port, str(import_)))
        for number, reader in enumerate(fields.items("readers", max_items=MAX_READERS)):
            _add_reader(metrics, port, Fields(reader, f"{fields.path_to('readers')}[{number}]"))
    return Report(
        at=at,
        route_metrics=metrics,
        waiting=frozenset(waiting),
        waiting_since=since,
        ended=ended,
        damaged=damaged,
        storage=storage,
        health=read_health(Fields(body)),
        schemas=schemas,
        states=Counter(
            _route_state(route_metrics, pair in waiting, ended.get(pair[0], False))
            for pair, route_metrics in metrics.items()
        ),
        rules=read_statuses(Fields(body).child("patterns").child("rules")),
        more_rules=Fields(body).child("patterns").boolean("more", False),
        sides=read_sides(Fields(body), "sides"),
        rule_metrics=read_all_metrics(Fields(body), "ruleFigures"),
        rule_waiting=read_all_watermark_waits(Fields(body), "ruleWaiting"),
    )


def _is_read_to_end(metrics: RouteMetrics | None) -> bool:
    """Return whether all readers of a route have read everything; False without a reader."""
    return metrics is not None and not metrics.maxima["lagEpochs"]


def _route_state(metrics: RouteMetrics, waiting: bool, ended: bool) -> str:
    if waiting:
        return "waits"
    if metrics.maxima["congestion"] >= FULL_PERCENT:
        return "full"
    if ended and _is_read_to_end(metrics):
        return "ended"
    return "reads" if metrics.is_alive else "away"


def _add_reader(metrics: dict[tuple[str, str], RouteMetrics], port: str, fields: Fields) -> None:
    pair = (port, str(PortKey.parse(fields.text("import"))))
    route_metrics = metrics.setdefault(pair, RouteMetrics())
    route_metrics.delivered[fields.text("reader")] = _count(fields, "delivered")
    route_metrics.sent[fields.text("reader")] = _count(fields, "sentBytes")
    for name in _MAXIMA:
        route_metrics.maxima[name] = max(route_metrics.maxima[name], _count(fields, name))
    for name in _SUMS:
        route_metrics.sums[name] += _count(fields, name)
    route_metrics.is_alive = fields.boolean("alive", False) or route_metrics.is_alive


def _count(fields: Fields, name: str) -> int:
    return fields.integer(name, 0, high=_LARGEST)


REPORTS = web.AppKey("reports", Reports)


@routes.put(REPORT)
async def put_report(request: web.Request) -> web.Response:
    """Store an agent's report; return the interval to the next one."""
    pe = require_pe(request)
    report = read_report(await json_body(request), time.monotonic())
    request.app[RUNTIME].liveness.note_contact(pe)
    request.app[RUNTIME].rules.apply_report(pe, report.rules, more=report.more_rules)
    ports = request.app[RUNTIME].port_reports
    reported = ReportedPorts(report.damaged, report.storage, report.health, report.schemas)
    changed = ports.apply_report(pe, reported)
    request.app[RUNTIME].change_log.publish_reported(changed)
    quota = request.app[RUNTIME].board.quotas.find(pe.namespace)
    rates = {"reader": quota.reader_rate, "job": quota.job_rate}
    response = json_answer({"again": request.app[REPORTS].store(pe, report), "rates": rates})
    response[QUIET] = True
    return response


@routes.get(API + "/top")
async def get_top(request: web.Request) -> web.Response:
    """Return the routes that touch a namespace, or all with ``?namespace=*``, with metrics.

    The response also has side inputs and pattern rules of their jobs. It is encoded in a thread,
    one request at a time, because it may be long.
    """
    namespace, caller = parse_namespace_or_all(request), caller_name(request)
    cache = request.app[LIST_CACHES].routes
    cached = await cache.get_current(caller)
    async with cache.queue.turn(caller):
        now = time.monotonic()
        agent_reports = request.app[REPORTS].snapshot(now)

        def answer() -> web.Response:
            selected = cached.in_namespace(namespace)
            selectors: dict[str, Callable[[Report], Iterable[JsonObject]]] = {
                "sides": lambda report: map(write_side, report.sides),
                "rules": lambda report: map(write_metrics, report.rule_metrics),
                "ruleWaiting": lambda report: map(write_metrics, report.rule_waiting),
            }
            job_items = {
                name: reported_items(agent_reports, namespace, now, select)
                for name, select in selectors.items()
            }
            rows = top_rows(selected, agent_reports, now)
            return long_answer({"routes": rows, **job_items})

        return await asyncio.to_thread(answer)
