"""What agents report of their readers, and ``GET …/top``, which shows it by route.

Reports are kept in memory only: they are figures of the moment, and after a restart
of the broker every agent sends the next one within half a minute.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from aiohttp import web

from streambroker_core.model import PeKey, PortKey, Route
from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.reports.rule_metrics import (
    RuleMetricsReport,
    WatermarkWait,
    read_all_metrics,
    read_all_watermark_waits,
    write_metrics,
)
from streambroker_core.wire.reports.rule_status import RuleStatusMap, read_statuses
from streambroker_core.wire.reports.side_status import SideStatus, read_sides, write_side
from streambroker_operator.agents.liveness import ShardAgentInfo
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
from streambroker_operator.runtime.bodies import shard_agent_bodies

REPORT_INTERVAL_S = 30
"""When an agent reports again, in seconds."""
WATCHED_INTERVAL_S = 1
"""The same while somebody watches."""
WATCHING_S = 10.0
"""For how long after a GET somebody counts as watching, in seconds."""
MIN_RATE_INTERVAL_S = 0.5
"""Reports closer than this give no rate: a rate of a moment says nothing."""
MAX_PES = 20_000
MAX_READERS = 2_000
MAX_SHARD_AGENTS = 256
MAX_DAMAGED = 100
MAX_DAMAGE = 1_000
"""Characters of what is shown of the damage to one log."""
STALE_S = 90.0
"""A report older than this is of an agent that reports no more."""
FULL_PERCENT = 80
"""Percent of its log that a route has still to read, from which on it counts as full."""
STATES = ("waits", "full", "ended", "away", "reads")
_LARGEST = 2**63 - 1
_MAXIMA = ("lagEpochs", "lagRows", "lagBytes", "lagSeconds", "congestion")
_SUMS = ("filtered", "droppedRows", "lostRows", "duplicateRows", "blockedSeconds", "releasedPlans")
_PUBLISHED_SUMS = ("filteredRows", *_SUMS[1:])

routes = web.RouteTableDef()


@dataclass(slots=True)
class RouteMetrics:
    """All readers of one route.

    Attributes:
        delivered: rows delivered in all, by reader; likewise ``sent``, bytes.
        maxima: of what tells how far behind a reader is, that of the one farthest behind, by name.
        sums: of what is counted, the sum over all readers, by name.
        is_alive: a reader lives.
    """

    delivered: dict[str, int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    maxima: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_MAXIMA, 0))
    sums: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_SUMS, 0))
    is_alive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One agent's figures, by export port and import key, and when they came (monotonic).

    ``waiting_since`` has the exports that wait at this moment, by port; ``ended`` whether an export
    has ended, by port, of those of which that was said; ``damaged`` what is damaged of the logs of
    exports, by port, of those that are not whole; ``states`` how many routes are in each of
    `STATES`, each in the first that it is in; ``rules`` what is told of rules of patterns, and of
    ``more_rules`` other reports tell; ``sides`` the side inputs of the job's queries;
    ``rule_metrics`` what their rules have done, ``rule_waiting`` which operators wait for time.
    """

    at: float
    route_metrics: Mapping[tuple[str, str], RouteMetrics]
    waiting: frozenset[tuple[str, str]]
    waiting_since: Mapping[str, str]
    ended: Mapping[str, bool]
    damaged: Mapping[str, str]
    states: Mapping[str, int]
    shard_agents: tuple[ShardAgentInfo, ...] = ()
    rules: RuleStatusMap = field(default_factory=dict)
    more_rules: bool = False
    sides: tuple[SideStatus, ...] = ()
    rule_metrics: tuple[RuleMetricsReport, ...] = ()
    rule_waiting: tuple[WatermarkWait, ...] = ()


AgentReports: TypeAlias = tuple[Report, Report | None]
"""An agent's last report, and an earlier one for rates."""


class Reports:
    """The last report of each agent, and the one before it for rates."""

    def __init__(self) -> None:
        self._last: dict[PeKey, AgentReports] = {}
        self._last_read = float("-inf")

    def store(self, pe: PeKey, report: Report) -> int:
        """Keep a report; return after how many seconds the agent should send the next.

        Beyond `MAX_PES` agents the one that was silent for longest is forgotten.
        """
        before = self._last.pop(pe, None)
        base = None
        if before is not None:
            last, base = before
            if report.at - last.at >= MIN_RATE_INTERVAL_S:
                base = last
        self._last[pe] = (report, base)
        while len(self._last) > MAX_PES:
            del self._last[next(iter(self._last))]
        return (
            WATCHED_INTERVAL_S if report.at - self._last_read <= WATCHING_S else REPORT_INTERVAL_S
        )

    def count_states(self, now: float) -> dict[str, int]:
        """Return how many routes are in which state, by the reports that are not stale."""
        found = dict.fromkeys(STATES, 0)
        for report, _ in self._last.values():
            if now - report.at <= STALE_S:
                for state, count in report.states.items():
                    found[state] += count
        return found

    def snapshot(self, now: float) -> dict[PeKey, AgentReports]:
        """Return what is known, for somebody who watches; agents report more often then."""
        self._last_read = now
        return dict(self._last)


