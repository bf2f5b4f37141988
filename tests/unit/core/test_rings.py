"""Jobs that may wait for each other in a ring: the board, `lint` and `whatif` say so."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streambroker_core.board import (
    Board,
    ExportApplied,
    ExportRemoved,
    ImportApplied,
    ImportRemoved,
    StatusChanged,
)
from streambroker_core.board.wait_cycles import WaitEdge, find_cycle, find_ring_members
from streambroker_core.diagnose import (
    Proposal,
    collect_lint_input,
    forecast,
    lint,
    render_forecast,
    take_snapshot,
)
from streambroker_core.model import Export, Import, PeKey, Resource
from support.core.resources import board_of, export_of, import_of, pe, port


def sends(job: str, kind: str, **spec: Any) -> Export:
    return export_of(f"{job}/{kind}", properties={"kind": kind}, **spec)


def reads(job: str, kind: str, **spec: Any) -> Import:
    return import_of(f"{job}/{kind}", subscription=f'kind == "{kind}"', **spec)


def ring(*jobs: str) -> list[Resource]:
    """Return what makes each job read what the one before it publishes."""
    made: list[Resource] = []
    for before, job in zip((jobs[-1], *jobs), jobs, strict=False):
        made += [sends(job, f"of-{job}"), reads(job, f"of-{before}")]
    return made


def reported(board: Board, *resources: Resource) -> set[str]:
    """Return the resources that a status says to be in a ring."""
    kinds = {True: "Export", False: "Import"}
    return {
        r.uid
        for r in resources
        if (status := board.reader.status(kinds[isinstance(r, Export)], r.uid)) and status.ring  # type: ignore[arg-type]
    }


@pytest.mark.parametrize("jobs", ["ab", "abc", "abcde"])
def test_a_ring_is_reported_at_each_of_its_resources_with_all_routes(jobs: str) -> None:
    made = ring(*jobs)
    aside: list[Resource] = [reads("x", "of-a"), sends("y", "of-y"), reads("a", "of-y")]
    board = board_of(*made, *aside)
    assert reported(board, *made, *aside) == {r.uid for r in made}
    status = board.reader.status("Export", "x-a/of-a")
    assert status is not None
    assert "default/a/0/of-a waits for default/b/0/of-a" in status.ring
    assert status.ring.count(" waits for ") == len(jobs)
    assert "buffer.waitLimit" in status.ring


@pytest.mark.parametrize(
    "change",
    [
        {"congestionPolicy": "drop"},
        {"buffer": {"waitLimit": "30s"}},
        {"properties": {"kind": "other"}},
    ],
)
def test_a_ring_is_none_while_one_of_its_exports_does_not_wait_and_is_one_again(
    change: dict[str, Any],
) -> None:
    made = ring("a", "b", "c")
    board = board_of(*made)
    whole = made[2]
    assert isinstance(whole, Export)
    other = export_of("b/of-b", **{"properties": {"kind": "of-b"}, **change})
    board.handle(ExportApplied(export=replace(other, uid=whole.uid, generation=2), version=11))
    assert reported(board, *made) == set()
    actions = board.handle(ExportApplied(export=replace(whole, generation=3), version=12))
    assert reported(board, *made) == {r.uid for r in made}
    looked_at = {a.uid for a in actions if isinstance(a, StatusChanged)}
    assert looked_at >= {r.uid for r in made}


def test_an_import_that_drops_ends_a_ring_and_so_does_one_that_goes() -> None:
    made = ring("a", "b")
    board = board_of(*made)
    dropping = reads("a", "of-b", onCongestion="drop")
    board.handle(ImportApplied(import_=replace(dropping, generation=2), version=11))
    assert reported(board, *made) == set()
    waiting = made[1]
    assert isinstance(waiting, Import)
    board.handle(ImportApplied(import_=replace(waiting, generation=3), version=12))
    assert reported(board, *made) == {r.uid for r in made}
    board.handle(ImportRemoved(uid=waiting.uid, version=13))
    assert reported(board, *made) == set()


def test_of_two_rings_that_meet_one_stays_when_the_other_ends() -> None:
    made = [*ring("a", "b"), sends("c", "of-c"), reads("c", "of-a"), reads("a", "of-c")]
    board = board_of(*made)
    assert len(reported(board, *made)) == len(made)
    board.handle(ExportRemoved(uid="x-b/of-b", version=11))
    assert reported(board, *made) == {"x-a/of-a", "x-c/of-c", "i-c/of-a", "i-a/of-c"}


def test_a_job_that_reads_itself_is_no_ring_of_jobs() -> None:
    board = board_of(sends("a", "of-a"), reads("a", "of-a"))
    assert board.reader.wait_rings.list_all() == []


def test_a_status_names_no_routes_of_other_namespaces() -> None:
    def of(namespace: str, before: str) -> list[Resource]:
        where = f"{namespace}/job/0"
        return [
            export_of(f"{where}/out", properties={"kind": namespace}, allowedNamespaces=["*"]),
            import_of(f"{where}/in", subscription=f'kind == "{before}"'),
        ]

    made = [*of("one", "three"), *of("two", "one"), *of("three", "two")]
    board = board_of(*made)
    if not board.reader.wait_rings.list_all():
        pytest.fail("the namespaces are not connected")
    status = board.reader.status("Export", "x-one/job/0/out")
    assert status is not None
    assert "one/job/0/out waits for two/job/0/in" in status.ring
    assert "three/job/0/out waits for one/job/0/in" in status.ring
    assert "two/job/0/out" not in status.ring
    assert ", and 1 more" in status.ring


# ---- lint and whatif ---------------------------------------------------------------------------


def test_lint_names_each_ring_once() -> None:
    board = board_of(*ring("a", "b"), *ring("c", "d", "e"))
    found = [
        one
        for one in lint(collect_lint_input(board.reader, take_snapshot(board.reader)))
        if one.code == "WaitsInRing"
    ]
    assert [one.resource for one in found] == [
        "export default/a/0/of-a",
        "export default/c/0/of-c",
    ]
    assert "default/e/0/of-e waits for default/c/0/of-e" in found[1].message


def test_lint_of_some_namespaces_is_silent_about_rings_through_others() -> None:
    board = board_of(*ring("a", "b"))
    assert [
        one
        for one in lint(
            collect_lint_input(board.reader, take_snapshot(board.reader, frozenset({"elsewhere"})))
        )
        if one.code == "WaitsInRing"
    ] == []


@pytest.mark.parametrize("last", [0, 1, 2, 3])
def test_whatif_says_which_change_would_close_a_ring(last: int) -> None:
    made = ring("a", "b")
    board = board_of(*(r for at, r in enumerate(made) if at != last))
    assert board.reader.wait_rings.list_all() == []
    new = replace(made[last], uid="")
    found = forecast(board.reader, Proposal(puts=(new,)))
    assert [(p.code, p.refused, p.index) for p in found.problems] == [("WaitsInRing", False, 0)]
    assert "? " in render_forecast(found)
    assert "waits for" in render_forecast(found)
    assert board.reader.wait_rings.list_all() == []


def test_whatif_says_nothing_of_a_ring_that_there_is_or_that_would_drop() -> None:
    made = ring("a", "b")
    board = board_of(*made)
    again = sends("a", "of-a", buffer={"maxBytes": "1Mi"})
    assert forecast(board.reader, Proposal(puts=(replace(again, uid=""),))).problems == ()
    open_ = board_of(*made[:3])
    dropping = reads("b", "of-a", onCongestion="drop")
    assert forecast(open_.reader, Proposal(puts=(replace(dropping, uid=""),))).problems == ()


# ---- against a plain search --------------------------------------------------------------------

NAMES = "abcdef"
EDGES = st.sets(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=14)


def plain(edges: set[tuple[str, str]]) -> set[frozenset[PeKey]]:
    """Return sets of jobs that all reach each other, by trying all pairs."""
    reach = {(a, b) for a, b in edges if a != b}
    for _ in NAMES:
        reach |= {(a, d) for a, b in reach for c, d in reach if b == c}
    return {
        frozenset({pe(a), *(pe(b) for b in NAMES if (a, b) in reach and (b, a) in reach)})
        for a in NAMES
        if (a, a) in reach
    }


def apart(edges: set[tuple[str, str]]) -> dict[PeKey, list[WaitEdge]]:
    found: dict[PeKey, list[WaitEdge]] = {}
    for a, b in sorted(edges):
        if a != b:
            found.setdefault(pe(a), []).append(WaitEdge(port(f"{a}/x"), port(f"{b}/{a}")))
    return found


@given(edges=EDGES)
def test_rings_are_the_jobs_that_reach_each_other(edges: set[tuple[str, str]]) -> None:
    waits = apart(edges)
    found = find_ring_members(map(pe, NAMES), lambda one: waits.get(one, ()))
    assert set(found) == plain(edges)
    assert len(found) == len(set(found))
    for members in found:
        way = find_cycle(min(members), members, lambda one: waits.get(one, ()))
        assert way[0].export.owner == way[-1].import_.owner == min(members)
        assert all(a.import_.owner == b.export.owner for a, b in pairwise(way))


@given(steps=st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=16))
def test_a_board_knows_the_rings_after_each_change(steps: list[tuple[str, str]]) -> None:
    board = board_of(*(sends(job, f"of-{job}") for job in NAMES))
    edges: dict[tuple[str, str], str] = {}
    for version, (a, b) in enumerate(steps, 11):
        if (a, b) in edges:
            board.handle(ImportRemoved(uid=edges.pop((a, b)), version=version))
        else:
            edges[a, b] = uid = f"{a}{b}{version}"
            wants = import_of(f"{b}/of-{a}", uid=uid, subscription=f'kind == "of-{a}"')
            board.handle(ImportApplied(import_=wants, version=version))
        assert {one.members for one in board.reader.wait_rings.list_all()} == plain(set(edges))
