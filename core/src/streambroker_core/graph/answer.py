"""Answer a question about a graph with a bounded number of nodes and edges.

Invariants:

- Nodes and edges together are never more than the limit.
- Every selected job is in one node or counted as hidden, and every selected route in one edge or
  counted as hidden.
- Equal questions about equal graphs have equal answers, in order of the ids.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from streambroker_core.graph.job_graph import Job, JobGraph, JobKey, Links
from streambroker_core.model import Route

MAX_ELEMENTS = 2_000
"""Maximum number of nodes and edges of an answer, together."""

UnitKind = Literal["job", "group", "namespace"]


class _Unit(NamedTuple):
    """What one node stands for: a job, an application of a namespace, or a namespace."""

    kind: UnitKind
    namespace: str
    name: str

    @property
    def id(self) -> str:
        if self.kind == "job":
            return f"{self.namespace}/{self.name}"
        return f"{self.kind}:{self.namespace}" + (f"/{self.name}" if self.kind == "group" else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What to select; without anything all jobs.

    Attributes:
        focus: a job, with the jobs up to `hops` routes away.
        match: selects jobs, with their neighbours; together with `focus`, of its jobs.
        group: namespace and application whose jobs are shown one by one; alone, it selects these
            jobs and their neighbours.
        limit: of nodes and edges together, from 1.
    """

    focus: JobKey | None = None
    hops: int = 1
    match: Callable[[Job], bool] | None = None
    group: tuple[str, str] | None = None
    limit: int = MAX_ELEMENTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A job, or several in one.

    Attributes:
        application: of a group or of a job; empty for none.
        jobs: those it stands for, in order of their keys.
        matched: whether the question names or matches one of them.
    """

    id: str
    kind: UnitKind
    namespace: str
    application: str
    jobs: Sequence[Job]
    matched: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """The routes between two nodes, or inside one, in order of their ports."""

    source: str
    target: str
    routes: Sequence[Route]

    @property
    def id(self) -> str:
        """Identifies the edge."""
        return f"{self.source}>{self.target}"


class Size(NamedTuple):
    """A number of jobs and one of routes."""

    jobs: int
    routes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Nodes and edges of a question, in order of their ids.

    Attributes:
        folded: whether a node stands for several jobs.
        total: size of the whole graph.
        selected: of what the question selects.
        hidden: of what it selects and the answer has no room for.
    """

    nodes: Sequence[Node]
    edges: Sequence[Edge]
    folded: bool
    total: Size
    selected: Size
    hidden: Size


@dataclass(frozen=True, slots=True, kw_only=True)
class _Selection:
    """Selected jobs and routes.

    Attributes:
        core: named or matching jobs; every link touches one.
        open: jobs that stay single as long as there is room.
    """

    core: frozenset[JobKey]
    open: frozenset[JobKey]
    jobs: Mapping[JobKey, Job]
    links: Links


@dataclass(slots=True)
class _Drawing:
    """Jobs by unit, and routes by two units."""

    nodes: dict[_Unit, list[Job]]
    edges: Mapping[tuple[_Unit, _Unit], Sequence[Route]]

    @property
    def size(self) -> int:
        return len(self.nodes) + len(self.edges)


def answer(graph: JobGraph, question: Question) -> Answer:
    """Return the answer with as little folded as the limit allows.

    First jobs outside of what the question names fold into their application, then these into
    their namespace. What is too much even so is hidden and counted.

    Raises:
        KeyError: the job of `focus` does not exist.
    """
    selection = _select(graph, question)
    drawing = _fold(selection, question)
    selected = Size(len(selection.jobs), sum(map(len, selection.links.values())))
    shown_jobs = sum(map(len, drawing.nodes.values()))
    shown_routes = sum(map(len, drawing.edges.values()))
    is_question = question.focus is not None or question.match is not None
    matched = selection.core if is_question else frozenset()
    return Answer(
        nodes=sorted(_nodes(drawing, matched), key=lambda node: node.id),
        edges=sorted(_edges(drawing), key=lambda edge: edge.id),
        folded=any(unit.kind != "job" for unit in drawing.nodes),
        total=Size(len(graph.jobs), graph.route_count),
        selected=selected,
        hidden=Size(selected.jobs - shown_jobs, selected.routes - shown_routes),
    )


