"""``GET …/graph``: jobs and routes with states and rates, in a bounded number of elements."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from aiohttp import web

from streambroker_core import graph
from streambroker_core.model import PeKey, Route, is_label
from streambroker_core.wire.reports.route_states import most_important, route_state
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.agents.reports import AgentReports, Reports, top_rows
from streambroker_operator.rest.guard.rate_limits import caller_name
from streambroker_operator.rest.http import requests
from streambroker_operator.rest.http.paths import GRAPH
from streambroker_operator.rest.http.responses import encode_long
from streambroker_operator.rest.lists.list_cache import CACHE_TTL_S, ListCaches
from streambroker_operator.runtime.bodies import route_body
from streambroker_operator.runtime.runtime import Runtime

MAX_GRAPHS = 16
"""Maximum number of namespaces whose graphs are kept."""
MAX_ANSWERS = 32
"""Maximum number of answers that are kept, each of some 0.5 MB at most."""
ANSWER_TTL_S = 2.0
"""Time for which equal requests get the same answer while the board is unchanged."""
MAX_LISTED = 10
"""Maximum number of routes that are listed of one edge."""
MAX_PORTS = 20
"""Maximum number of ports of each kind that are named of one job."""
MAX_MATCH = 2_048
"""Maximum length of a search text, in characters."""
_LISTED = ("rowsPerSecond", "lagRows", "lagSeconds")

routes = web.RouteTableDef()


class JobGraphs:
    """Graphs of namespaces, and answers; built again only after the board has changed.

    Many open pages make the same request at the same moment, after each change: one of them has
    the answer built, and all get it.
    """

    def __init__(self, runtime: Runtime, caches: ListCaches, reports: Reports) -> None:
        self._runtime = runtime
        self._caches = caches
        self._reports = reports
        self._change = -1
        self._graphs: dict[str, graph.JobGraph] = {}
        self._answers: dict[tuple[str, str], tuple[float, bytes]] = {}
        self._building: dict[tuple[str, str, int], asyncio.Task[bytes]] = {}
        self._end: asyncio.TimerHandle | None = None

    async def answer(
        self, namespace: str, query: str, question: graph.Question, caller: str
    ) -> bytes:
        """Return the answer to a question, the text of which is ``query``.

        Raises:
            RequestError: 404, there is no such job; 429, too many of the caller's requests are
                waiting.
        """
        change = self._runtime.change_log.count
        made, body = self._answers.get((namespace, query), (-math.inf, b""))
        if change == self._change and time.monotonic() < made + ANSWER_TTL_S:
            return body
        key = namespace, query, change
        building = self._building.get(key)
        if building is None:
            building = asyncio.create_task(self._build(namespace, query, question, caller))
            self._building[key] = building
            building.add_done_callback(partial(self._end_building, key))
        # A page that goes away does not end what others wait for.
        return await asyncio.shield(building)

    def _end_building(self, key: tuple[str, str, int], building: asyncio.Task[bytes]) -> None:
        del self._building[key]
        if not building.cancelled():
            building.exception()  # Else it is logged if all pages that wait have gone.

    async def _build(
        self, namespace: str, query: str, question: graph.Question, caller: str
    ) -> bytes:
        jobs, change = await self._get_current(namespace, caller)
        if question.focus is not None and question.focus not in jobs.jobs:
            raise RequestError(404, "UnknownJob", f"There is no job {question.focus}.")
        version = f"{self._runtime.change_log.session}.{change}"
        async with self._caches.routes.queue.turn(caller):
            now = time.monotonic()
            agent_reports = self._reports.snapshot(now)

            def build() -> bytes:
                body = _body(graph.answer(jobs, question), agent_reports, now)
                return encode_long({**body, "version": version, "limit": question.limit})

            body = await asyncio.to_thread(build)
            if change == self._change:
                known = self._answers.items()
                self._answers = {k: one for k, one in known if now < one[0] + ANSWER_TTL_S}
                if len(self._answers) < MAX_ANSWERS:
                    self._answers[namespace, query] = now, body
        return body

    async def _get_current(self, namespace: str, caller: str) -> tuple[graph.JobGraph, int]:
        """Return the graph of a namespace (``*``: of all), and the change that it is of."""
        if self._end is not None:
            self._end.cancel()
        self._end = asyncio.get_running_loop().call_later(CACHE_TTL_S, self._graphs.clear)
        cached = await self._caches.routes.get_current(caller)
        if cached.change != self._change:
            self._change = cached.change
            self._graphs.clear()
            self._answers.clear()
        found = self._graphs.get(namespace)
        if found is None:
            board = self._runtime.board
            resources = tuple(board.iter_exports()), tuple(board.iter_imports())
            async with self._caches.routes.queue.turn(caller):
                found = await asyncio.to_thread(
                    graph.build_graph, *resources, cached.items, namespace
                )
            if cached.change == self._change:
                while len(self._graphs) >= MAX_GRAPHS:
                    del self._graphs[next(iter(self._graphs))]
                self._graphs[namespace] = found
        return found, cached.change


JOB_GRAPHS = web.AppKey("job graphs", JobGraphs)


@routes.get(GRAPH)
async def get_graph(request: web.Request) -> web.Response:
    """Return the graph of a namespace, or of all with ``?namespace=*``, or a part of it."""
    namespace, caller = requests.parse_namespace_or_all(request), caller_name(request)
    question, graphs = _read_question(request), request.app[JOB_GRAPHS]
    body = await graphs.answer(namespace, request.query_string, question, caller)
    return web.Response(body=body, content_type="application/json")


def _read_question(request: web.Request) -> graph.Question:
    """Return the question of the query.

    Raises:
        RequestError: 400, a parameter is invalid.
        SubscriptionError: `match` is an invalid expression.
    """
    text = request.query.get("match", "").strip()
    if len(text) > MAX_MATCH:
        raise requests.query_error(f"match has more than {MAX_MATCH} characters.")
    focus = _read_pair(request, "focus", "NAMESPACE/JOB")
    if focus is not None and not is_label(focus[1]):
        raise requests.query_error(f"focus={focus[1]!r} is not the name of a job.")
    return graph.Question(
        focus=None if focus is None else graph.JobKey(*focus),
        hops=requests.parse_integer(request, "hops", 1, 2) or 1,
        match=graph.read_match(text) if text else None,
        group=_read_pair(request, "group", "NAMESPACE/APPLICATION"),
        limit=requests.parse_limit(request, graph.MAX_ELEMENTS) or graph.MAX_ELEMENTS,
    )


def _read_pair(request: web.Request, name: str, form: str) -> tuple[str, str] | None:
    text = request.query.get(name)
    if text is None:
        return None
    namespace, slash, rest = text.partition("/")
    if not slash or not is_label(namespace):
        raise requests.query_error(f"{name}={text[:300]!r} is not {form}.")
    return namespace, rest


def _body(found: graph.Answer, reports: Mapping[PeKey, AgentReports], now: float) -> dict[str, Any]:
    states: dict[str, set[str]] = {}
    single = {node.id for node in found.nodes if node.kind == "job"}
    edges = []
    for edge in found.edges:
        rows = top_rows(edge.routes, reports, now)
        own = [route_state(row) for row in rows]
        for end in (edge.source, edge.target):
            states.setdefault(end, set()).update(own)
        edges.append(_edge_body(edge, rows, own))
        if single >= {edge.source, edge.target}:
            edges[-1]["list"] = _list_body(edge.routes, rows, own)
    return {
        "folded": found.folded,
        "nodes": [_node_body(node, states.get(node.id, ())) for node in found.nodes],
        "edges": edges,
        **{name: getattr(found, name)._asdict() for name in ("total", "selected", "hidden")},
    }


def _node_body(node: graph.Node, states: Any) -> dict[str, Any]:
    body: dict[str, Any] = {
        "id": node.id,
        "kind": node.kind,
        "namespace": node.namespace,
        "exports": sum(len(job.exports) for job in node.jobs),
        "imports": sum(len(job.imports) for job in node.jobs),
        "state": most_important(states),
        "matched": node.matched,
    }
    if node.kind != "namespace":
        body["application"] = node.application
    if node.kind != "job":
        return {**body, "jobs": len(node.jobs)}
    job = node.jobs[0]
    return {
        **body,
        "job": job.key.job,
        "exportPorts": list(job.exports[:MAX_PORTS]),
        "importPorts": list(job.imports[:MAX_PORTS]),
        **({"external": True} if job.external else {}),
    }


def _edge_body(
    edge: graph.Edge, rows: Sequence[Mapping[str, Any]], states: Sequence[str]
) -> dict[str, Any]:
    rates = [row["rowsPerSecond"] for row in rows if row["rowsPerSecond"] is not None]
    return {
        "id": edge.id,
        "from": edge.source,
        "to": edge.target,
        "routes": len(edge.routes),
        "rowsPerSecond": round(sum(rates), 3) if rates else None,
        "state": most_important(states),
    }


def _list_body(
    listed: Sequence[Route], rows: Sequence[Mapping[str, Any]], states: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the first routes of an edge with their metrics."""
    first = zip(listed[:MAX_LISTED], rows, states, strict=False)
    return [
        {**route_body(route), "state": state, **{name: row[name] for name in _LISTED}}
        for route, row, state in first
    ]
