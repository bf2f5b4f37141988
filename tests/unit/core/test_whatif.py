"""What a proposal would do is what applying it does, and asking changes nothing."""

from __future__ import annotations

from dataclasses import replace
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
)
from streambroker_core.diagnose import (
    BoardCopy,
    Proposal,
    forecast,
    render_forecast,
    take_snapshot,
)
from streambroker_core.matching import Match, expression_problem, import_filter_problem, match
from streambroker_core.model import Export, Import, Kind, Removal, Resource, Route, kind_of, name_of
from streambroker_core.model.schema import parse_ddl
from support.core.resources import board_of, export_of, import_of, picture, port

PRICE = [{"name": "price", "type": "double"}]
EXPORTS: list[dict[str, Any]] = [
    {},
    {"properties": {"kind": "quote"}},
    {"allowFilter": False},
    {"congestionPolicy": "drop"},
    {"schema": PRICE},
    {"streamId": "s"},
    {"streamId": "t"},
    {"application": {"scope": "Lab"}},
]
IMPORTS: list[dict[str, Any]] = [
    {},
    {"filter": "price > 1.0"},
    {"filter": "size > 1"},
    {"subscription": 'kind in ["trade", "quote"]', "onCongestion": "drop"},
    {"streams": [{"streamId": "s"}]},
    {"streams": [{"streamId": "s"}, {"streamId": "t"}], "filter": "price > 1.0"},
    {"subscription": "kind =="},
    {"applicationScope": "Lab"},
]
KINDS: tuple[Kind, ...] = ("Export", "Import")


def pairs(board: Board) -> dict[tuple[str, str], Route]:
    return {(route.export_uid, route.import_uid): route for route in board.reader.routes()}


# ---- applying for real -------------------------------------------------------------------------


def apply(board: Board, proposal: Proposal) -> tuple[list[int], dict[tuple[Kind, str], int]]:
    """Make the changes of a proposal.

    Returns:
        The places of those that are refused, and by identity the place of the last put.
    """
    version, refused, put = 100, [], dict[tuple[Kind, str], int]()
    for index, proposed in enumerate(proposal.puts):
        version += 1
        resource = identified(board, index, proposed)
        if resource is None or is_refused(board, resource):
            refused.append(index)
            continue
        put[(kind_of(resource), resource.uid)] = index
        if isinstance(resource, Export):
            board.handle(ExportApplied(export=resource, version=version))
        else:
            board.handle(ImportApplied(import_=resource, version=version))
    for index, (kind, key, name) in enumerate(proposal.deletes, len(proposal.puts)):
        version += 1
        holder = board.reader.holder(kind, key)
        if holder is None or (name and name != name_of(holder)):
            refused.append(index)
        elif kind == "Export":
            board.handle(ExportRemoved(uid=holder.uid, version=version))
        else:
            board.handle(ImportRemoved(uid=holder.uid, version=version))
    return refused, put


def identified(board: Board, index: int, resource: Resource) -> Resource | None:
    """Give a resource the identity that a store would; None if the port is another one's."""
    if resource.uid:
        return resource
    key = resource.key
    if resource.name and has_name_elsewhere(board, resource):
        return None
    holder = board.reader.holder(kind_of(resource), key)
    if holder is None:
        return replace(resource, uid=f"proposed/{index:08}", created=1e9 + index)
    if holder.name and resource.name and holder.name != resource.name:
        return None
    name = resource.name or holder.name
    return replace(resource, uid=holder.uid, created=holder.created, name=name)


def has_name_elsewhere(board: Board, resource: Resource) -> bool:
    """Tell whether another port has the name of a resource."""
    kind, key = kind_of(resource), resource.key
    uid = board.reader.uid_by_name(kind, key.namespace, resource.name)
    other = None if uid is None else board.reader.get(kind, uid)
    return other is not None and other.name == resource.name and other.key != key


def is_refused(board: Board, resource: Resource) -> bool:
    if isinstance(resource, Export):
        return False
    candidates = [x for x in board.reader.exports() if board.reader.is_accepted("Export", x.uid)]
    return (
        expression_problem(resource.subscription, "subscription") is not None
        or import_filter_problem(resource, candidates) is not None
    )


# ---- the property ------------------------------------------------------------------------------

places = st.sampled_from(("a/p", "a/q", "b/p"))
names = st.sampled_from(("", "", "one", "two"))
ages = st.sampled_from((0.0, 1.0, 2.0))


