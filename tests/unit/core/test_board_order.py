"""The order in which the board hears of things does not matter; their versions do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from streambroker_core.board import (
    Board,
    BoardEvent,
    CaughtUp,
    ExportApplied,
    ExportRemoved,
    FeedLost,
    ImportApplied,
    ImportRemoved,
    Synced,
)
from streambroker_core.model import Export, Kind, Resource, kind_of
from streambroker_core.wire.broker.view import with_version
from support.core.resources import board_of, export_of, import_of

KINDS: tuple[Kind, Kind] = ("Export", "Import")
SPECS: dict[Kind, tuple[dict[str, Any], ...]] = {
    "Export": ({"properties": {"kind": "trade"}}, {"properties": {"kind": "quote"}}),
    "Import": (
        {"subscription": 'kind == "trade"'},
        {"subscription": 'kind == "quote"', "filter": "price > 1.0"},
    ),
}

Step = tuple[str, Kind, int, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(("create", "create", "change", "change", "status", "delete")),
        st.sampled_from(KINDS),
        st.integers(0, 2),
        st.integers(0, 1),
    ),
    max_size=14,
)


@dataclass
class History:
    """What happened, as events, and what is left, after each step."""

    events: list[BoardEvent] = field(default_factory=list)
    worlds: list[dict[str, tuple[Resource, int]]] = field(default_factory=lambda: [{}])

    @property
    def world(self) -> dict[str, tuple[Resource, int]]:
        return self.worlds[-1]

    def listed(self, kind: Kind, at: int) -> Synced:
        held = self.worlds[at].values()
        return Synced(
            kind=kind, listed=tuple(pair for pair in held if kind_of(pair[0]) == kind), version=at
        )


def history_of(plan: list[Step]) -> History:
    history = History()
    for action, kind, place, variant in plan:
        version = len(history.events) + 1
        world = dict(history.world)
        here = [
            uid for uid, (r, _) in world.items() if kind_of(r) == kind and uid[-1] == str(place)
        ]
        if action == "create" and not here:
            build = export_of if kind == "Export" else import_of
            made: Resource = build(
                f"job/p{place}",
                uid=f"{kind}-{version}-{place}",
                created=float(version),
                **SPECS[kind][variant],
            )
        elif not here or action == "create":
            continue
        elif action == "delete":
            del world[here[0]]
            removed = ExportRemoved if kind == "Export" else ImportRemoved
            history.events.append(removed(uid=here[0], version=version))
            history.worlds.append(world)
            continue
        else:
            made = world[here[0]][0]
            if action == "change":
                made = changed(made, SPECS[kind][variant])
        world[made.uid] = (made, version)
        history.events.append(applied(made, version))
        history.worlds.append(world)
    return history


def changed(old: Resource, spec: dict[str, Any]) -> Resource:
    build = export_of if isinstance(old, Export) else import_of
    new: Resource = build(f"job/{old.key.port}", uid=old.uid, created=old.created, **spec)
    return replace(new, generation=old.generation + 1)


def applied(resource: Resource, version: int) -> BoardEvent:
    if isinstance(resource, Export):
        return ExportApplied(export=resource, version=version)
    return ImportApplied(import_=resource, version=version)


def empty_board() -> Board:
    board = Board()
    for kind in KINDS:
        board.handle(Synced(kind=kind, listed=(), version=0))
    return board


def held_by(board: Board) -> dict[str, Resource]:
    everything: list[Resource] = [*board.reader.exports(), *board.reader.imports()]
    return {resource.uid: resource for resource in everything}


def assert_shows(board: Board, history: History) -> None:
    world = {uid: resource for uid, (resource, _) in history.world.items()}
    scanned = board_of(*world.values())
    assert held_by(board) == world
    assert board.reader.routes() == scanned.reader.routes()
    for pe in sorted(scanned.reader.versions()):
        mine, other = board.reader.view(pe), scanned.reader.view(pe)
        assert mine is not None
        assert other is not None
        assert mine.version == other.version == with_version(mine).version


@settings(deadline=None, max_examples=150)
@given(plan=steps, data=st.data())
def test_events_in_any_order_and_doubled_lead_to_the_same_board(
    plan: list[Step], data: st.DataObject
) -> None:
    history = history_of(plan)
    doubled = history.events + data.draw(
        st.lists(st.sampled_from(history.events), max_size=8) if history.events else st.just([])
    )
    board = empty_board()
    for event in data.draw(st.permutations(doubled)):
        board.handle(event)

    assert_shows(board, history)


@settings(deadline=None, max_examples=100)
@given(plan=steps, data=st.data())
def test_what_is_older_than_a_list_changes_nothing(plan: list[Step], data: st.DataObject) -> None:
    history = history_of(plan)
    now = len(history.events)
    board = Board()
    for kind in KINDS:
        board.handle(history.listed(kind, now))
    actions = [
        action
        for event in data.draw(st.permutations(history.events))
        for action in board.handle(event)
    ]

    assert actions == []
    assert_shows(board, history)


@settings(deadline=None, max_examples=150)
@given(plan=steps, data=st.data())
def test_a_list_does_not_undo_what_was_seen_after_it(plan: list[Step], data: st.DataObject) -> None:
    history = history_of(plan)
    now = len(history.events)
    at = data.draw(st.integers(0, now))
    before = data.draw(st.lists(st.sampled_from(history.events[:at]))) if at else []
    board = empty_board()
    for event in [*before, *data.draw(st.permutations(history.events[at:]))]:
        board.handle(event)
    for kind in KINDS:
        board.handle(history.listed(kind, at))

    assert_shows(board, history)


@settings(deadline=None, max_examples=150)
@given(plan=steps, data=st.data(), lost=st.booleans())
def test_versions_that_go_down_are_a_restore_and_the_list_decides(
    plan: list[Step], data: st.DataObject, lost: bool
) -> None:
    """The whole history was seen, by events or lists; then the store went back."""
    history = history_of(plan)
    now = len(history.events)
    back = data.draw(st.integers(0, now))
    board = empty_board()
    for event in history.events:
        board.handle(event)
    for kind in KINDS:
        if lost:
            board.handle(FeedLost(kind=kind))
        else:
            board.handle(history.listed(kind, now))
    persisting = set(
        board_of(*(r for r, _ in history.worlds[back].values())).reader.routes()
    ) & set(board.reader.routes())
    for kind in KINDS:
        board.handle(history.listed(kind, back))
        assert persisting <= set(board.reader.routes())
    history.worlds.append(history.worlds[back])

    assert_shows(board, history)
    assert board.reader.point == (back, back)


@settings(deadline=None, max_examples=150)
@given(plan=steps, data=st.data())
def test_a_board_that_has_caught_up_takes_in_what_follows_and_nothing_older(
    plan: list[Step], data: st.DataObject
) -> None:
    history = history_of(plan)
    at = data.draw(st.integers(0, len(history.events)))
    board = empty_board()
    for event in data.draw(st.permutations(history.events[:at])):
        board.handle(event)
    assert board.handle(CaughtUp(version=at)) == []
    for event in data.draw(st.permutations(history.events[:at])):
        assert board.handle(event) == []
    for event in data.draw(st.permutations(history.events[at:])):
        board.handle(event)

    assert_shows(board, history)


@settings(deadline=None, max_examples=100)
@given(plan=steps)
def test_a_board_that_catches_up_with_each_event_shows_what_is_there(plan: list[Step]) -> None:
    history = history_of(plan)
    board, plain = empty_board(), empty_board()
    for version, event in enumerate(history.events, 1):
        orders = board.handle(event)
        assert board.handle(CaughtUp(version=version)) == []
        assert orders == plain.handle(event)

    assert_shows(board, history)


@settings(deadline=None, max_examples=150)
@given(plan=steps, data=st.data())
def test_the_news_of_a_list_ahead_of_it_are_true_and_more_may_happen_between_them(
    plan: list[Step], data: st.DataObject
) -> None:
    history = history_of(plan)
    end = len(history.events)
    start = data.draw(st.integers(0, end))
    at = data.draw(st.integers(start, end))
    board = empty_board()
    board.handle_all(history.events[:start])
    between = data.draw(st.permutations(history.events[start:]))
    steady = lasting(history, start)
    for kind in KINDS:
        listed = history.listed(kind, at)
        for one in board.diff(listed):
            meanwhile: bool = data.draw(st.booleans())
            if between and meanwhile:
                board.handle(between.pop())
            point = board.reader.point
            if one is not None:
                board.handle(one)
            assert board.reader.point == point
            assert steady <= {
                (route.export_uid, route.import_uid) for route in board.reader.routes()
            }
            views = map(board.reader.view, sorted(board.reader.versions()))
            assert all(
                view is not None and with_version(view).version == view.version for view in views
            )
        board.handle(listed)
    board.handle_all(history.events[at:])
    assert_shows(board, history)


def lasting(history: History, start: int) -> set[tuple[str, str]]:
    """Return the routes between resources that are there from a step on, as they are then."""
    kept = [
        resource
        for uid, (resource, _) in history.worlds[start].items()
        if all(world.get(uid, (None,))[0] == resource for world in history.worlds[start:])
    ]
    return {(route.export_uid, route.import_uid) for route in board_of(*kept).reader.routes()}


def test_the_news_of_a_list_are_no_more_than_what_is_another() -> None:
    old, new = export_of("feed/a", uid="a"), export_of("feed/b", uid="b")
    board = board_of(old, export_of("feed/c", uid="c"), version=10)
    changed_ = replace(old, properties={"kind": "quote"}, generation=2)
    listed = Synced(kind="Export", listed=((new, 11), (changed_, 12)), version=12)

    assert [one for one in board.diff(listed) if one is not None] == [
        ExportRemoved(uid="c", version=10),
        ExportApplied(export=new, version=11, ahead_of_feed=True),
        ExportApplied(export=changed_, version=12, ahead_of_feed=True),
    ]
