"""What is known from the answer to a write, before the feed tells of it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from streambroker_core.board import (
    Action,
    Board,
    CaughtUp,
    ExportApplied,
    ExportRemoved,
    FeedAdvanced,
    FeedLost,
    ImportApplied,
    ImportRemoved,
    RoutesChanged,
    Synced,
    WriteReverted,
)
from support.core.resources import board_of, export_of, import_of, pe, port

TRADES = export_of("feed/trades", uid="x")
ALERTS = import_of("alerts/trades", uid="i")
FILTERED = replace(ALERTS, filter="price > 1.0", generation=2)


def routes(board: Board) -> list[tuple[str, str | None]]:
    return [(route.import_uid, route.filter) for route in board.reader.routes()]


def generation(board: Board) -> int:
    found = board.reader.holder("Import", ALERTS.key)
    assert found is not None
    return found.generation


def test_an_answer_ahead_of_the_feed_changes_the_view_and_not_the_point() -> None:
    board = board_of(TRADES, ALERTS, version=10)
    actions = board.handle(ImportApplied(import_=FILTERED, version=14, ahead_of_feed=True))
    assert routes(board) == [("i", "price > 1.0")]
    assert board.reader.point == (10, 10)
    assert {action.pe for action in actions if isinstance(action, RoutesChanged)} == {
        pe("alerts"),
        pe("feed"),
    }


def test_the_feeds_own_word_for_it_moves_the_point_and_nothing_else() -> None:
    board = board_of(TRADES, ALERTS, version=10)
    board.handle(ImportApplied(import_=FILTERED, version=14, ahead_of_feed=True))
    assert board.handle(ImportApplied(import_=ALERTS, version=12)) == []
    assert board.reader.point == (10, 12)
    assert board.handle(ImportApplied(import_=FILTERED, version=14)) == []
    assert board.reader.point == (10, 14)
    assert board.reader.version_of("Import", "i") == 14


def test_a_list_from_before_the_write_undoes_neither_a_change_nor_a_creation() -> None:
    board = board_of(TRADES, ALERTS, version=10)
    made = import_of("alerts/more", uid="j")
    board.handle(ImportApplied(import_=FILTERED, version=14, ahead_of_feed=True))
    board.handle(ImportApplied(import_=made, version=15, ahead_of_feed=True))
    board.handle(Synced(kind="Import", listed=((ALERTS, 9),), version=12))
    assert sorted(routes(board)) == [("i", "price > 1.0"), ("j", None)]
    assert board.reader.point == (10, 12)


def test_a_deletion_that_was_answered_stays_whatever_was_still_on_its_way() -> None:
    board = board_of(TRADES, ALERTS, version=10)
    board.handle(ImportRemoved(uid="i", version=10, ahead_of_feed=True))
    assert routes(board) == []
    assert board.handle(ImportApplied(import_=FILTERED, version=12)) == []
    assert board.handle(ImportRemoved(uid="i", version=13)) == []
    assert board.reader.point == (10, 13)


def test_a_deletion_needs_no_version_of_its_own() -> None:
    board = board_of(TRADES, ALERTS, version=10)
    board.handle(ExportApplied(export=replace(TRADES, generation=2), version=12))
    board.handle(ExportRemoved(uid="x", version=10, ahead_of_feed=True))
    assert board.reader.holder("Export", port("feed/trades")) is None
    assert board.reader.point == (12, 10)


def test_a_list_after_the_feed_was_lost_keeps_what_was_made_meanwhile() -> None:
    board = board_of(TRADES, version=10)
    board.handle(FeedLost(kind="Import"))
    board.handle(ImportApplied(import_=ALERTS, version=14, ahead_of_feed=True))
    board.handle(Synced(kind="Import", listed=(), version=12))
    assert routes(board) == [("i", None)]


def test_a_pes_resources_are_all_that_claim_one_of_its_ports() -> None:
    rival = export_of("feed/trades", uid="y", created=5.0)
    board = board_of(TRADES, rival, import_of("feed/back", uid="b"), ALERTS)
    assert [resource.uid for resource in board.reader.resources_of(pe("feed"))] == ["x", "y", "b"]
    assert board.reader.resources_of(pe("nobody")) == []
    assert board.reader.version_of("Export", "nobody") == 0


@given(
    filters=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    ahead=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=6),
)
def test_answers_at_any_moment_lead_to_what_the_feed_alone_leads_to(
    filters: list[int], ahead: list[tuple[int, int]]
) -> None:
    """Every change is a write; some answers overtake the feed, which then tells all in order."""
    changes = [
        (replace(ALERTS, filter=f"price > {value}.0", generation=place + 2), 11 + place)
        for place, value in enumerate(filters)
    ]
    board = board_of(TRADES, ALERTS, version=10)
    seen = [1]
    for place, (changed, version) in enumerate(changes):
        for when, which in ahead:
            if when == place and which < len(changes):
                early, at = changes[which]
                board.handle(ImportApplied(import_=early, version=at, ahead_of_feed=True))
                seen.append(generation(board))
        board.handle(ImportApplied(import_=changed, version=version))
        seen.append(generation(board))
        assert board.reader.point == (10, version)
        assert len(board.reader.routes()) == 1, "the route existed all along"
    assert seen == sorted(seen), "nothing newer is undone by something older"
    assert routes(board) == [("i", changes[-1][0].filter)]


def test_what_was_written_from_here_and_went_before_the_feed_saw_it_goes_with_the_next_sweep() -> (
    None
):
    board = board_of(TRADES, ALERTS, version=10)
    late = import_of("late/trades", uid="late")
    board.handle(ImportApplied(import_=late, version=14, ahead_of_feed=True))
    board.handle(CaughtUp(kind="Import", version=13))
    assert board.reader.get("Import", "late") is late
    board.handle(CaughtUp(kind="Import", version=15))
    assert board.reader.get("Import", "late") is None
    assert board.reader.get("Import", "i") is not None


def test_a_change_from_here_that_the_feed_never_saw_does_not_outlive_its_object() -> None:
    board = board_of(TRADES, ALERTS, version=10)
    board.handle(ImportApplied(import_=FILTERED, version=14, ahead_of_feed=True))
    # The sweep knows the object as it was at version 10, and not that it was changed.
    board.handle(ImportRemoved(uid="i", version=10))
    board.handle(CaughtUp(kind="Import", version=15))
    assert board.reader.get("Import", "i") is None


def test_what_the_feed_has_seen_as_it_was_written_stays() -> None:
    board = board_of(TRADES, ALERTS, version=10)
    board.handle(ImportApplied(import_=FILTERED, version=14, ahead_of_feed=True))
    board.handle(ImportApplied(import_=FILTERED, version=14))
    board.handle(CaughtUp(kind="Import", version=15))
    assert generation(board) == 2


def fallen(actions: list[Action]) -> list[tuple[str, str]]:
    return [
        (action.uid, action.difference) for action in actions if isinstance(action, WriteReverted)
    ]


def test_a_change_that_a_restored_store_has_lost_falls_back_to_what_the_feed_lists() -> None:
    """Two replicas, of which one made the change: their boards are equal again."""
    made, other = (board_of(TRADES, ALERTS, version=10) for _ in range(2))
    made.handle(ImportApplied(import_=FILTERED, version=14, ahead_of_feed=True))
    assert fallen(made.handle(CaughtUp(kind="Import", version=20))) == [("i", "changed")]
    assert fallen(other.handle(CaughtUp(kind="Import", version=20))) == []
    assert made.reader.imports() == other.reader.imports() == [ALERTS]
    assert routes(made) == routes(other) == [("i", None)]
    assert made.reader.versions() == other.reader.versions()
    assert fallen(made.handle(CaughtUp(kind="Import", version=21))) == []


def test_a_status_that_a_restored_store_writes_shows_that_the_change_is_lost() -> None:
    board = board_of(TRADES, ALERTS, version=10)
    board.handle(ImportApplied(import_=FILTERED, version=14, ahead_of_feed=True))
    board.handle(FeedAdvanced(kind="Import", version=13, uid="i"))
    assert routes(board) == [("i", "price > 1.0")]
    actions = board.handle(FeedAdvanced(kind="Import", version=16, uid="i"))
    assert fallen(actions) == [("i", "changed")]
    assert routes(board) == [("i", None)]


def test_the_feeds_word_counts_where_a_restored_store_uses_a_version_again() -> None:
    board = board_of(TRADES, ALERTS, version=10)
    board.handle(ImportApplied(import_=FILTERED, version=14, ahead_of_feed=True))
    other = replace(ALERTS, filter="price > 2.0", generation=2)
    assert fallen(board.handle(ImportApplied(import_=other, version=14))) == [("i", "changed")]
    assert routes(board) == [("i", "price > 2.0")]


def test_what_was_deleted_from_here_and_is_listed_all_the_same_is_back_after_two_sweeps() -> None:
    board = board_of(TRADES, ALERTS, version=10)
    board.handle(ImportRemoved(uid="i", version=10, ahead_of_feed=True))
    # The first list may have been made before the deletion, which has no version of its own.
    assert fallen(board.handle(CaughtUp(kind="Import", version=20))) == []
    assert routes(board) == []
    assert fallen(board.handle(CaughtUp(kind="Import", version=21))) == [("i", "missing")]
    assert routes(board) == [("i", None)]