def top_rows(
    routes: Iterable[Route], reports: Mapping[PeKey, AgentReports], now: float
) -> list[dict[str, Any]]:
    """Return routes with their figures; what was not reported is null.

    Args:
        routes: those of the board.
        reports: the last reports of the agents.
        now: on the clock of the reports, in seconds.
    """
    return [_route_row(route, reports.get(route.export.owner), now) for route in routes]


def _route_row(route: Route, reports: AgentReports | None, now: float) -> dict[str, Any]:
    if reports is None:
        return _row(route)
    report, base = reports
    pair = (route.export.port, str(route.import_))
    figures = report.route_metrics.get(pair, RouteMetrics())
    ended = report.ended.get(pair[0])
    return _row(
        route,
        ended=ended,
        readToEnd=None
        if ended is None
        else ended and _is_read_to_end(report.route_metrics.get(pair)),
        rowsPerSecond=_rate(report, base, pair, lambda f: f.delivered),
        bytesPerSecond=_rate(report, base, pair, lambda f: f.sent),
        **figures.maxima,
        waiting=pair in report.waiting,
        waitingSince=report.waiting_since.get(pair[0]) if pair in report.waiting else None,
        alive=figures.is_alive,
        **dict(zip(_PUBLISHED_SUMS, figures.sums.values(), strict=True)),
        age=round(max(0.0, now - report.at), 1),
    )


def _row(route: Route, **values: Any) -> dict[str, Any]:
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
        "age": None,
        **values,
    }


def _rate(
    report: Report,
    base: Report | None,
    pair: tuple[str, str],
    select: Callable[[RouteMetrics], Mapping[str, int]],
) -> float | None:
    """Return how much a count of each reader grew per second between two reports; null without two.

    A reader that was not there before, or whose count went back, adds nothing: what
    it got when is not known.
    """
    if base is None:
        return None
    before = select(base.route_metrics.get(pair, RouteMetrics()))
    now = select(report.route_metrics.get(pair, RouteMetrics()))
    grown = sum(max(0, count - before[reader]) for reader, count in now.items() if reader in before)
    return round(grown / (report.at - base.at), 3)


def shard_agents_by_pe(
    routes: Iterable[Route], reports: Mapping[PeKey, AgentReports], namespace: str, now: float
) -> dict[str, list[dict[str, Any]]]:
    """Return the fellows of the agents that export, by PE; of stale reports nothing is known.

    Args:
        routes: those that are shown.
        reports: the last reports of the agents.
        namespace: whose agents are shown, ``*`` for all.
        now: on the clock of the reports, in seconds.
    """
    homes = {r.export.owner for r in routes if namespace in ("*", r.export.namespace)}
    return {
        str(home): shard_agent_bodies(reports[home][0].shard_agents)
        for home in sorted(homes & reports.keys(), key=str)
        if reports[home][0].shard_agents and now - reports[home][0].at <= STALE_S
    }


def reported_items(
    reports: Mapping[PeKey, AgentReports],
    namespace: str,
    now: float,
    select: Callable[[Report], list[dict[str, Any]]],
) -> list[dict[str, Any]]:
    """Return what agents of a namespace told of; of stale reports nothing is known.

    Args:
        reports: the last reports of the agents.
        namespace: whose agents are shown, ``*`` for all.
        now: on the clock of the reports, in seconds.
        select: returns what a report has of it.
    """
    return [
        {"pe": str(pe), **item, "age": round(max(0.0, now - report.at), 1)}
        for pe, (report, _) in sorted(reports.items(), key=lambda item: str(item[0]))
        if namespace in ("*", pe.namespace) and now - report.at <= STALE_S
        for item in select(report)
    ]


def _side_bodies(report: Report) -> list[dict[str, Any]]:
    return [write_side(side) for side in report.sides]


def _rule_metrics_bodies(report: Report) -> list[dict[str, Any]]:
    return [write_metrics(one) for one in report.rule_metrics]


def _rule_waiting_bodies(report: Report) -> list[dict[str, Any]]:
    return [write_metrics(one) for one in report.rule_waiting]