def _select(graph: JobGraph, question: Question) -> _Selection:
    focus, match, group = question.focus, question.match, question.group
    opened = frozenset(
        key
        for key, job in graph.jobs.items()
        if group is not None and (key.namespace, job.application) == group
    )
    if focus is None and match is None and group is None:
        return _Selection(
            core=frozenset(graph.jobs), open=opened, jobs=graph.jobs, links=graph.links
        )
    core = frozenset(graph.jobs) if focus is not None or match is not None else opened
    if focus is not None:
        if focus not in graph.jobs:
            raise KeyError(focus)
        core, opened = _reached(graph, frozenset({focus}), question.hops - 1), opened | {focus}
    if match is not None:
        core = frozenset(key for key in core if match(graph.jobs[key]))
    around = _reached(graph, core, 1)
    links = {
        (source, target): routes
        for (source, target), routes in graph.links.items()
        if source in core or target in core
    }
    jobs = {key: job for key, job in graph.jobs.items() if key in around}
    return _Selection(core=core, open=opened & around, jobs=jobs, links=links)


def _reached(graph: JobGraph, start: frozenset[JobKey], hops: int) -> frozenset[JobKey]:
    """Return the jobs at most `hops` routes away from some, in any direction."""
    reached = set(start)
    border = start
    for _ in range(hops):
        found = {near for key in border for near in graph.neighbours.get(key, ())}
        border = frozenset(found - reached)
        reached |= border
    return frozenset(reached)


def _fold(selection: _Selection, question: Question) -> _Drawing:
    """Return the least folded drawing that the limit allows, or what fits of the most folded."""
    limit = question.limit
    for unit_of in _foldings(selection, limit):
        drawing = _draw(selection, unit_of, limit)
        if drawing is not None:
            return drawing
    drawing = _draw(selection, _most_folded(selection.open), sys.maxsize)
    if drawing is None:
        raise AssertionError("nothing has that many elements")
    first = _job_unit(question.focus) if question.focus is not None else None
    return drawing if drawing.size <= limit else _cut(drawing, limit, first)


def _foldings(selection: _Selection, limit: int) -> Iterator[Callable[[Job], _Unit]]:
    """Yield what a job is drawn as, the least folded first, without the most folded."""
    core, opened = selection.core, selection.open
    if len(selection.jobs) + len(selection.links) <= limit:
        yield lambda job: _job_unit(job.key)
    if len(core) < len(selection.jobs):
        yield lambda job: _job_unit(job.key) if job.key in core else _group_unit(job)
    yield lambda job: _job_unit(job.key) if job.key in opened else _group_unit(job)


def _most_folded(opened: frozenset[JobKey]) -> Callable[[Job], _Unit]:
    return lambda job: (
        _job_unit(job.key) if job.key in opened else _Unit("namespace", job.key.namespace, "")
    )


def _job_unit(key: JobKey) -> _Unit:
    return _Unit("job", *key)


def _group_unit(job: Job) -> _Unit:
    return _Unit("group", job.key.namespace, job.application)


def _draw(selection: _Selection, unit_of: Callable[[Job], _Unit], limit: int) -> _Drawing | None:
    """Return the drawing; None as soon as it has more elements than the limit."""
    nodes: dict[_Unit, list[Job]] = {}
    units: dict[JobKey, _Unit] = {}
    for key, job in selection.jobs.items():
        units[key] = unit = unit_of(job)
        nodes.setdefault(unit, []).append(job)
    edges: dict[tuple[_Unit, _Unit], list[Route]] = {}
    for (source, target), routes in selection.links.items():
        if len(nodes) + len(edges) > limit:
            return None
        edges.setdefault((units[source], units[target]), []).extend(routes)
    return None if len(nodes) + len(edges) > limit else _Drawing(nodes, edges)


def _cut(drawing: _Drawing, limit: int, first: _Unit | None) -> _Drawing:
    """Return the part of a drawing that has room: the focus, then groups, then single jobs."""
    order = sorted(drawing.nodes, key=lambda unit: (unit != first, unit.kind == "job", unit.id))
    room = limit - min(len(drawing.edges), limit // 2)
    nodes = {unit: drawing.nodes[unit] for unit in order[:room]}
    ends = [ends for ends in drawing.edges if ends[0] in nodes and ends[1] in nodes]
    ends.sort(key=lambda both: (both[0].id, both[1].id))
    return _Drawing(nodes, {both: drawing.edges[both] for both in ends[: limit - len(nodes)]})


def _nodes(drawing: _Drawing, matched: frozenset[JobKey]) -> Iterable[Node]:
    for unit, jobs in drawing.nodes.items():
        application = {"job": jobs[0].application, "group": unit.name}.get(unit.kind, "")
        yield Node(
            id=unit.id,
            kind=unit.kind,
            namespace=unit.namespace,
            application=application,
            jobs=jobs,
            matched=any(job.key in matched for job in jobs),
        )


def _edges(drawing: _Drawing) -> Iterable[Edge]:
    for (source, target), routes in drawing.edges.items():
        yield Edge(source=source.id, target=target.id, routes=routes)
