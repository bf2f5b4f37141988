"""The parts of the original's functions that need nobody: forms of properties, answers, memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import pytest

from pe_agent.functions import Known, Outcome
from pe_agent.functions.typed_properties import as_properties
from pe_agent.job.agent.view_cache import KnownPort, ViewCache
from pe_agent.job.ports import Change
from streambroker_core.errors import PropertyError


@dataclass
class Trade:
    kind: str
    level: int
    tickers: list[str]
    note: str | None = None


class Quote(NamedTuple):
    kind: str
    level: float


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, {}),
        ([], {}),
        ({"a": 5.0, "b": None}, {"a": 5}),
        (Trade("trade", 5, ["IBM"]), {"kind": "trade", "level": 5, "tickers": ["IBM"]}),
        (Quote("quote", 1.5), {"kind": "quote", "level": 1.5}),
        ([("a", "5", "int64")], {"a": 5}),
        ([("a", " -7l ", "int64")], {"a": -7}),
        ([["a", 7, "int64"]], {"a": 7}),
        ([("a", "9223372036854775807", "int64")], {"a": 2**63 - 1}),
        ([("a", "1.5e-3", "float64")], {"a": 0.0015}),
        ([("a", ".5", "float64"), ("b", "5.", "float64")], {"a": 0.5, "b": 5}),
        ([("a", "2", "float64"), ("b", 2, "float64")], {"a": 2, "b": 2}),
        ([("a", "5", "rstring")], {"a": "5"}),
        ([("a", '"x"', "rstring")], {"a": '"x"'}),
        ([("a", "", "rstring")], {"a": ""}),
        ([("a", "true", "boolean"), ("b", False, "boolean")], {"a": True, "b": False}),
        ([("a", "[1, 2]", "list<int64>")], {"a": [1, 2]}),
        ([("a", [1, "2"], "list<int64>")], {"a": [1, 2]}),
        ([("a", "[1, 2.5]", "list<float64>")], {"a": [1, 2.5]}),
        ([("a", '["IBM", "GOOG"]', "list<rstring>")], {"a": ["IBM", "GOOG"]}),
        ([("a", "[true]", "list<boolean>")], {"a": [True]}),
        ([("a", "[]", "list<int64>")], {"a": []}),
        ((t for t in [("a", "5", "int64")]), {"a": 5}),
    ],
)
def test_properties_are_taken_in_every_form(given: object, kept: dict[str, Any]) -> None:
    found = as_properties(given)
    assert found == kept
    assert {n: type(v) for n, v in found.items()} == {n: type(v) for n, v in kept.items()}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (5, "int is not a mapping"),
        (None, "NoneType is not a mapping"),
        ("a", "str is not a mapping"),
        (Trade, "type is not a mapping"),
        ({"a b": 1}, "a name is a letter"),
        ({"a": object()}, "object is not"),
        ([("a", "5")], "not a .name, value, type. triple"),
        (["abc"], "not a .name, value, type. triple"),
        ([(5, "5", "int64")], "a name is a text"),
        ([("a", "5", "int64"), ("a", "6", "int64")], "occurs twice"),
        ([("a", "5", "int32")], "'int32' is not one of int64, float64, rstring, boolean"),
        ([("a", "5", None)], "None is not one of"),
        ([("a", "5", "list<list<int64>>")], "is not one of"),
        ([("a", "5", "set<int64>")], "is not one of"),
        ([("a", "5.5", "int64")], "'5.5' is not of type int64"),
        ([("a", "0x5", "int64")], "is not of type int64"),
        ([("a", "1_000", "int64")], "is not of type int64"),
        ([("a", "\u0665", "int64")], "is not of type int64"),
        ([("a", True, "int64")], "True is not of type int64"),
        ([("a", "9223372036854775808", "int64")], "range of int64"),
        ([("a", "nan", "float64")], "is not of type float64"),
        ([("a", "1e999", "float64")], "not a finite number"),
        ([("a", "True", "boolean")], "is not of type boolean"),
        ([("a", 1, "boolean")], "is not of type boolean"),
        ([("a", 5, "rstring")], "is not of type rstring"),
        ([("a", "5", "list<int64>")], "is not of type list<int64>"),
        ([("a", "[1, ", "list<int64>")], "is not of type list<int64>"),
        ([("a", "[NaN]", "list<float64>")], "is not of type list<float64>"),
        ([("a", '[1, "x"]', "list<int64>")], "is not of type list<int64>"),
        ([("a", '{"x": 1}', "list<rstring>")], "is not of type list<rstring>"),
    ],
)
def test_what_is_no_property_is_refused_by_name(given: object, message: str) -> None:
    with pytest.raises(PropertyError, match=message):
        as_properties(given)


def test_an_outcome_is_its_code_and_more() -> None:
    change = Change(4, {"kept": [], "added": [{}], "cut": []}, cast(Any, None))
    done, late = Outcome(0, change), Outcome(3, change, TimeoutError("late"))
    assert done == 0
    assert not done
    assert (done.code, done.generation, done.accepted, done.message) == (0, 4, True, "")
    assert len(done.routes["added"]) == 1
    assert (late.code, late.accepted, late.reason, late.message) == (
        3,
        True,
        "TimeoutError",
        "late",
    )
    never = Outcome(2, error=PropertyError("a", "is wrong"))
    assert (never.generation, never.accepted, never.reason) == (None, False, "PropertyInvalid")
    assert never.routes == {"kept": [], "added": [], "cut": []}
    assert repr(never) == "Outcome(2, generation=None, reason='PropertyInvalid')"


def test_what_a_getter_answers_is_value_and_code() -> None:
    value, code = Known("price > 1.0", 3, stale=True)
    assert (value, code) == ("price > 1.0", 3)


# ---- memory ------------------------------------------------------------------------------------


class Agent:
    """An agent that can be away."""

    def __init__(self) -> None:
        self.view: dict[str, Any] | None = None
        self.away = False

    def __call__(self) -> dict[str, Any] | None:
        if self.away:
            raise ConnectionError("away")
        return self.view

    def has(self, generation: int, uid: str = "u", **fields: Any) -> None:
        port = {"uid": uid, "generation": generation, **fields}
        self.view = {"imports": {"trades": port}, "exports": {}}


@pytest.fixture
def agent() -> Agent:
    return Agent()


@pytest.fixture
def memory(agent: Agent) -> ViewCache:
    return ViewCache(agent)


def reported(memory: ViewCache, generation: int, uid: str = "u", **fields: Any) -> None:
    known = cast(KnownPort, fields)
    memory.update_port("import", "trades", uid=uid, generation=generation, fields=known)


def test_nothing_is_known_before_anything_was_said(agent: Agent, memory: ViewCache) -> None:
    assert memory.port("import", "trades") is None
    agent.away = True
    assert memory.port("import", "trades") is None
    assert memory.view() is None


def test_the_last_view_is_kept_while_the_agent_is_away(agent: Agent, memory: ViewCache) -> None:
    agent.has(1, filter="a")
    memory.view()
    agent.away = True
    known = memory.port("import", "trades")
    assert known is not None
    assert known["filter"] == "a"
    assert memory.port("export", "trades") is None


def test_what_was_set_is_known_before_the_agent_has_it(agent: Agent, memory: ViewCache) -> None:
    agent.has(1, filter="a", subscription="s")
    reported(memory, 2, filter="b")
    known = memory.port("import", "trades")
    assert known == {"uid": "u", "generation": 2, "filter": "b", "subscription": "s"}
    in_view = memory.port_in_view("import", "trades")
    assert in_view is not None
    assert in_view["filter"] == "a"


@pytest.mark.parametrize("generation", [2, 3])
def test_a_view_that_is_as_new_counts_more_than_what_was_set(
    agent: Agent, memory: ViewCache, generation: int
) -> None:
    reported(memory, 2, filter="b")
    agent.has(generation, filter="c")
    known = memory.port("import", "trades")
    assert known is not None
    assert known["filter"] == "c"


def test_what_was_reported_of_a_resource_before_is_forgotten_with_it(
    agent: Agent, memory: ViewCache
) -> None:
    reported(memory, 7, uid="old", filter="b")
    agent.has(1, uid="new", filter="c")
    known = memory.port("import", "trades")
    assert known is not None
    assert known["filter"] == "c"


def test_each_field_is_known_as_it_was_said_last(agent: Agent, memory: ViewCache) -> None:
    agent.has(1, filter="a", subscription="s", streams=[])
    reported(memory, 2, subscription="t")
    reported(memory, 3, filter="c")
    reported(memory, 2, filter="too late")
    assert memory.port("import", "trades") == {
        "uid": "u",
        "generation": 3,
        "filter": "c",
        "subscription": "t",
        "streams": [],
    }
    agent.has(2, filter="b", subscription="by another", streams=[])
    known = memory.port("import", "trades")
    assert known is not None
    assert (known["filter"], known["subscription"]) == ("c", "by another")
