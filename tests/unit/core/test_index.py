"""The index answers what the scan answers, whatever was put, replaced and removed before."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from streambroker_core.matching import IndexMatcher, Matcher, ScanMatcher
from streambroker_core.model import Export, Import, Resource
from streambroker_core.model.properties import INT64_MAX, INT64_MIN
from support.core.resources import export_of, import_of

BIG = 2**53
NUMBERS = [
    *(0, 1, -1, 2, 3, 0.5, 1.5, -0.5, 0.1, 5e-324, -5e-324, 1e-300),
    *(BIG, BIG + 1, BIG + 2, -BIG - 1, float(2**62), INT64_MAX, INT64_MAX - 1, INT64_MIN),
]
BEYOND = [1e308, -1e308, 2.0**63, float(INT64_MIN) * 2]
"""Numbers that an expression may name and no property may have."""
TEXTS = ["", "1", "a", "b", "ab", "a/b", "a/c", "a/b/c", "é", "true"]
NAMES = ["a", "b", "c"]
LISTS = ["x", "y"]
TOPICS = ["a/b", "a/+", "+/b", "a/#", "#", "+", "a/b/c", "+/+/c"]

held_numbers = st.sampled_from(NUMBERS)
numbers = st.sampled_from(NUMBERS + BEYOND)
small = st.sampled_from([0, 1, 2, 0.5, 1.5])
held_scalars = st.booleans() | small | held_numbers | st.sampled_from(TEXTS)
scalars = held_scalars | numbers
lists = (
    st.lists(small | held_numbers, max_size=3)
    | st.lists(st.sampled_from(TEXTS), max_size=3)
    | st.lists(st.booleans(), max_size=2)
)
properties = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(NAMES, held_scalars),
        **dict.fromkeys(LISTS, lists),
        "topic": st.sampled_from(TEXTS),
    },
)
names = st.sampled_from(NAMES)
list_names = st.sampled_from(LISTS)
operators = st.sampled_from(["==", "==", "!=", "<", "<=", ">", ">="])


def literal(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def bracketed(values: list[Any]) -> str:
    return f"[{', '.join(map(literal, values))}]"


literals = scalars.map(literal)
sets = (
    st.lists(small | numbers, min_size=1, max_size=4)
    | st.lists(st.sampled_from(TEXTS), min_size=1, max_size=4)
    | st.lists(st.booleans(), min_size=1, max_size=2)
).map(bracketed)
atoms = st.one_of(
    st.tuples(names, operators, literals).map(" ".join),
    st.tuples(literals, operators, names).map(" ".join),
    st.tuples(names, small, small).map(lambda p: f"{p[0]} >= {p[1]} && {p[0]} < {p[2]}"),
    st.tuples(names, numbers, numbers).map(
        lambda p: f"({p[0]} >= {literal(p[1])} && {p[0]} <= {literal(p[2])})"
    ),
    st.tuples(names | list_names, st.integers(-1, 2), sets).map(
        lambda p: f"{p[0]}[{p[1]}] in {p[2]}"
    ),
    st.tuples(names, sets).map(" in ".join),
    st.tuples(literals, list_names).map(" in ".join),
    st.tuples(names, list_names).map(" in ".join),
    st.tuples(list_names, st.integers(0, 2), literals).map(lambda p: f"{p[0]}[{p[1]}] == {p[2]}"),
    st.tuples(names, names).map(" == ".join),
    st.tuples(names, small).map(lambda p: f"{p[0]} + 1 == {p[1]}"),
    st.tuples(names, st.integers(0, 2)).map(lambda p: f"{p[0]} % 3 == {p[1]}"),
    (names | list_names).map(lambda name: f"has({name})"),
    names,
    st.sampled_from(["true", "false"]),
    st.sampled_from(TOPICS).map(lambda topic: f'topic("{topic}")'),
    st.tuples(names, st.sampled_from(["a", "1"])).map(lambda p: f'startsWith({p[0]}, "{p[1]}")'),
)
expressions = st.recursive(
    atoms,
    lambda inner: (
        inner.map(lambda text: f"!({text})")
        | st.lists(inner, min_size=2, max_size=3).map(lambda ts: " && ".join(f"({t})" for t in ts))
        | st.lists(inner, min_size=2, max_size=3).map(lambda ts: " || ".join(f"({t})" for t in ts))
    ),
    max_leaves=8,
)
wide = st.lists(st.tuples(atoms, atoms), min_size=6, max_size=9).map(
    lambda pairs: " && ".join(f"(({a}) || ({b}))" for a, b in pairs)
)
subscriptions = expressions | expressions | wide | st.sampled_from(["", "  ", "a ==", "!"])

PRICE = [{"name": "price", "type": "double"}]
SIZE = [{"name": "size", "type": "bigint"}]
homes = st.sampled_from(["default", "default", "lab"])
scopes = st.sampled_from(["Default", "Default", "Lab"])
streams = st.sampled_from(["s", "t"])
schemas = st.sampled_from([None, None, PRICE, SIZE])


@st.composite
def exports(draw: st.DrawFn, uid: str) -> Export:
    spec: dict[str, Any] = {
        "application": {"name": draw(st.sampled_from(["app", "other"])), "scope": draw(scopes)},
        "allowFilter": draw(st.booleans()),
        "allowedNamespaces": draw(st.sampled_from([[], ["lab"], ["*"]])),
    }
    if draw(st.integers(0, 5)):
        spec["properties"] = draw(properties)
    else:
        spec["streamId"] = draw(streams)
    if (schema := draw(schemas)) is not None:
        spec["schema"] = schema
    return export_of(f"{draw(homes)}/feed/0/{uid}", uid=uid, **spec)


@st.composite
def imports(draw: st.DrawFn, uid: str) -> Import:
    spec: dict[str, Any] = {"applicationScope": draw(scopes), "subscription": None}
    if draw(st.integers(0, 5)):
        spec["subscription"] = draw(subscriptions)
    elif draw(st.booleans()):
        names = [{"streamId": draw(streams)}, {"applicationName": "app", "streamId": draw(streams)}]
        spec["streams"] = names[: draw(st.integers(1, 2))]
    if draw(st.booleans()):
        spec["filter"] = draw(st.sampled_from(["price > 1.0", "size == 1", "price >"]))
    if (schema := draw(schemas)) is not None:
        spec["schema"] = schema
    return import_of(f"{draw(homes)}/alerts/0/{uid}", uid=uid, **spec)


EXPORT_UIDS = [f"e{number}" for number in range(6)]
IMPORT_UIDS = [f"i{number}" for number in range(6)]


class IndexAndScan(RuleBasedStateMachine):
    """Everything is told to both."""

    def __init__(self) -> None:
        super().__init__()
        self.index = IndexMatcher()
        self.scan = ScanMatcher()
        self.held: dict[str, Resource] = {}
        self.touched: str = ""

    @property
    def both(self) -> tuple[Matcher, Matcher]:
        return self.index, self.scan

    @rule(data=st.data(), uid=st.sampled_from(EXPORT_UIDS))
    def put_export(self, data: st.DataObject, uid: str) -> None:
        export = data.draw(exports(uid))
        self.held[uid] = export
        self.touched = uid
        for matcher in self.both:
            matcher.put(export)

    @rule(data=st.data(), uid=st.sampled_from(IMPORT_UIDS))
    def put_import(self, data: st.DataObject, uid: str) -> None:
        import_ = data.draw(imports(uid))
        self.held[uid] = import_
        self.touched = uid
        for matcher in self.both:
            matcher.put(import_)

    @rule(uid=st.sampled_from(EXPORT_UIDS))
    def remove_export(self, uid: str) -> None:
        self.held.pop(uid, None)
        for matcher in self.both:
            matcher.remove("Export", uid)

    @rule(uid=st.sampled_from(IMPORT_UIDS))
    def remove_import(self, uid: str) -> None:
        self.held.pop(uid, None)
        for matcher in self.both:
            matcher.remove("Import", uid)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def ask_for_what_is_not_put(self, data: st.DataObject) -> None:
        for resource in (data.draw(exports("new")), data.draw(imports("new"))):
            assert self.index.outcomes_for(resource) == self.scan.outcomes_for(resource)

    @invariant()
    def the_last_change_is_answered_alike(self) -> None:
        self.assert_alike(self.touched)

    def assert_alike(self, uid: str) -> None:
        assert self.index.matches_of("Export", uid) == self.scan.matches_of("Export", uid)
        assert self.index.matches_of("Import", uid) == self.scan.matches_of("Import", uid)

    def teardown(self) -> None:
        """In the end all is answered alike; and a cleared index is as it was made."""
        for uid in self.held:
            self.assert_alike(uid)
        for uid in list(self.held):
            self.remove_export(uid)
            self.remove_import(uid)

        assert left_in(self.index) == left_in(IndexMatcher())


def left_in(index: IndexMatcher) -> dict[str, Any]:
    parts = {**vars(index), **vars(index._export_index), **vars(index._import_index)}
    return {name: part for name, part in parts.items() if isinstance(part, int | dict | set)}


IndexAndScan.TestCase.settings = settings(stateful_step_count=30, deadline=None, derandomize=False)
TestIndexAndScan = IndexAndScan.TestCase


@given(
    wanted=st.lists(expressions, min_size=1, max_size=6),
    offered=st.lists(properties, min_size=1, max_size=6),
    imports_first=st.booleans(),
)
def test_a_subscription_finds_from_both_sides_what_it_is_true_of(
    wanted: list[str], offered: list[dict[str, Any]], imports_first: bool
) -> None:
    index, scan = IndexMatcher(), ScanMatcher()
    sinks = [import_of(f"i{n}/p", uid=f"i{n}", subscription=text) for n, text in enumerate(wanted)]
    sources = [export_of(f"e{n}/p", uid=f"e{n}", properties=p) for n, p in enumerate(offered)]
    for matcher in (index, scan):
        for sink in sinks if imports_first else []:
            matcher.put(sink)
        for source in sources:
            matcher.put(source)
        for sink in [] if imports_first else sinks:
            matcher.put(sink)

    for source in sources:
        assert index.matches_of("Export", source.uid) == scan.matches_of("Export", source.uid)
    for sink in sinks:
        assert index.matches_of("Import", sink.uid) == scan.matches_of("Import", sink.uid)
