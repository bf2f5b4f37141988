"""Rules of patterns on the board: whose they are, which count, and what agents are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from streambroker_core.board import (
    AgentRegistered,
    Board,
    CaughtUp,
    FeedLost,
    HintAction,
    PeDeclared,
    ResourceChanged,
    RoutesChanged,
    RuleApplied,
    RuleRemoved,
    StatusChanged,
    Synced,
    Unreadable,
    WriteReverted,
)
from streambroker_core.model import RULE, PeKey, Rule
from streambroker_core.wire.broker.registration import Registration
from streambroker_core.wire.broker.view import decode, encode, with_version
from streambroker_core.wire.manifests.rules import read_rule_spec

PE = PeKey("default", "alerts", 0)
OTHER = PeKey("default", "other", 0)


def rule(uid: str, id_: str = "dear", where: str = "price > 10", **fields: Any) -> Rule:
    pattern = {"stages": [{"name": "a", "where": where}]}
    spec = {"job": "alerts", "id": id_, "version": 1, "pattern": pattern}
    return replace(read_rule_spec(spec), uid=uid, name=uid, **fields)


def board_of(*rules: Rule) -> Board:
    board = Board()
    listed = tuple((one, number + 1) for number, one in enumerate(rules))
    board.handle(Synced(kind=RULE, listed=listed, version=10))
    agent = Registration(instance="ab", location="grpc+tcp://h:1", hint="127.0.0.1:1")
    board.handle_all([AgentRegistered(pe=pe, registration=agent) for pe in (PE, OTHER)])
    board.handle(Synced(kind="Export", listed=(), version=10))
    board.handle(Synced(kind="Import", listed=(), version=10))
    return board


def reported(board: Board, pe: PeKey = PE) -> list[tuple[str, str]] | None:
    view = board.reader.view(pe)
    assert view is not None
    found = view.rules
    return None if found is None else [(one.id, one.problem) for one in found.rules]


def test_a_rule_reaches_the_pes_of_its_job_and_no_others() -> None:
    board = board_of()
    before = board.reader.versions()

    actions = board.handle(RuleApplied(rule=rule("u1"), version=11))

    assert reported(board) == [("dear", "")]
    assert reported(board, OTHER) == []
    assert {type(each) for each in actions} == {
        ResourceChanged,
        RoutesChanged,
        HintAction,
        StatusChanged,
    }
    assert {each.pe for each in actions if isinstance(each, HintAction)} == {PE}
    assert board.reader.version(OTHER) == before[OTHER]
    assert board.reader.version(PE) != before[PE]


def test_a_list_of_rules_is_taken_in_step_by_step() -> None:
    """Each is compiled, which takes its time; others have their turn meanwhile."""
    board, many = Board(), [rule(f"u{n}", f"r{n}") for n in range(50)]
    listed = tuple((one, number) for number, one in enumerate(many))
    steps = board.iter_steps([Synced(kind=RULE, listed=listed, version=50)])
    known = [len(board.reader.rules.rules_of_job(("default", "alerts"))) for _ in steps]

    assert known == list(range(50))
    assert len(board.reader.rules.rules_of_job(("default", "alerts"))) == 50


def test_the_same_rule_again_and_an_older_one_change_nothing() -> None:
    board = board_of(rule("u1"))

    assert board.handle(RuleApplied(rule=rule("u1"), version=12)) == []
    assert board.handle(RuleApplied(rule=rule("u1", where="price > 1"), version=11)) == []
    assert board.handle(RuleRemoved(uid="u1", version=3)) == []
    assert reported(board) == [("dear", "")]


def test_before_rules_were_listed_a_view_says_nothing_of_them_and_then_that_there_are_none() -> (
    None
):
    board = Board()
    board.handle(PeDeclared(pe=PE))
    board.handle(Synced(kind="Export", listed=(), version=1))
    board.handle(Synced(kind="Import", listed=(), version=1))
    nothing = board.reader.version(PE)

    before = reported(board)
    actions = board.handle(Synced(kind=RULE, listed=(), version=1))

    assert before is None
    assert reported(board) == []
    assert [each.pe for each in actions if isinstance(each, RoutesChanged)] == [PE]
    assert board.reader.version(PE) != nothing


def test_what_cannot_be_run_is_reported_with_its_place_and_mended_by_a_change() -> None:
    board = board_of(rule("u1", where="price >"))

    status = board.reader.rules.status("u1")
    assert status is not None
    assert (status.accepted, status.reason) == (False, "RuleInvalid")
    assert "pattern.stages[0].where, line 1, column 8" in status.message
    assert reported(board) == [("dear", status.message)]

    board.handle(RuleApplied(rule=rule("u1"), version=11))
    mended = board.reader.rules.status("u1")
    assert mended is not None
    assert mended.accepted
    assert reported(board) == [("dear", "")]


def test_functions_that_a_job_may_have_are_no_problem_of_the_brokers() -> None:
    spec = {
        "job": "alerts",
        "id": "f",
        "version": 1,
        "pattern": {"stages": [{"name": "a", "where": {"function": "odd"}}]},
    }
    board = board_of(replace(read_rule_spec(spec), uid="u1"))

    status = board.reader.rules.status("u1")
    assert status is not None
    assert status.accepted


def test_the_older_of_two_has_the_id_and_the_other_comes_in_when_it_goes() -> None:
    young, old = rule("u1", created=2.0, where="price > 1"), rule("u2", created=1.0)
    board = board_of(young, old)

    refused = board.reader.rules.status("u1")
    assert refused is not None
    assert (refused.reason, "u2" in refused.message) == ("IdTaken", True)
    first = board.reader.rules.holder_at(old.key)
    actions = board.handle(RuleRemoved(uid="u2", version=11))

    assert first == old
    assert board.reader.rules.holder_at(old.key) == young
    assert StatusChanged(kind=RULE, uid="u1") in actions
    accepted = board.reader.rules.status("u1")
    assert accepted is not None
    assert accepted.accepted


def test_a_list_removes_what_it_leaves_out_and_a_lost_feed_nothing() -> None:
    board = board_of(rule("u1"), rule("u2", "other"))

    assert board.handle(FeedLost(kind=RULE, reason="CrdMissing")) == []
    assert reported(board) == [("dear", ""), ("other", "")]
    board.handle(Synced(kind=RULE, listed=((rule("u2", "other"), 2),), version=20))

    assert reported(board) == [("other", "")]


def test_a_rule_that_cannot_be_read_has_a_status_and_is_nobodys() -> None:
    board = board_of(rule("u1"))
    bad = Unreadable(
        kind=RULE, uid="u3", version=12, namespace="default", name="x", code="Bad", problem="why"
    )

    actions = board.handle(bad)

    status = board.reader.rules.status("u3")
    assert status is not None
    assert (status.accepted, status.reason, status.message) == (False, "Bad", "why")
    changed = ResourceChanged(kind=RULE, uid="u3", old=None, new=None, version=12)
    assert actions == [changed, StatusChanged(kind=RULE, uid="u3")]


def test_a_view_with_rules_is_read_as_it_was_written_and_its_version_counts_them() -> None:
    board = board_of(rule("u1", enable=3))
    view = board.reader.view(PE)
    assert view is not None

    assert decode(encode(view)) == view
    assert with_version(view).version == view.version
    assert with_version(replace(view, rules=None)).version != view.version
    assert with_version(replace(view, rules_version=99)).version == view.version


def test_a_view_says_up_to_which_version_rules_are_known_also_ahead_of_the_feed() -> None:
    board = board_of(rule("u1"))
    found = []
    for event in (
        RuleApplied(rule=rule("u2", "other"), version=14, ahead_of_feed=True),
        RuleApplied(rule=rule("u3", "third"), version=12),
        RuleRemoved(uid="u1", version=15),
        FeedLost(kind=RULE),
        Synced(kind=RULE, listed=(), version=4),
    ):
        board.handle(event)
        view = board.reader.view(PE)
        assert view is not None
        found.append(view.rules_version)

    assert found == [14, 14, 15, 15, 4]


def test_a_rule_never_moves_the_point_of_exports_and_imports() -> None:
    board = board_of()
    point = board.reader.point

    board.handle(RuleApplied(rule=rule("u1"), version=999))

    assert board.reader.point == point


def test_a_rule_from_here_that_the_store_has_lost_goes_with_the_next_sweep() -> None:
    board = board_of(rule("u1"))
    board.handle(RuleApplied(rule=rule("u2", "cheap"), version=14, ahead_of_feed=True))
    assert board.handle(CaughtUp(kind=RULE, version=13)) == []

    actions = board.handle(CaughtUp(kind=RULE, version=20))

    assert WriteReverted(kind=RULE, uid="u2", difference="ghost") in actions
    assert reported(board) == [("dear", "")]
