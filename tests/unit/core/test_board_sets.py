"""A set of changes that the board takes in at once: the same board, and nothing seen in between."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from streambroker_core.board import (
    Action,
    AgentRegistered,
    Board,
    BoardEvent,
    ExportApplied,
    ExportRemoved,
    HintAction,
    ImportApplied,
    ImportRemoved,
    RoutesChanged,
)
from streambroker_core.model import Export, PeKey, Resource
from support.core.resources import board_of, export_of, import_of, pe, picture, registration

PORTS = ("a/p", "a/q", "b/p")
EXPORTS: list[dict[str, Any]] = [
    {},
    {"properties": {"kind": "quote"}},
    {"streamId": "s"},
    {"congestionPolicy": "drop"},
]
IMPORTS: list[dict[str, Any]] = [
    {},
    {"subscription": 'kind == "quote"'},
    {"subscription": "has(kind)", "filter": "price > 1.0"},
    {"streams": [{"streamId": "s"}]},
]


@st.composite
def resources(draw: st.DrawFn) -> Resource:
    """Draw a resource, by its uid always of one kind and at one port."""
    number = draw(st.integers(0, 9))
    specs, build = (EXPORTS, export_of) if number % 2 else (IMPORTS, import_of)
    spec = draw(st.sampled_from(specs))
    made: Resource = build(PORTS[number // 2 % 3], uid=f"r{number}", created=number, **spec)
    return made


@st.composite
def events(draw: st.DrawFn) -> list[BoardEvent]:
    """Draw changes as a store makes them, one version after the other."""
    found: list[BoardEvent] = []
    for version in range(11, 11 + draw(st.integers(1, 6))):
        resource, stays = draw(resources()), draw(st.booleans())
        if isinstance(resource, Export):
            applied: BoardEvent = ExportApplied(export=resource, version=version)
            gone: BoardEvent = ExportRemoved(uid=resource.uid, version=version)
        else:
            applied = ImportApplied(import_=resource, version=version)
            gone = ImportRemoved(uid=resource.uid, version=version)
        found.append(applied if stays else gone)
    return found


def filled(held: list[Resource]) -> Board:
    board = board_of(*{resource.uid: resource for resource in held}.values())
    for job in ("a", "b"):
        board.handle(AgentRegistered(pe=pe(job), registration=registration()))
    return board


def reported(actions: list[Action]) -> list[tuple[PeKey, str | None]]:
    return [(one.pe, one.version) for one in actions if isinstance(one, RoutesChanged)]


@settings(deadline=None, max_examples=300)
@given(held=st.lists(resources(), max_size=8), changes=events())
def test_a_set_of_changes_at_once_ends_in_the_board_of_the_changes_one_by_one(
    held: list[Resource], changes: list[BoardEvent]
) -> None:
    together, single = filled(held), filled(held)
    together.handle_all(changes)
    for change in changes:
        single.handle(change)

    assert picture(together.reader) == picture(single.reader)


@settings(deadline=None, max_examples=300)
@given(held=st.lists(resources(), max_size=8), changes=events())
def test_of_a_set_only_the_end_is_reported_and_to_each_once(
    held: list[Resource], changes: list[BoardEvent]
) -> None:
    board = filled(held)
    before = {key: board.reader.view(key) for key in sorted(board.reader.versions())}
    actions = board.handle_all(changes)
    after = {key: board.reader.view(key) for key in sorted(board.reader.versions())}

    changed = {
        key: None if view is None else view.version
        for key in before.keys() | after.keys()
        if (view := after.get(key)) is None
        or (known := before.get(key)) is None
        or known.version != view.version
    }
    assert sorted(reported(actions)) == sorted(changed.items())
    hinted = [one.pe for one in actions if isinstance(one, HintAction)]
    assert len(hinted) == len(set(hinted))
    assert set(hinted) <= changed.keys()


def test_a_route_whose_two_ends_change_together_is_in_every_view_that_is_reported() -> None:
    changes: list[BoardEvent] = [
        ExportApplied(export=export_of(properties={"type": "trade"}), version=11),
        ImportApplied(import_=import_of(subscription='type == "trade"'), version=12),
    ]
    views = {}
    for name in ("single", "together"):
        board, seen = board_of(export_of(), import_of()), []
        for part in [changes] if name == "together" else [[change] for change in changes]:
            for key, _ in reported(board.handle_all(part)):
                view = board.reader.view(key)
                assert view is not None
                seen.append([len(port.routes) for port in view.exports.values()])
        views[name] = [routes for routes in seen if routes]

    assert views == {"single": [[0], [1]], "together": [[1]]}