@st.composite
def resources(draw: st.DrawFn, uid: str = "") -> Resource:
    """Draw a resource; without a uid it is meant for its port."""
    export = draw(st.booleans())
    specs = EXPORTS if export else IMPORTS
    build = export_of if export else import_of
    made: Resource = build(
        draw(places), uid=uid or "none", created=draw(ages), **draw(st.sampled_from(specs))
    )
    return replace(made, uid=uid, name=draw(names), generation=draw(st.integers(1, 2)))


@st.composite
def boards(draw: st.DrawFn) -> list[Resource]:
    """Draw the resources of a board, rivals for a port or a stream id among them."""
    count = draw(st.integers(0, 7))
    found = [draw(resources(uid=f"r{number}")) for number in range(count)]
    by_name = {(kind_of(r), r.name or r.uid): r for r in found}
    return list(by_name.values())


@st.composite
def proposals(draw: st.DrawFn) -> Proposal:
    """Draw changes: by port, by uid, of what is there and of what is not."""
    uids = st.sampled_from(("", "", "r0", "r1", "r2", "new"))
    kinds: dict[str, Kind] = {}
    puts: list[Resource] = []
    for _ in range(draw(st.integers(0, 4))):
        uid = draw(uids)
        resource = draw(resources(uid=uid))
        if uid == "" or kinds.setdefault(uid, kind_of(resource)) == kind_of(resource):
            puts.append(resource)
    removals = st.builds(
        Removal, st.sampled_from(KINDS), places.map(port), st.sampled_from(("", "", "one", "a-0-p"))
    )
    deletes = draw(st.lists(removals, max_size=2))
    return Proposal(puts=tuple(puts), deletes=tuple(deletes))


def fits(held: list[Resource], proposal: Proposal) -> bool:
    """Tell whether a proposal leaves each identity its kind."""
    kinds = {resource.uid: kind_of(resource) for resource in held}
    return all(kinds.get(r.uid, kind_of(r)) == kind_of(r) for r in proposal.puts)


def keeping_names(earlier: list[Resource], later: list[Resource]) -> list[Resource]:
    """Return the later resources with the names that they had; a name once given stays."""
    had = {(kind_of(r), r.uid): r.name for r in earlier}
    kept = [replace(r, name=had.get((kind_of(r), r.uid)) or r.name) for r in later]
    return list({(kind_of(r), r.name or r.uid): r for r in kept}.values())


@given(earlier=boards(), held=boards(), proposal=proposals())
def test_a_mirror_shows_what_is_held_now_whatever_it_showed_before(
    earlier: list[Resource], held: list[Resource], proposal: Proposal
) -> None:
    mirror = BoardCopy()
    mirror.load(take_snapshot(board_of(*earlier).reader))
    board = board_of(*keeping_names(earlier, held))
    shown = mirror.load(take_snapshot(board.reader))

    assert (shown.exports(), shown.imports()) == (board.reader.exports(), board.reader.imports())
    assert shown.routes() == board.reader.routes()
    if fits(held, proposal):
        assert forecast(shown, proposal) == forecast(board.reader, proposal)


@given(held=boards(), proposal=proposals())
def test_a_forecast_is_the_difference_that_applying_makes_and_changes_nothing(
    held: list[Resource], proposal: Proposal
) -> None:
    if not fits(held, proposal):
        return
    board = board_of(*held)
    before, seen = pairs(board), picture(board.reader)
    rings = {ring.members for ring in board.reader.wait_rings.list_all()}
    found = forecast(board.reader, proposal)
    assert picture(board.reader) == seen
    refused, put = apply(board, proposal)
    after = pairs(board)

    assert [p.index for p in found.problems if p.refused] == refused
    assert {(r.export_uid, r.import_uid): r for r in found.added} == {
        pair: route for pair, route in after.items() if pair not in before
    }
    cut = {pair: route for pair, route in before.items() if pair not in after}
    assert {(c.route.export_uid, c.route.import_uid): c.route for c in found.cut} == cut
    assert {
        (c.route.export_uid, c.route.import_uid): (c.old_route, c.route) for c in found.changed
    } == {
        pair: (before[pair], route)
        for pair, route in after.items()
        if before.get(pair, route) != route
    }
    same = [pair for pair, route in after.items() if before.get(pair) == route]
    assert found.unchanged == len(same)
    for one in found.cut:
        assert one.reason == why_gone(board, one.route)
    idle = [p for p in found.problems if not p.refused]
    closed = [p.detail for p in idle if p.code == "WaitsInRing"]
    assert {p.index: p.code for p in idle if p.code != "WaitsInRing"} == left_out(board, put)
    new = sorted(
        ring.describe() for ring in board.reader.wait_rings.list_all() if ring.members not in rings
    )
    assert sorted(closed) == (new if put else [])


