"""What an importer's agent asks is checked as a whole before anything is done with it."""

from __future__ import annotations

from typing import Any

import pytest

from pe_agent.agent.server.caller_checks import MAX_LEASE, BodyInvalidError, perform
from streambroker_core.ledger.plan import PlanRequest
from streambroker_core.wire.agent_rpc.codec import Actions
from streambroker_core.wire.agent_rpc.peer import PeerReplan
from support.agents.rpc import parse_plan_request

BODY: dict[str, Any] = {
    "export": "default/feed/0/trades",
    "reader": "0" * 32,
    "import": "default/alerts/0/trades",
    "positions": {"s": 3},
    "lease": 5,
    "filter": None,
    "columns": ["n"],
}


def test_what_is_not_said_has_a_default() -> None:
    assert parse_plan_request(BODY, "peer.plan") == PlanRequest(
        reader="0" * 32,
        import_="default/alerts/0/trades",
        policy="",
        start="latest",
        positions={"s": 3},
        has_opened=True,
        budget=0,
        lease=5.0,
    )


def test_all_that_is_said_is_taken() -> None:
    reported = parse_plan_request(
        {
            **BODY,
            "start": "earliest",
            "known": False,
            "last": ["q", 7],
            "own": ["s"],
            "limit": {"s": 9},
            "budget": 100,
            "one": False,
            "lease": 1e9,
            "lossy": True,
            "of a newer release": 1,
        },
        "peer.plan",
    )
    assert (reported.start, reported.has_opened, reported.last, reported.own_streams) == (
        "earliest",
        False,
        ("q", 7),
        frozenset("s"),
    )
    assert (reported.limit, reported.budget, reported.at_least_one) == ({"s": 9}, 100, False)
    assert (reported.lease, reported.skip_lost) == (MAX_LEASE, True)
    assert parse_plan_request({**BODY, "limit": {}}, "peer.plan").limit == {}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reader", None),
        ("reader", 7),
        ("reader", ""),
        ("reader", "x" * 65),
        ("import", ["a"]),
        ("positions", None),
        ("positions", [1]),
        ("positions", {"s": -1}),
        ("positions", {"s": 1.5}),
        ("positions", {"s": "1"}),
        ("positions", {"s": True}),
        ("positions", {"s": 1 << 63}),
        ("start", "yesterday"),
        ("known", "yes"),
        ("last", "q"),
        ("last", ["q"]),
        ("last", [1, "q"]),
        ("last", ["q", -2]),
        ("own", "s"),
        ("own", [1]),
        ("limit", {"s": "two"}),
        ("limit", {"s": None}),
        ("limit", 3),
        ("budget", -1),
        ("budget", "many"),
        ("one", 1),
        ("lease", None),
        ("lease", -1),
        ("lease", "5"),
        ("lease", float("nan")),
        ("lease", float("inf")),
        ("lossy", 0),
        ("filter", 5),
        ("columns", "n"),
        ("columns", [1]),
        ("schema", []),
    ],
)
def test_a_field_that_is_not_what_it_has_to_be_is_named(field: str, value: Any) -> None:
    with pytest.raises(BodyInvalidError, match=rf"peer\.plan .*\b{field}\b.* both agents"):
        parse_plan_request({**BODY, field: value}, "peer.plan")


def read_ranges(ranges: object) -> object:
    found: list[PeerReplan] = []
    actions = Actions()
    actions.on(PeerReplan, found.append)
    perform(actions, "peer.replan", {**BODY, "ranges": ranges})
    return found[0].ranges


def test_ranges_are_two_numbers_in_order() -> None:
    assert read_ranges({"s": [0, 2], "t": [3, 3]}) == {"s": (0, 2), "t": (3, 3)}
    for wrong in (None, 3, [], [1], [2, 1], [-1, 2], ["a", "b"], [0, 1.5], [False, True]):
        with pytest.raises(BodyInvalidError, match=r"peer\.replan"):
            read_ranges({"s": wrong})
    with pytest.raises(BodyInvalidError):
        read_ranges([0, 1])
