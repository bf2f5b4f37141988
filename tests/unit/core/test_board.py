"""What the board makes of single events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from streambroker_core.board import (
    AgentRegistered,
    Board,
    CaughtUp,
    ExportApplied,
    ExportRemoved,
    FeedAdvanced,
    FeedLost,
    HintAction,
    ImportApplied,
    PeDeclared,
    PeWithdrawn,
    RoutesChanged,
    StatusChanged,
    Synced,
    Unreadable,
)
from streambroker_core.matching import import_filter_problem
from support.core.resources import board_of, export_of, import_of, pe, registration

PRICE = [{"name": "price", "type": "double"}]
FEED, ALERTS = pe("feed"), pe("alerts")


def test_before_both_kinds_are_listed_there_are_no_views_and_no_orders() -> None:
    board = Board()
    actions = board.handle(ExportApplied(export=export_of(), version=1))
    actions += board.handle(Synced(kind="Export", listed=((export_of(), 1),), version=1))

    assert actions == []
    assert board.reader.view(FEED) is None
    assert not board.reader.synced


def test_a_match_shows_in_both_views() -> None:
    board = board_of(export_of(uid="x"), import_of(uid="i", filter="price>1.0"))
    exported, imported = board.reader.view(FEED), board.reader.view(ALERTS)

    assert exported is not None
    assert imported is not None
    (there,) = exported.exports["trades"].routes
    (here,) = imported.imports["trades"].routes
    assert (str(there.import_), there.uid, there.filter) == (
        "default/alerts/0/trades",
        "i",
        "price > 1.0",
    )
    assert (str(here.export), here.uid, here.filter) == (
        "default/feed/0/trades",
        "x",
        "price > 1.0",
    )
    assert here.location is None


def test_a_registration_gives_importers_the_location_and_hints_them() -> None:
    board = board_of(export_of(), import_of())
    board.handle(AgentRegistered(pe=ALERTS, registration=registration()))
    actions = board.handle(
        AgentRegistered(pe=FEED, registration=registration("grpc+tcp://10.0.0.1:1"))
    )

    view = board.reader.view(ALERTS)
    assert view is not None
    assert view.imports["trades"].routes[0].location == "grpc+tcp://10.0.0.1:1"
    assert RoutesChanged(pe=ALERTS, version=view.version) in actions
    assert HintAction(pe=ALERTS, version=view.version, point=(10, 10)) in actions
    assert not [a for a in actions if isinstance(a, HintAction | RoutesChanged) and a.pe == FEED]


def test_a_registration_that_is_known_asks_for_nothing() -> None:
    board = board_of(export_of(), import_of())
    event = AgentRegistered(pe=FEED, registration=registration(), version=3)
    board.handle(event)

    assert board.handle(event) == []
    older = replace(event, registration=registration("grpc+tcp://old:1"), version=2)
    assert board.handle(older) == []
    assert board.reader.registration(FEED) == registration()


def test_a_new_instance_at_the_old_place_changes_the_view_because_the_key_does() -> None:
    board = board_of(export_of(), import_of())
    board.handle(AgentRegistered(pe=FEED, registration=registration()))
    before = board.reader.view(ALERTS)
    fresh = replace(registration(), instance="fedcba9876543210")
    board.handle(AgentRegistered(pe=FEED, registration=fresh))
    after = board.reader.view(ALERTS)

    assert before is not None
    assert after is not None
    assert before.version != after.version


def test_a_status_write_moves_the_point_and_nothing_else() -> None:
    export = export_of()
    board = board_of(export, import_of())
    before = board.reader.view(FEED)
    actions = board.handle(ExportApplied(export=export, version=42))
    after = board.reader.view(FEED)

    assert actions == []
    assert before is not None
    assert after is not None
    assert after.version == before.version
    assert after.point == (42, 10)


def test_a_new_filter_keeps_the_route_and_changes_both_views() -> None:
    import_ = import_of(filter="price > 1.0")
    board = board_of(export_of(), import_)
    changed = replace(import_, filter="price > 2.0", generation=2)
    actions = board.handle(ImportApplied(import_=changed, version=11))

    assert {a.pe for a in actions if isinstance(a, RoutesChanged)} == {FEED, ALERTS}
    assert [route.filter for route in board.reader.routes()] == ["price > 2.0"]


def test_a_resource_created_again_is_another_one() -> None:
    export = export_of(uid="first")
    board = board_of(export, import_of())
    again = replace(export, uid="second")
    board.handle(ExportRemoved(uid="first", version=11))
    assert board.reader.routes() == []
    board.handle(ExportApplied(export=again, version=12))

    assert [route.export_uid for route in board.reader.routes()] == ["second"]
    assert board.handle(ExportApplied(export=export, version=11)) == []


def test_a_resource_created_again_under_its_name_replaces_one_whose_end_was_not_seen() -> None:
    export = replace(export_of(uid="first"), name="trades")
    board = board_of(export, import_of())
    board.handle(ExportApplied(export=replace(export, uid="second", created=9.0), version=12))

    assert [route.export_uid for route in board.reader.routes()] == ["second"]


def test_a_list_does_not_bring_back_what_a_younger_one_of_its_name_has_replaced() -> None:
    first = replace(export_of(uid="first"), name="trades")
    second = replace(first, uid="second", created=9.0)
    board = board_of(import_of())
    board.handle(ExportApplied(export=second, version=14))
    assert [route.export_uid for route in board.reader.routes()] == ["second"]
    late = Synced(kind="Export", listed=((first, 11),), version=12)
    assert board.handle(late) == []
    assert [route.export_uid for route in board.reader.routes()] == ["second"]

    board.handle(ExportRemoved(uid="second", version=15))
    assert board.handle(late) == []
    assert board.reader.routes() == []


def test_the_older_of_two_holds_a_port_and_the_other_follows_it() -> None:
    old, young = export_of(uid="b", created=1.0), export_of(uid="a", created=2.0)
    board = board_of(young, old, import_of())
    assert [route.export_uid for route in board.reader.routes()] == ["b"]
    refused = board.reader.status("Export", "a")
    assert refused is not None
    assert (refused.accepted, refused.reason) == (False, "PortTaken")
    assert refused.message == (
        "default/feed/0/trades is held by an older resource, Export default/feed-0-trades"
    )

    actions = board.handle(ExportRemoved(uid="b", version=11))
    accepted = board.reader.status("Export", "a")
    assert [route.export_uid for route in board.reader.routes()] == ["a"]
    assert accepted is not None
    assert accepted.accepted
    assert StatusChanged(kind="Export", uid="a") in actions


def test_of_two_resources_of_one_age_the_lower_uid_holds_the_port() -> None:
    board = board_of(import_of(uid="b"), import_of(uid="a"), export_of())

    assert [route.import_uid for route in board.reader.routes()] == ["a"]


def test_of_three_on_the_only_port_of_a_pe_each_follows_the_one_before() -> None:
    board = board_of(*(export_of(uid=uid, created=float(n)) for n, uid in enumerate("abc")))
    held, waiting = [], []
    for version, uid in enumerate("abc", 11):
        view = board.reader.view(FEED)
        assert view is not None
        held.append(view.exports["trades"].uid)
        waiting.append(board.reader.standby_uids("Export"))
        board.handle(ExportRemoved(uid=uid, version=version))

    assert held == ["a", "b", "c"]
    assert waiting == [{"b", "c"}, {"c"}, set()]


def test_a_stream_id_is_given_once_per_application_and_job() -> None:
    app = {"name": "app"}
    old = export_of("feed/one", uid="old", created=1.0, streamId="s", application=app)
    young = export_of("feed/two", uid="young", created=2.0, streamId="s", application=app)
    other = export_of("else/one", uid="other", created=3.0, streamId="s", application=app)
    board = board_of(old, young, other, import_of(streams=[{"streamId": "s"}]))
    assert {route.export_uid for route in board.reader.routes()} == {"old", "other"}
    refused = board.reader.status("Export", "young")
    assert refused is not None
    assert refused.reason == "StreamIdTaken"
    assert refused.message.endswith(", Export default/feed-0-one")

    board.handle(ExportRemoved(uid="old", version=11))
    assert {route.export_uid for route in board.reader.routes()} == {"young", "other"}


def test_who_lost_its_port_does_not_hold_its_stream_id() -> None:
    taken = export_of("feed/one", uid="a", created=1.0)
    loser = export_of("feed/one", uid="b", created=2.0, streamId="s")
    other = export_of("feed/two", uid="c", created=3.0, streamId="s")
    board = board_of(taken, loser, other, import_of(streams=[{"streamId": "s"}]))

    assert [route.export_uid for route in board.reader.routes()] == ["c"]


def test_a_job_may_import_what_it_exports() -> None:
    board = board_of(export_of("loop/out"), import_of("loop/in"))

    assert [str(route.import_) for route in board.reader.routes()] == ["default/loop/0/in"]


def test_pairs_that_fail_for_the_filter_are_shown_to_the_importer() -> None:
    board = board_of(
        export_of("a/p", schema=PRICE),
        export_of("b/p", allowFilter=False),
        export_of("c/p"),
        import_of(filter="size == 1"),
    )
    view = board.reader.view(ALERTS)
    status = board.reader.status("Import", "i-alerts/trades")

    assert view is not None
    assert [(str(pair.export), pair.reason) for pair in view.imports["trades"].refused] == [
        ("default/a/0/p", "FilterInvalid"),
        ("default/b/0/p", "FilterForbidden"),
    ]
    assert status is not None
    assert status.accepted


def test_a_filter_that_no_matched_export_can_use_is_not_accepted() -> None:
    board = board_of(export_of(schema=PRICE), import_of(filter="size == 1"))
    status = board.reader.status("Import", "i-alerts/trades")

    assert status is not None
    assert (status.accepted, status.reason) == (False, "FilterInvalid")
    assert "size" in status.message


def test_an_export_that_forbids_filters_says_nothing_of_whether_one_is_valid() -> None:
    text = [{"name": "price", "type": "string"}]
    exports = export_of("a/p", allowFilter=False), export_of("b/p", allowFilter=True, schema=text)
    import_ = import_of(uid="i", filter="price > 1.0")
    board = board_of(*exports, import_)
    status, problem = board.reader.status("Import", "i"), import_filter_problem(import_, exports)

    assert status is not None
    assert problem is not None
    assert (status.accepted, status.reason) == (False, "FilterInvalid")
    assert status.message == str(problem)
    assert [pair.reason for pair in status.refused] == ["FilterForbidden", "FilterInvalid"]


def test_an_import_is_accepted_once_its_text_is_right() -> None:
    board = board_of(export_of(), import_of(uid="i", subscription="kind =="))
    wrong = board.reader.status("Import", "i")
    actions = board.handle(ImportApplied(import_=import_of(uid="i"), version=11))
    right = board.reader.status("Import", "i")

    assert wrong is not None
    assert right is not None
    assert (wrong.accepted, wrong.reason) == (False, "SubscriptionInvalid")
    assert (right.accepted, right.matches) == (True, 1)
    assert StatusChanged(kind="Import", uid="i") in actions


def test_what_a_board_begins_with_is_reported_all_even_of_what_is_merely_accepted() -> None:
    lonely = export_of(uid="x", properties={"kind": "nobody wants this"})
    board = Board()
    board.handle(Synced(kind="Export", listed=((lonely, 1),), version=1))
    actions = board.handle(Synced(kind="Import", listed=(), version=1))

    assert StatusChanged(kind="Export", uid="x") in actions
    assert [a.pe for a in actions if isinstance(a, RoutesChanged)] == [FEED]


def test_a_view_shows_at_most_twenty_refused_pairs() -> None:
    exports = [export_of(f"job-{n}/p", allowFilter=False) for n in range(25)]
    board = board_of(*exports, import_of(filter="size == 1"))
    view = board.reader.view(ALERTS)

    assert view is not None
    assert len(view.imports["trades"].refused) == 20


def test_a_lost_feed_leaves_the_board_as_it_is() -> None:
    board = board_of(export_of(), import_of())
    before = board.reader.view(FEED)

    assert board.handle(FeedLost(kind="Export")) == []
    assert board.reader.stale
    assert board.reader.view(FEED) == before
    board.handle(Synced(kind="Export", listed=((export_of(), 10),), version=12))
    assert not board.reader.stale
    assert len(board.reader.routes()) == 1


def test_a_pe_stays_known_after_its_last_resource_went() -> None:
    export = export_of()
    board = board_of(export)
    board.handle(ExportRemoved(uid=export.uid, version=11))
    view = board.reader.view(FEED)

    assert view is not None
    assert view.exports == {}


def test_a_pe_is_forgotten_when_it_is_withdrawn() -> None:
    board = board_of()
    board.handle(PeDeclared(pe=FEED))
    assert board.reader.view(FEED) is not None

    assert board.handle(PeWithdrawn(pe=FEED)) == [RoutesChanged(pe=FEED, version=None)]
    assert board.reader.view(FEED) is None


def test_a_withdrawal_that_is_reported_again_does_not_forget_a_pe_that_came_back() -> None:
    board, export = board_of(), export_of()
    withdrawn = PeWithdrawn(pe=FEED, version=5)
    board.handle(withdrawn)
    board.handle(ExportApplied(export=export, version=11))
    board.handle(ExportRemoved(uid=export.uid, version=12))

    assert board.handle(withdrawn) == []
    assert board.reader.view(FEED) is not None


def test_withdrawing_a_pe_with_resources_takes_its_location_away() -> None:
    board = board_of(export_of(), import_of())
    board.handle(AgentRegistered(pe=FEED, registration=registration()))
    board.handle(PeWithdrawn(pe=FEED))
    view = board.reader.view(ALERTS)

    assert view is not None
    assert view.imports["trades"].routes[0].location is None
    assert board.reader.view(FEED) is not None


def test_replicas_that_heard_different_things_have_equal_versions() -> None:
    export, import_ = export_of(), import_of()
    one = board_of(export, import_, version=10)
    two = board_of(export, version=7)
    two.handle(ImportApplied(import_=import_, version=90))
    mine, other = one.reader.view(ALERTS), two.reader.view(ALERTS)

    assert mine is not None
    assert other is not None
    assert mine.version == other.version
    assert mine.point != other.point


def test_a_list_that_shows_a_known_resource_younger_than_it_was_proves_a_restore() -> None:
    board = board_of(export_of("a/p"), version=5)
    board.handle(ExportApplied(export=export_of("a/p"), version=8))
    board.handle(ExportApplied(export=export_of("b/p"), version=20))
    board.handle(Synced(kind="Export", listed=((export_of("a/p"), 6),), version=12))

    assert [str(export.key) for export in board.reader.exports()] == ["default/a/0/p"]
    assert board.reader.point == (12, 5)


def test_what_was_gone_when_the_board_caught_up_does_not_come_back() -> None:
    board = board_of(version=1)
    named = replace(export_of(uid="x"), name="mine")
    board.handle(ExportApplied(export=named, version=2))
    board.handle(AgentRegistered(pe=FEED, registration=registration(), version=3))
    board.handle(ExportRemoved(uid="x", version=4))
    board.handle(PeWithdrawn(pe=FEED, version=5))
    board.handle(CaughtUp(version=5))

    assert board.handle(ExportApplied(export=named, version=2)) == []
    late = AgentRegistered(pe=FEED, registration=registration("grpc+tcp://h:2"), version=3)
    assert board.handle(late) == []
    assert board.reader.view(FEED) is None
    board.handle(ExportApplied(export=replace(named, uid="y"), version=6))
    board.handle(replace(late, version=7))
    assert board.reader.view(FEED) is not None
    assert board.reader.uid_by_name("Export", "default", "mine") == "y"


def test_a_board_does_not_catch_up_backwards() -> None:
    board = board_of(version=9)
    board.handle(CaughtUp(version=9))
    board.handle(CaughtUp(version=2))
    board.handle(AgentRegistered(pe=FEED, registration=registration(), version=5))
    board.handle(ExportApplied(export=export_of(), version=5))

    assert board.reader.view(FEED) is None


def unreadable(uid: str, version: int, name: str = "trades", **more: Any) -> Unreadable:
    return Unreadable(
        kind="Export",
        uid=uid,
        version=version,
        namespace="default",
        name=name,
        code="ManifestInvalid",
        problem="spec.pe is wrong.",
        **more,
    )


def test_what_cannot_be_read_any_more_leaves_its_routes_and_comes_back_when_it_can() -> None:
    board = board_of(export_of(uid="e"), import_of(uid="i"))
    actions = board.handle(unreadable("e", 11))

    assert StatusChanged(kind="Export", uid="e") in actions
    assert board.reader.routes() == []
    status = board.reader.status("Export", "e")
    assert status is not None
    assert (status.accepted, status.reason, status.message) == (
        False,
        "ManifestInvalid",
        "spec.pe is wrong.",
    )

    assert board.handle(ExportApplied(export=export_of(uid="e"), version=11)) == []
    board.handle(ExportApplied(export=export_of(uid="e"), version=12))
    assert len(board.reader.routes()) == 1
    assert board.reader.unreadable("Export", "e") is None


def test_what_cannot_be_read_is_there_until_it_is_removed_or_left_out_of_a_list() -> None:
    board = board_of()
    for uid in ("e", "f"):
        board.handle(unreadable(uid, 11, name=uid))
    board.handle(ExportRemoved(uid="e", version=12))
    assert board.reader.unreadable("Export", "e") is None
    assert board.reader.status("Export", "e") is None
    assert board.handle(unreadable("e", 11, name="e")) == []

    board.handle(Synced(kind="Export", listed=(), version=13, unreadable=(unreadable("g", 13),)))
    assert board.reader.unreadable("Export", "f") is None
    assert board.reader.status("Export", "f") is None
    assert board.reader.status("Export", "g") is not None


def test_a_name_that_is_given_again_ends_what_could_not_be_read() -> None:
    board = board_of()
    board.handle(unreadable("e", 11))
    board.handle(ExportApplied(export=replace(export_of(uid="f"), name="trades"), version=12))

    assert board.reader.unreadable("Export", "e") is None
    assert [export.uid for export in board.reader.exports()] == ["f"]


def test_a_point_that_moves_changes_nothing_but_what_is_late() -> None:
    board = board_of(export_of(uid="e"))

    assert board.handle(FeedAdvanced(kind="Export", version=15, uid="e")) == []
    assert board.handle(FeedAdvanced(kind="Import", version=17)) == []
    assert board.reader.point == (15, 17)
    changed = export_of(uid="e", properties={"kind": "quote"})
    assert board.handle(ExportApplied(export=changed, version=14)) == []
    board.handle(Synced(kind="Export", listed=(), version=14))
    assert [export.uid for export in board.reader.exports()] == ["e"]


def test_one_kind_can_catch_up_alone() -> None:
    board = board_of()
    board.handle(ExportRemoved(uid="e13", version=13))
    board.handle(CaughtUp(version=12, kind="Export"))
    assert board.reader.point == (13, 10)

    assert board.handle(ExportApplied(export=export_of(uid="never-told"), version=12)) == []
    assert board.handle(ExportApplied(export=export_of(uid="e13"), version=14)) == []
    assert board.handle(ImportApplied(import_=import_of(uid="i"), version=12)) != []
    board.handle(CaughtUp(version=20, kind="Export"))
    assert board.reader.point == (20, 12)