def why_gone(board: Board, route: Route) -> str:
    """Return the word for the end of a route, from the board without it."""
    sides: list[Resource] = []
    for kind, uid in ((KINDS[0], route.export_uid), (KINDS[1], route.import_uid)):
        resource = board.reader.get(kind, uid)
        if resource is None:
            return f"{kind}Removed"
        status = board.reader.status(kind, uid)
        if status is not None and status.reason in ("PortTaken", "StreamIdTaken"):
            return status.reason
        sides.append(resource)
    export, import_ = sides
    assert isinstance(export, Export)
    assert isinstance(import_, Import)
    outcome = match(export, import_)
    assert not isinstance(outcome, Match)
    return outcome.reason


def left_out(board: Board, put: dict[tuple[Kind, str], int]) -> dict[int, str]:
    """Return the words for what was put and takes no part, by place."""
    statuses = {index: board.reader.status(kind, uid) for (kind, uid), index in put.items()}
    return {
        index: status.reason
        for index, status in statuses.items()
        if status is not None and status.reason in ("PortTaken", "StreamIdTaken")
    }


# ---- examples ----------------------------------------------------------------------------------


def proposed(*puts: Resource, deletes: tuple[Removal, ...] = ()) -> Proposal:
    return Proposal(puts=tuple(replace(r, uid="") for r in puts), deletes=deletes)


def test_a_forecast_is_reported_line_by_line() -> None:
    board = board_of(
        export_of("feed/trades"),
        export_of("old/trades"),
        import_of("alerts/trades"),
        import_of("audit/trades"),
    )
    found = forecast(
        board.reader,
        proposed(
            import_of("alerts/trades", filter="price>1.0", onCongestion="drop"),
            import_of("audit/trades", subscription='kind == "quote"'),
            export_of("new/quotes", properties={"kind": "quote"}),
            import_of("lost/trades", subscription="kind =="),
            deletes=(
                Removal("Export", port("old/trades")),
                Removal("Import", port("nobody/here")),
                Removal("Import", port("alerts/trades"), "another"),
            ),
        ),
    )

    assert render_forecast(found).splitlines() == [
        "  + default/new/0/quotes -> default/audit/0/trades",
        "  - default/feed/0/trades -> default/audit/0/trades: SubscriptionFalse",
        "  - default/old/0/trades -> default/alerts/0/trades: ExportRemoved",
        "  - default/old/0/trades -> default/audit/0/trades: ExportRemoved",
        "  ~ default/feed/0/trades -> default/alerts/0/trades: filter None => price > 1.0, "
        "policy wait => drop",
        '  ~ import default/audit/0/trades: subscription kind == "trade" => kind == "quote"',
        "  ! import default/lost/0/trades: SubscriptionInvalid: Invalid subscription at line 1, "
        "column 8: found the end of the text, expected a name or a value.",
        "  ! delete import default/nobody/0/here: UnknownPort: There is no Import at "
        "default/nobody/0/here.",
        "  ! delete import default/alerts/0/trades: PortTaken: Import default/alerts/0/trades is "
        "'alerts-0-trades', not 'another'.",
        "routes: 1 added, 3 cut, 0 kept, 1 changed",
    ]


def test_other_values_of_a_resource_are_reported_also_if_no_route_changes() -> None:
    board = board_of(export_of(), import_of(filter="price > 1.0"))
    buffer = {"maxBytes": "2Gi", "waitLimit": "5m"}
    found = forecast(
        board.reader,
        proposed(
            export_of(buffer=buffer, congestionPolicy="drop"),
            import_of(subscription=f'kind\n==\n"{70 * "x"}"'),
        ),
    )
    no_route = forecast(board_of(export_of()).reader, proposed(export_of(congestionPolicy="drop")))

    lines = render_forecast(found).splitlines()
    assert lines[1:] == [
        "  ~ export default/feed/0/trades: congestionPolicy wait => drop, "
        "buffer.maxBytes 1Gi => 2Gi, buffer.waitLimit None => 5m",
        '  ~ import default/alerts/0/trades: subscription kind == "trade" => '
        f'kind == "{50 * "x"}…, filter price > 1.0 => None',
        "routes: 0 added, 1 cut, 0 kept, 0 changed",
    ]
    assert render_forecast(no_route).splitlines()[0] == (
        "  ~ export default/feed/0/trades: congestionPolicy wait => drop"
    )


