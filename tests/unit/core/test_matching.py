"""Which Export feeds which Import, and the word for why not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streambroker_core.matching import (
    NEAR,
    Match,
    NoMatch,
    ScanMatcher,
    canonical_filter,
    expression_problem,
    filter_problem,
    import_filter_problem,
    match,
)
from support.core.resources import export_of, import_of

PRICE = [{"name": "price", "type": "double"}]
SIZE = [{"name": "size", "type": "bigint"}]
NAMED = {"streamId": "s", "application": {"name": "app"}}

CASES: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("the subscription is true", {}, {}, "Match"),
    ("the scope is another", {"application": {"scope": "Lab"}}, {}, "ScopeDiffers"),
    ("both name the scope", {"application": {"scope": "L"}}, {"applicationScope": "L"}, "Match"),
    ("scopes are exact", {"application": {"scope": "default"}}, {}, "ScopeDiffers"),
    ("the subscription is false", {"properties": {"kind": "x"}}, {}, "SubscriptionFalse"),
    ("a property is missing", {"properties": {}}, {}, "SubscriptionUnknown"),
    ("a property has another type", {"properties": {"kind": 1}}, {}, "SubscriptionUnknown"),
    ("the subscription cannot be read", {}, {"subscription": "kind =="}, "SubscriptionInvalid"),
    ("nothing is wanted", {}, {"subscription": None}, "NothingWanted"),
    ("a blank subscription", {}, {"subscription": "  "}, "NothingWanted"),
    ("it is exported by name", NAMED, {}, "ExportedByName"),
    ("it is exported by properties", {}, {"streams": [{"streamId": "s"}]}, "ExportedByProperties"),
    ("the stream id is equal", NAMED, {"streams": [{"streamId": "s"}]}, "Match"),
    ("stream ids are exact", NAMED, {"streams": [{"streamId": "S"}]}, "StreamIdDiffers"),
    (
        "one of several names",
        NAMED,
        {"streams": [{"streamId": "t"}, {"applicationName": "app", "streamId": "s"}]},
        "Match",
    ),
    (
        "the application is another",
        NAMED,
        {"streams": [{"applicationName": "other", "streamId": "s"}]},
        "ApplicationDiffers",
    ),
    ("filters are forbidden", {"allowFilter": False}, {"filter": "a == 1"}, "FilterForbidden"),
    ("forbidden but none is set", {"allowFilter": False}, {}, "Match"),
    ("forbidden but blank", {"allowFilter": False}, {"filter": " "}, "Match"),
    ("the filter fits", {"schema": PRICE}, {"filter": "price > 1.0"}, "Match"),
    ("the filter cannot be read", {}, {"filter": "price >"}, "FilterInvalid"),
    ("the filter names no column", {"schema": SIZE}, {"filter": "price > 1.0"}, "FilterInvalid"),
    ("no schema, only syntax counts", {}, {"filter": "price > 1.0"}, "Match"),
    (
        "the import's own schema counts",
        {},
        {"filter": "price > 1.0", "schema": SIZE},
        "FilterInvalid",
    ),
    ("the columns are there", {"schema": [*PRICE, *SIZE]}, {"schema": PRICE}, "Match"),
    ("a column is missing", {"schema": SIZE}, {"schema": PRICE}, "SchemaMismatch"),
    (
        "a column has another type",
        {"schema": [{"name": "price", "type": "bigint"}]},
        {"schema": PRICE},
        "SchemaMismatch",
    ),
    (
        "a column has a type that widens",
        {"schema": [{"name": "price", "type": "float"}]},
        {"schema": PRICE},
        "Match",
    ),
    ("the export has not said its columns", {}, {"schema": PRICE}, "Match"),
    ("the job is revoked", {"revoked": ["default/alerts"]}, {}, "Revoked"),
    ("the namespace is revoked", {"revoked": ["default"]}, {}, "Revoked"),
    ("another job is revoked", {"revoked": ["default/alert", "lab", "lab/alerts"]}, {}, "Match"),
]


@pytest.mark.parametrize(("why", "export", "import_", "expected"), CASES, ids=[c[0] for c in CASES])
def test_each_rule_has_its_word(
    why: str, export: dict[str, Any], import_: dict[str, Any], expected: str
) -> None:
    outcome = match(export_of(**export), import_of(**import_))

    assert (outcome.reason if isinstance(outcome, NoMatch) else "Match") == expected
    if isinstance(outcome, NoMatch):
        assert outcome.message


@pytest.mark.parametrize(
    ("allowed", "guest", "matched"),
    [
        ([], "default", True),
        ([], "lab", False),
        (["lab"], "lab", True),
        (["other"], "lab", False),
        (["other"], "default", True),
        (["*"], "lab", True),
    ],
)
def test_other_namespaces_have_to_be_allowed(allowed: list[str], guest: str, matched: bool) -> None:
    outcome = match(
        export_of("default/feed/0/trades", allowedNamespaces=allowed),
        import_of(f"{guest}/alerts/0/trades"),
    )

    assert isinstance(outcome, Match) == matched
    if isinstance(outcome, NoMatch):
        assert outcome.reason == "NamespaceNotAllowed"


@pytest.mark.parametrize(
    ("export", "import_", "policy"),
    [
        ("wait", "inherit", "wait"),
        ("drop", "inherit", "drop"),
        ("wait", "drop", "drop"),
        ("drop", "drop", "drop"),
    ],
)
def test_either_side_may_ask_for_drop(export: str, import_: str, policy: str) -> None:
    outcome = match(export_of(congestionPolicy=export), import_of(onCongestion=import_))

    assert outcome == Match(policy=policy)  # type: ignore[arg-type]


def test_a_match_carries_the_canonical_filter() -> None:
    assert match(export_of(), import_of(filter="price>1.0&&size==2")) == Match(
        policy="wait", filter="price > 1.0 && size == 2"
    )
    assert canonical_filter("  ") is None
    assert canonical_filter("price >") == "price >"


def test_numbers_of_properties_match_in_either_form() -> None:
    wants = import_of(subscription="level == 5")

    assert isinstance(match(export_of(properties={"level": 5.0}), wants), Match)


def test_problems_of_expressions_tell_where() -> None:
    problem = expression_problem("kind ==", "subscription")
    assert problem is not None
    assert problem.code == "SubscriptionInvalid"
    assert expression_problem(" ", "filter") is None
    assert filter_problem("price > 1.0", None) is None
    assert filter_problem(None, None) is None


def test_a_filter_is_refused_only_if_it_suits_no_export_that_matches() -> None:
    import_ = import_of(filter="price > 1.0")
    wrong, right = export_of("a/p", schema=SIZE), export_of("b/p", schema=PRICE)
    unrelated = export_of("c/p", properties={"kind": "other"}, schema=PRICE)
    silent = export_of("d/p", allowFilter=False, schema=PRICE)

    assert import_filter_problem(import_, [wrong, silent, unrelated]) is not None
    assert import_filter_problem(import_, [wrong, right]) is None
    assert import_filter_problem(import_, [wrong, export_of("e/p")]) is None
    assert import_filter_problem(import_, [unrelated]) is None
    assert import_filter_problem(import_, []) is None
    assert import_filter_problem(import_of(filter="price >"), []) is not None
    assert import_filter_problem(import_of(filter="price > 1.0", schema=SIZE), [right]) is not None


def test_the_scan_answers_matches_and_near_refusals_from_both_sides() -> None:
    matcher = ScanMatcher()
    matcher.put(export_of("a/p", uid="a"))
    matcher.put(export_of("b/p", uid="b", allowFilter=False))
    matcher.put(export_of("c/p", uid="c", properties={"kind": "other"}))
    matcher.put(import_of(uid="i", filter="price > 1.0"))

    found = matcher.matches_of("Import", "i")
    assert set(found) == {"a", "b"}
    assert matcher.matches_of("Export", "a") == {"i": found["a"]}
    assert matcher.matches_of("Export", "c") == {}
    matcher.remove("Export", "a")
    matcher.remove("Import", "nobody")
    assert set(matcher.matches_of("Import", "i")) == {"b"}
    matcher.remove("Import", "i")
    assert matcher.matches_of("Import", "i") == {}
    assert matcher.matches_of("Export", "b") == {}


@settings(deadline=None)
@given(
    exports=st.lists(st.sampled_from([case[1] for case in CASES]), max_size=5),
    imports=st.lists(st.sampled_from([case[2] for case in CASES]), max_size=5),
)
def test_the_scan_says_what_match_says(
    exports: list[dict[str, Any]], imports: list[dict[str, Any]]
) -> None:
    matcher = ScanMatcher()
    sources = [export_of(f"e{n}/p", uid=f"e{n}", **spec) for n, spec in enumerate(exports)]
    sinks = [import_of(f"i{n}/p", uid=f"i{n}", **spec) for n, spec in enumerate(imports)]
    for source in sources:
        matcher.put(source)
    for sink in sinks:
        matcher.put(sink)

    for source in sources:
        expected = {sink.uid: match(source, sink) for sink in sinks}
        shown = {
            uid: outcome
            for uid, outcome in expected.items()
            if isinstance(outcome, Match) or outcome.reason in NEAR
        }
        assert matcher.matches_of("Export", source.uid) == shown
