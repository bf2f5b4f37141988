"""The graph of jobs: nothing is lost by folding, and nothing is above the limit."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streambroker_core.errors import SubscriptionError
from streambroker_core.graph import (
    Answer,
    JobGraph,
    JobKey,
    Question,
    answer,
    build_graph,
    read_match,
)
from streambroker_core.model import Export, Import, Route, route_order
from streambroker_core.wire.reports.route_states import STATE_ORDER, most_important, route_state
from support.core.resources import export_of, import_of


def graph_of(
    pairs: Sequence[tuple[str, str]], *, namespace: str = "*", apps: int = 3, alone: int = 0
) -> JobGraph:
    """Return the graph of routes between jobs ``ns/job``; jobs have applications by their names."""
    names = sorted({job for pair in pairs for job in pair} | {f"n/alone{n}" for n in range(alone)})
    exports: list[Export] = []
    imports: list[Import] = []
    for number, job in enumerate(names):
        application = {"name": f"app{number % apps}"}
        where = f"{job}/0/out" if "/" in job else f"{job}/out"
        properties = {"kind": job.rpartition("/")[2], "level": number, "tags": ["a", job]}
        exports.append(export_of(where, application=application, properties=properties))
        imports.append(import_of(where.replace("/out", "/in"), application=application))
    by_job = {name: (e, i) for name, e, i in zip(names, exports, imports, strict=True)}
    routes = [
        Route(
            export=by_job[a][0].key,
            export_uid=by_job[a][0].uid,
            import_=by_job[b][1].key,
            import_uid=by_job[b][1].uid,
        )
        for a, b in pairs
    ]
    return build_graph(exports, imports, sorted(routes, key=route_order), namespace)


def ids(found: Answer) -> list[str]:
    return [node.id for node in found.nodes]


JOBS = st.builds(lambda ns, n: f"n{ns}/j{n}", st.integers(0, 3), st.integers(0, 8))
PAIRS = st.lists(st.tuples(JOBS, JOBS), max_size=60, unique=True)


@given(PAIRS, st.integers(1, 40), st.data())
def test_every_selected_job_and_route_is_shown_once_or_counted(
    pairs: list[tuple[str, str]], limit: int, data: st.DataObject
) -> None:
    graph = graph_of(pairs, alone=4)
    jobs = sorted(graph.jobs)
    question = Question(
        focus=data.draw(st.none() | st.sampled_from(jobs)),
        hops=data.draw(st.sampled_from([1, 2])),
        match=data.draw(st.sampled_from([None, read_match("j1"), read_match("level > 3")])),
        group=data.draw(st.sampled_from([None, ("n1", "app1"), ("n0", "app0")])),
        limit=limit,
    )

    found = answer(graph, question)

    assert len(found.nodes) + len(found.edges) <= limit
    shown = [job.key for node in found.nodes for job in node.jobs]
    routes = [route for edge in found.edges for route in edge.routes]
    assert len(set(shown)) == len(shown) == found.selected.jobs - found.hidden.jobs
    assert len({route_order(one) for one in routes}) == len(routes)
    assert len(routes) == found.selected.routes - found.hidden.routes
    assert min(found.hidden) >= 0
    assert found.selected <= found.total == (len(jobs), len(pairs))
    assert ids(found) == sorted(set(ids(found)))
    assert [edge.id for edge in found.edges] == sorted({edge.id for edge in found.edges})
    node_of = {job.key: node.id for node in found.nodes for job in node.jobs}
    for edge in found.edges:
        for route in edge.routes:
            assert node_of[JobKey(*route.export[:2])] == edge.source
            assert node_of[JobKey(*route.import_[:2])] == edge.target
    assert answer(graph, question) == found


@given(PAIRS)
def test_what_has_room_is_not_folded_and_nothing_is_hidden(pairs: list[tuple[str, str]]) -> None:
    graph = graph_of(pairs)
    found = answer(graph, Question(limit=len(graph.jobs) + len(graph.links) or 1))

    assert (found.folded, found.hidden) == (False, (0, 0))
    assert ids(found) == sorted(map(str, graph.jobs))


CHAIN = [("a", "b"), ("b", "c"), ("c", "d"), ("x", "y")]


def test_a_neighbourhood_reaches_both_ways_and_as_far_as_its_hops() -> None:
    graph = graph_of(CHAIN)
    near = answer(graph, Question(focus=JobKey("default", "b")))
    far = answer(graph, Question(focus=JobKey("default", "b"), hops=2))

    assert ids(near) == ["default/a", "default/b", "default/c"]
    assert ids(far) == ["default/a", "default/b", "default/c", "default/d"]
    assert [node.id for node in near.nodes if node.matched] == ["default/b"]
    assert (near.total, near.selected) == ((6, 4), (3, 2))
    with pytest.raises(KeyError):
        answer(graph, Question(focus=JobKey("default", "nope")))


@pytest.mark.parametrize(
    ("text", "jobs"),
    [
        ("FEED", {"default/feed1", "default/feed2"}),
        ("default/feed1", {"default/feed1"}),
        ("/out", set()),
        ("kind=feed2", {"default/feed2"}),
        ('kind = "feed2"', {"default/feed2"}),
        ("tags=a", {"default/feed1", "default/feed2", "default/last"}),
        ("level=1", {"default/feed2"}),
        ('kind == "feed1" || level == 2', {"default/feed1", "default/last"}),
        ("missing=1", set()),
    ],
)
def test_a_search_finds_by_name_by_property_and_by_expression(text: str, jobs: set[str]) -> None:
    graph = graph_of([("feed1", "last"), ("feed2", "last")])
    found = answer(graph, Question(match=read_match(text)))

    assert {node.id for node in found.nodes if node.matched} == jobs


def test_a_search_that_is_no_expression_is_refused_with_its_place() -> None:
    with pytest.raises(SubscriptionError) as refused:
        read_match('kind == "a" and level')

    assert refused.value.position["column"] == 13


def test_jobs_fold_into_applications_and_these_into_namespaces() -> None:
    pairs = [(f"n{n % 2}/j{n}", f"n{n % 2}/j{n + 2}") for n in range(60)]
    graph = graph_of(pairs, apps=5)
    groups, spaces = (answer(graph, Question(limit=limit)) for limit in (60, 6))

    assert {node.kind for node in groups.nodes} == {"group"}
    assert groups.nodes[0].id == "group:n0/app0"
    assert ids(spaces) == ["namespace:n0", "namespace:n1"]
    assert sum(len(edge.routes) for edge in spaces.edges) == 60


def test_an_opened_group_shows_its_jobs_and_folds_what_is_around() -> None:
    pairs = [("hub", f"j{n}") for n in range(50)]
    found = answer(graph_of(pairs, apps=51), Question(group=("default", "app0"), limit=20))

    assert found.nodes[0].id == "default/hub"
    assert {node.kind for node in found.nodes[1:]} == {"namespace"}
    assert [len(edge.routes) for edge in found.edges] == [50]


def test_a_focus_stays_single_among_thousands_of_neighbours() -> None:
    found = answer(
        graph_of([("hub", f"j{n}") for n in range(3000)], apps=7),
        Question(focus=JobKey("default", "hub")),
    )

    assert {node.id for node in found.nodes if node.kind == "job"} == {"default/hub"}
    assert sum(len(node.jobs) for node in found.nodes) == 3001
    assert found.hidden == (0, 0)


def test_a_namespace_has_its_jobs_and_by_name_alone_those_its_routes_lead_to() -> None:
    graph = graph_of([("n1/a", "n2/b"), ("n2/b", "n3/c")], namespace="n1")
    away = graph.jobs[JobKey("n2", "b")]

    assert list(map(str, graph.jobs)) == ["n1/a", "n2/b"]
    assert (away.external, away.application, away.exports, away.offers) == (True, "", (), ())
    assert not graph.jobs[JobKey("n1", "a")].external
    assert graph.route_count == 1


@pytest.mark.parametrize(
    "question",
    [
        Question(),
        Question(focus=JobKey("n0", "j0"), hops=2),
        Question(match=read_match("level > 100")),
        Question(match=read_match("j7")),
        Question(group=("n1", "app1")),
        Question(limit=1),
    ],
    ids=["all", "around a job", "level", "name", "group", "one"],
)
def test_four_times_the_jobs_take_no_more_than_four_times_the_steps(question: Question) -> None:
    """Steps are calls: a search that is quadratic in jobs would take sixteen times as many."""
    few, many = (_steps(_ring(jobs), question) for jobs in (500, 2_000))
    assert many < 6 * few


def _ring(jobs: int) -> JobGraph:
    pairs = [(f"n{n % 20}/j{n}", f"n{n * 7 % 20}/j{n * 7 % jobs}") for n in range(jobs)]
    return graph_of(pairs, apps=jobs // 20)


def _steps(graph: JobGraph, question: Question) -> int:
    count = itertools.count()
    sys.setprofile(lambda _frame, _event, _argument: next(count) and None)
    try:
        answer(graph, question)
    finally:
        sys.setprofile(None)
    return next(count)


def test_a_node_has_the_most_important_state_of_its_routes() -> None:
    assert most_important(["idle", "flows", "waits", "unknown"]) == "waits"
    assert most_important(["unknown", "ended"]) == "ended"
    assert most_important([]) is None
    row = {"age": 1, "waiting": False, "alive": True, "rowsPerSecond": 2.0, "lagEpochs": 0}
    row["bytesPerSecond"] = 0.0
    found = [
        route_state(row | change)
        for change in (
            {"age": None},
            {"age": 91},
            {"waiting": True},
            {"readToEnd": True},
            {"alive": False},
            {"stalledSeconds": 90},
            {},
            {"rowsPerSecond": 0},
        )
    ]
    assert found == ["unknown", "stale", "waits", "ended", "away", "stalled", "flows", "idle"]
    assert set(found) == set(STATE_ORDER)


def test_what_is_cut_keeps_room_for_routes() -> None:
    spaces = [(f"n{n:02}/j", f"n{(n + 1) % 30:02}/j") for n in range(30)]
    found = answer(graph_of(spaces), Question(limit=10))

    assert (len(found.nodes), len(found.edges)) == (5, 4)
    assert found.hidden == (25, 26)