def test_a_policy_that_the_line_of_a_route_has_is_not_repeated() -> None:
    board = board_of(export_of(), import_of())
    found = forecast(
        board.reader, proposed(export_of(buffer={"grace": "1h"}, congestionPolicy="drop"))
    )

    assert render_forecast(found).splitlines()[:2] == [
        "  ~ default/feed/0/trades -> default/alerts/0/trades: policy wait => drop",
        "  ~ export default/feed/0/trades: buffer.grace 10m => 1h",
    ]


def test_what_is_there_already_changes_nothing() -> None:
    board = board_of(export_of(), import_of())
    found = forecast(board.reader, proposed(export_of(), import_of()))

    assert (found.added, found.cut, found.changed, found.unchanged) == ((), (), (), 1)
    assert render_forecast(found) == "routes: 0 added, 0 cut, 1 kept, 0 changed"


def test_a_second_stream_of_an_id_would_be_there_without_effect() -> None:
    board = board_of(
        export_of("feed/one", uid="x", streamId="s"), import_of(streams=[{"streamId": "s"}])
    )
    found = forecast(board.reader, proposed(export_of("feed/two", streamId="s")))

    assert (found.added, found.unchanged) == ((), 1)
    assert render_forecast(found).startswith("  ? export default/feed/0/two: StreamIdTaken: ")
    (problem,) = found.problems
    assert (problem.index, problem.code, problem.refused) == (0, "StreamIdTaken", False)
    assert problem.detail == (
        "Export feed-0-two: its stream id is held by an older one, default/feed/0/one."
    )


def test_a_port_of_another_name_is_refused() -> None:
    board = board_of(replace(export_of(), name="mine"), import_of())
    found = forecast(board.reader, proposed(replace(export_of(properties={}), name="yours")))

    assert (found.cut, found.unchanged) == ((), 1)
    assert [(p.code, p.refused) for p in found.problems] == [("PortTaken", True)]


def test_a_name_of_another_port_is_refused() -> None:
    board = board_of(replace(export_of(), name="mine"), import_of())
    found = forecast(board.reader, proposed(replace(export_of("b/p"), name="mine")))

    assert (found.added, found.cut, found.unchanged) == ((), (), 1)
    assert [(p.code, p.refused) for p in found.problems] == [("NameTaken", True)]


def test_a_forecast_can_be_ended_and_learns_how_many_routes_there_are() -> None:
    board = board_of(*(export_of(f"x{n}/p") for n in range(5)))
    wants = proposed(*(import_of(f"i{n}/p") for n in range(3)))
    seen: list[int] = []

    def watch(routes: int) -> None:
        seen.append(routes)
        if routes >= 10:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        forecast(board.reader, wants, watch=watch)
    assert seen == [0, 0, 0, 0, 5, 10]
    assert board.reader.imports() == []


def test_a_filter_is_judged_by_what_the_proposal_has_put_before() -> None:
    board = board_of(export_of(schema=PRICE))
    wants = import_of(filter="size > 1")
    sized = export_of("b/p", schema=[{"name": "size", "type": "bigint"}])

    assert [p.code for p in forecast(board.reader, proposed(wants)).problems] == ["FilterInvalid"]
    found = forecast(board.reader, proposed(sized, wants))
    assert found.problems == ()
    assert [str(route.export) for route in found.added] == ["default/b/0/p"]


@pytest.mark.parametrize(
    ("policy", "columns", "code", "detail"),
    [
        ("backward", "price double, n int", None, ""),
        ("backward", "n int", "SchemaIncompatible", "removes `price` float"),
        ("backward", "price double", "SchemaWidened", "default/alerts/0/trades"),
        ("none", "n int", None, ""),
        ("full", "price double", "SchemaIncompatible", "`price` float becomes double"),
    ],
)
def test_what_a_change_of_columns_does_is_named(
    policy: str, columns: str, code: str | None, detail: str
) -> None:
    wanted = [{"name": "price", "type": "float" if code == "SchemaWidened" else "double"}]
    before = export_of(schema=[{"name": "price", "type": "float"}], schemaPolicy=policy)
    board = board_of(before, import_of(schema=wanted))
    schema = parse_ddl(columns)

    reported = forecast(board.reader, Proposal(puts=(replace(before, uid="", schema=schema),)))

    found = {problem.code: problem for problem in reported.problems}
    assert code is None or detail in found[code].detail
    assert not any(problem.refused for problem in reported.problems)
    assert found.keys() <= {code}