def read_report(body: object, at: float, pe: PeKey | None = None) -> Report:
    """Read a report; members that are not known are of a newer agent and passed over.

    Args:
        body: what was sent.
        at: when it came, in seconds.
        pe: whose it is; its fellows are of the same job.

    Raises:
        ManifestError: a field is wrong; the error names it.
    """
    figures: dict[tuple[str, str], RouteMetrics] = {}
    waiting: set[tuple[str, str]] = set()
    since: dict[str, str] = {}
    ended: dict[str, bool] = {}
    damaged: dict[str, str] = {}
    exports = Fields(body).child("exports")
    for port in exports.names():
        fields = exports.child(port)
        begun = fields.optional_text("waitingSince", longest=40)
        if begun is not None:
            since[port] = begun
        if fields.has("ended"):
            ended[port] = fields.boolean("ended", False)
        harm = "; ".join(str(one) for one in fields.items("damaged", max_items=MAX_DAMAGED))
        if harm:
            damaged[port] = f"{harm[:MAX_DAMAGE]}."
        for import_ in fields.items("waitingFor", max_items=MAX_READERS):
            waiting.add((port, str(import_)))
        for number, reader in enumerate(fields.items("readers", max_items=MAX_READERS)):
            _add_reader(figures, port, Fields(reader, f"{fields.path_to('readers')}[{number}]"))
    return Report(
        at=at,
        route_metrics=figures,
        waiting=frozenset(waiting),
        waiting_since=since,
        ended=ended,
        damaged=damaged,
        states=Counter(
            _route_state(found, pair in waiting, ended.get(pair[0], False))
            for pair, found in figures.items()
        ),
        shard_agents=_read_shard_agents(Fields(body), pe),
        rules=read_statuses(Fields(body).child("patterns").child("rules")),
        more_rules=Fields(body).child("patterns").boolean("more", False),
        sides=read_sides(Fields(body), "sides"),
        rule_metrics=read_all_metrics(Fields(body), "ruleFigures"),
        rule_waiting=read_all_watermark_waits(Fields(body), "ruleWaiting"),
    )


def _read_shard_agents(fields: Fields, home: PeKey | None) -> tuple[ShardAgentInfo, ...]:
    found = []
    for number, entry in enumerate(fields.items("fellows", max_items=MAX_SHARD_AGENTS)):
        fellow = fields.entry("fellows", number, entry)
        pe = PeKey.parse(fellow.text("pe"))
        if home is not None and (pe.namespace, pe.job) != (home.namespace, home.job):
            raise fellow.error_at("pe", f"is {pe}, which is not of the job of {home}")
        away = fellow.optional_text("away", longest=1_000)
        found.append(ShardAgentInfo(pe=pe, active=fellow.boolean("active", True), away_reason=away))
    return tuple(found)


def _is_read_to_end(metrics: RouteMetrics | None) -> bool:
    """Say whether all readers of a route, of which there is one, have read all there is."""
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
    found = metrics.setdefault(pair, RouteMetrics())
    found.delivered[fields.text("reader")] = _count(fields, "delivered")
    found.sent[fields.text("reader")] = _count(fields, "sentBytes")
    for name in _MAXIMA:
        found.maxima[name] = max(found.maxima[name], _count(fields, name))
    for name in _SUMS:
        found.sums[name] += _count(fields, name)
    found.is_alive = fields.boolean("alive", False) or found.is_alive


def _count(fields: Fields, name: str) -> int:
    return fields.integer(name, 0, high=_LARGEST)


REPORTS = web.AppKey("reports", Reports)


@routes.put(REPORT)
async def put_report(request: web.Request) -> web.Response:
    """Take an agent's figures; the answer says when the next are wanted."""
    pe = require_pe(request)
    report = read_report(await json_body(request), time.monotonic(), pe)
    request.app[RUNTIME].liveness.note_contact(pe)
    request.app[RUNTIME].liveness.set_shard_agents(pe, report.shard_agents)
    request.app[RUNTIME].rules.apply_report(pe, report.rules, more=report.more_rules)
    shown = request.app[RUNTIME].export_reports.apply_damage(pe, report.damaged)
    request.app[RUNTIME].change_log.publish_exports(shown)
    answer = json_answer({"again": request.app[REPORTS].store(pe, report)})
    answer[QUIET] = True
    return answer


@routes.get(API + "/top")
async def get_top(request: web.Request) -> web.Response:
    """Answer the routes that touch a namespace, or all with ``?namespace=*``, with figures.

    With them come the fellows of the agents of that namespace that export, and the side inputs and
    rules of patterns of their jobs.

    Many routes take a while to write down; that is done in a thread, one request at a time.
    """
    namespace, who = parse_namespace_or_all(request), caller_name(request)
    pictures = request.app[LIST_CACHES].routes
    picture = await pictures.get_current(who)
    async with pictures.queue.turn(who):
        now = time.monotonic()
        known = request.app[REPORTS].snapshot(now)

        def answer() -> web.Response:
            shown = picture.in_namespace(namespace)
            fellows = shard_agents_by_pe(shown, known, namespace, now)
            below = {
                "sides": reported_items(known, namespace, now, _side_bodies),
                "rules": reported_items(known, namespace, now, _rule_metrics_bodies),
                "ruleWaiting": reported_items(known, namespace, now, _rule_waiting_bodies),
            }
            found = top_rows(shown, known, now)
            return long_answer({"routes": found, "fellows": fellows, **below})

        return await asyncio.to_thread(answer)
