"""What the board says of routes that move, and what a version stands for."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streambroker_core.board import (
    Action,
    AgentRegistered,
    Board,
    ExportApplied,
    ExportRemoved,
    ImportApplied,
    ImportRemoved,
    RoutesChanged,
    views,
)
from streambroker_core.model import Export, Route
from streambroker_core.wire.broker import view
from streambroker_core.wire.broker.view import with_version
from support.core.resources import board_of, export_of, import_of, pe, registration

KINDS = ("trade", "quote")


class Follower:
    """Whoever only hears what moved."""

    def __init__(self) -> None:
        self.routes: dict[tuple[str, str], Route] = {}

    def hear(self, actions: list[Action]) -> None:
        for action in actions:
            for one in action.route_changes if isinstance(action, RoutesChanged) else ():
                assert one.old != one.new
                route = one.old or one.new
                assert route is not None
                pair = (route.export_uid, route.import_uid)
                assert self.routes.pop(pair, None) == one.old
                if one.new is not None:
                    assert isinstance(action, RoutesChanged)
                    assert action.pe == one.new.export.owner
                    self.routes[pair] = one.new


def changed(dice: random.Random) -> Export | Any:
    """Return a resource at one of a few ports, as it is or as it is changed; some move about."""
    at = f"job-{dice.randrange(2)}/{dice.randrange(2)}/{dice.choice('pq')}"
    rival = dice.randrange(2)
    home = "anywhere" if dice.random() < 0.2 else at
    if dice.random() < 0.5:
        wanted = {"properties": {"kind": dice.choice(KINDS)}}
        by_name = {"streamId": dice.choice("st")}
        policy = dice.choice(("wait", "drop"))
        spec: dict[str, Any] = {**dice.choice((wanted, by_name)), "congestionPolicy": policy}
        return export_of(at, uid=f"x-{home}-{rival}", created=float(rival), **spec)
    spec = {"filter": dice.choice((None, "a > 1", "a > 2"))}
    if dice.random() < 0.3:
        spec["streams"] = [{"streamId": "s"}]
    else:
        spec["subscription"] = f'kind == "{dice.choice(KINDS)}"'
    return import_of(at, uid=f"i-{home}-{rival}", created=float(rival), **spec)


def step(board: Board, dice: random.Random, version: int) -> list[Action]:
    one = changed(dice)
    gone = dice.random() < 0.3
    if dice.random() < 0.1:
        found = registration(f"grpc+tcp://10.0.0.{dice.randrange(3)}:1")
        return board.handle(AgentRegistered(pe=one.key.owner, registration=found, version=version))
    if isinstance(one, Export):
        if gone:
            return board.handle(ExportRemoved(uid=one.uid, version=version))
        return board.handle(ExportApplied(export=one, version=version))
    if gone:
        return board.handle(ImportRemoved(uid=one.uid, version=version))
    return board.handle(ImportApplied(import_=one, version=version))


@given(seed=st.integers(0, 2**32))
def test_anyone_who_hears_what_moved_knows_all_routes(seed: int) -> None:
    dice, board, follower = random.Random(seed), board_of(version=1), Follower()
    for version in range(2, 60):
        follower.hear(step(board, dice, version))
        routes = {(r.export_uid, r.import_uid): r for r in board.reader.routes()}
        assert follower.routes == routes


@given(seed=st.integers(0, 2**32))
def test_the_version_that_is_kept_is_that_of_the_view_as_it_is_drawn(seed: int) -> None:
    dice, board = random.Random(seed), board_of(version=1)
    for version in range(2, 40):
        step(board, dice, version)
        for key in sorted(board.reader.versions()):
            found = board.reader.view(key)
            assert found is not None
            assert with_version(found).version == found.version == board.reader.version(key)
            assert board.reader.ports(key) == (sorted(found.exports), sorted(found.imports))


def test_nothing_stands_for_routes_that_have_gone() -> None:
    board = board_of(export_of(uid="x"), import_of(uid="i"), import_of("b/p", uid="j"))
    marks = board._pending.digests
    assert (set(marks.export_digests), set(marks.import_digests)) == ({"x"}, {"i", "j"})
    board.handle(ImportRemoved(uid="i", version=11))
    board.handle(ImportRemoved(uid="j", version=12))

    assert (marks.export_digests, marks.import_digests, marks._exporter_digests) == ({}, {}, {})


def test_one_of_many_that_comes_or_goes_costs_the_other_side_one_route(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    importers = [import_of(f"a{n}/p") for n in range(200)]
    exporters = [export_of(f"b{n}/p") for n in range(200)]
    hot = board_of(export_of(), *importers)
    wide = board_of(*exporters, import_of())
    made: list[str] = []

    marked = view._digest_to_int

    def mark(reported: list[str | None]) -> int:
        made.append(str(reported[1]))
        return marked(reported)

    monkeypatch.setattr(view, "_digest_to_int", mark)
    for name in ("_build_export_routes", "_build_import_routes"):
        monkeypatch.setattr(views, name, pytest.fail)
    come = hot.handle(ImportApplied(import_=import_of("one/more", uid="new"), version=11))
    gone = wide.handle(ExportRemoved(uid=exporters[7].uid, version=11))

    assert made == ["new", "x-feed/trades", "i-alerts/trades", "x-b7/p"]
    (reported,) = [a for a in come if isinstance(a, RoutesChanged) and a.pe == pe("feed")]
    assert [one.new and one.new.import_uid for one in reported.route_changes] == ["new"]
    assert {a.pe for a in gone if isinstance(a, RoutesChanged)} == {pe("b7"), pe("alerts")}


def test_a_status_that_is_the_usual_one_is_reported_once() -> None:
    board = board_of(version=1)
    export = export_of(uid="x", properties={"kind": "nobody wants this"})
    first = board.handle(ExportApplied(export=export, version=2))
    again = board.handle(ExportApplied(export=export, version=3))

    assert [type(action).__name__ for action in first] == [
        "ResourceChanged",
        "RoutesChanged",
        "StatusChanged",
    ]
    assert again == []
    found = board.reader.status("Export", "x")
    assert found is not None
    assert (found.accepted, found.matches) == (True, 0)
    board.handle(ExportRemoved(uid="x", version=4))
    assert board.reader.status("Export", "x") is None
