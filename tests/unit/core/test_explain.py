"""Why two ports are connected or not: every rule, in words, and how near they are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streambroker_core.diagnose import (
    Pair,
    explain_pair,
    explain_port,
    render_pair,
    render_ranking,
    take_snapshot,
)
from streambroker_core.diagnose.distance import MAX_SEARCHES, SubscriptionDistance
from streambroker_core.expression import parse
from streambroker_core.matching import Match, match
from streambroker_core.model import Export, Import
from support.core.resources import board_of, export_of, import_of

PRICE = [{"name": "price", "type": "double"}]
SIZE = [{"name": "size", "type": "bigint"}]

Case = tuple[str, dict[str, Any], dict[str, Any], list[tuple[str, str, int]]]
CASES: list[Case] = [
    ("all is well", {}, {}, []),
    (
        "another scope",
        {"application": {"scope": "Lab"}},
        {},
        [("ScopeDiffers", "needs the scope Default, has Lab", 1)],
    ),
    (
        "another value",
        {"properties": {"kind": "quote"}},
        {},
        [("SubscriptionFalse", "needs kind = trade, has quote", 1)],
    ),
    (
        "no value",
        {"properties": {}},
        {},
        [("SubscriptionUnknown", "needs kind = trade, has no kind", 1)],
    ),
    (
        "another type",
        {"properties": {"kind": 5}},
        {},
        [("SubscriptionUnknown", "needs kind = trade, has 5", 1)],
    ),
    (
        "exported by name",
        {"streamId": "nyse"},
        {},
        [("ExportedByName", "is exported by name, as nyse, the import wants properties", 2)],
    ),
    (
        "exported by properties",
        {},
        {"streams": [{"streamId": "nyse"}]},
        [
            (
                "ExportedByProperties",
                "is exported by properties, the import wants the stream id nyse",
                2,
            )
        ],
    ),
    (
        "another stream id",
        {"streamId": "nyse"},
        {"streams": [{"streamId": "lse"}, {"streamId": "5"}]},
        [("StreamIdDiffers", 'needs the stream id lse or "5", has nyse', 1)],
    ),
    (
        "another application",
        {"streamId": "nyse"},
        {"streams": [{"streamId": "nyse", "applicationName": "market"}]},
        [("ApplicationDiffers", "needs the application market, has none", 1)],
    ),
    (
        "nothing wanted",
        {},
        {"subscription": None},
        [("NothingWanted", "the import has neither subscription nor streams", 1)],
    ),
    (
        "never true",
        {},
        {"subscription": "kind == 5 && false"},
        [("SubscriptionFalse", "no properties could make the subscription true", 3)],
    ),
    (
        "several columns",
        {"schema": SIZE},
        {"schema": [*PRICE, {"name": "size", "type": "string"}, {"name": "siez", "type": "int"}]},
        [
            ("SchemaMismatch", "The export has no column `price`.", 1),
            ("SchemaMismatch", "Column `size` is bigint in the export, but string is wanted.", 1),
            ("SchemaMismatch", "The export has no column `siez`; did you mean `size`?", 1),
        ],
    ),
    (
        "everything at once",
        {
            "application": {"scope": "Lab"},
            "properties": {"kind": "quote", "level": 1},
            "allowFilter": False,
            "schema": PRICE,
        },
        {
            "subscription": 'kind == "trade" && level > 2',
            "filter": "price > 1.0 && size == 1",
            "schema": [*PRICE, *SIZE],
        },
        [
            ("ScopeDiffers", "needs the scope Default, has Lab", 1),
            ("SubscriptionFalse", "needs kind = trade, has quote; needs level > 2, has 1", 2),
            ("FilterForbidden", "allows no filters, the import has one", 1),
            (
                "FilterInvalid",
                "Invalid filter at line 1, column 16: found unknown column `size`, expected a "
                "column of the schema; there are `price`.",
                1,
            ),
            ("SchemaMismatch", "The export has no column `size`.", 1),
        ],
    ),
]


@pytest.mark.parametrize(("why", "export", "import_", "expected"), CASES, ids=[c[0] for c in CASES])
def test_all_that_stands_in_the_way_is_said(
    why: str,
    export: dict[str, Any],
    import_: dict[str, Any],
    expected: list[tuple[str, str, int]],
) -> None:
    pair = explain_pair(export_of(**export), import_of(**import_))

    assert [(one.reason, one.message, one.changes) for one in pair.obstacles] == expected
    assert pair.distance == sum(changes for _, _, changes in expected)
    assert pair.matched is (expected == [])


@pytest.mark.parametrize(
    ("subscription", "properties", "message"),
    [
        ("level >= 3", {"level": 2}, "needs level >= 3, has 2"),
        ("3 < level", {"level": 2}, "needs level > 3, has 2"),
        ("!(level < 3)", {"level": 2}, "needs level >= 3, has 2"),
        ('kind != "quote"', {"kind": "quote"}, "needs kind other than quote, has quote"),
        ('kind == "a b"', {"kind": "5"}, 'needs kind = "a b", has "5"'),
        ('"IBM" in tickers', {"tickers": ["GOOG"]}, "needs tickers to hold IBM, has [GOOG]"),
        ('!("IBM" in tickers)', {"tickers": ["IBM"]}, "needs tickers not to hold IBM, has [IBM]"),
        ('kind in ["a", "b"]', {"kind": "c"}, "needs kind to be one of a, b, has c"),
        ('!(kind in ["a"])', {"kind": "a"}, "needs kind to be none of a, has a"),
        ("has(live)", {"level": 2}, "needs some live, has no live"),
        ("!has(live)", {"live": True}, "needs no live, has true"),
        ("live", {"live": False}, "needs live = true, has false"),
        ('startsWith(kind, "tr")', {"kind": "quote"}, "needs kind to start with tr, has quote"),
        ('!contains(kind, "uo")', {"kind": "quote"}, "needs kind not to contain uo, has quote"),
        ('topic("a/+")', {"topic": "b/c"}, "needs a topic that fits a/+, has b/c"),
        ("level % 2 == 0", {"level": 3}, "needs level % 2 = 0, has 1"),
        ("t[1] == 1", {"t": [4]}, "needs t[1] = 1, has t = [4]"),
        ("level == depth", {"level": 2, "depth": 3}, "needs `level == depth` to be true: "),
    ],
)
def test_what_is_needed_and_what_is_there_is_said_in_words(
    subscription: str, properties: dict[str, Any], message: str
) -> None:
    pair = explain_pair(export_of(properties=properties), import_of(subscription=subscription))

    assert pair.message == message or (message.endswith(": ") and pair.message.startswith(message))


def test_each_predicate_is_shown_with_its_value_and_the_ways_to_a_match() -> None:
    pair = explain_pair(
        export_of(properties={"kind": "quote", "live": True}),
        import_of(subscription='(kind == "trade" || level > 1) && live'),
    )

    assert [(one.text, one.value) for one in pair.predicates] == [
        ('kind == "trade"', False),
        ("level > 1", None),
        ("live", True),
    ]
    assert [[one.text for one in miss.wrong] for miss in pair.nearest] == [
        ['kind == "trade"'],
        ["level > 1"],
    ]
    assert render_pair(pair).splitlines() == [
        "default/feed/0/trades does not feed default/alerts/0/trades (1 change away)",
        "  SubscriptionUnknown: needs kind = trade, has quote; or needs level > 1, has no level",
        '  false    kind == "trade": `kind` is "quote"',
        "  unknown  level > 1: `level` is missing",
        "  true     live: `live` is true",
        '  to match: `kind == "trade"` should be true (`kind` is "quote")',
        "  to match: `level > 1` should be true (`level` is missing)",
    ]


def test_a_message_shows_the_first_of_many_things_that_are_needed() -> None:
    text = " && ".join(f"a == {number}" for number in range(20))
    pair = explain_pair(export_of(properties={"a": -1}), import_of(subscription=text))

    assert pair.distance == 20
    assert pair.message.endswith("needs a = 5, has -1; 14 more")


def test_combinations_of_repeated_predicates_are_searched_up_to_a_limit() -> None:
    text = " && ".join(f"(a & {1 << bit} == 0 || z)" for bit in range(12))
    node = parse(text).tree
    assert node is not None
    nearness = SubscriptionDistance(node)

    assert {nearness.count_changes({"a": n}) for n in range(1, MAX_SEARCHES + 1)} == {1}
    assert nearness.count_changes({"a": 0b111 << 9}) == 3
    assert nearness.count_changes({"a": 0}) == 0


def test_namespaces_that_are_not_allowed_are_named() -> None:
    pair = explain_pair(export_of(), import_of("lab/alerts/0/trades"))

    assert pair.reason == "NamespaceNotAllowed"
    assert pair.message == "does not allow the namespace lab"


def test_an_import_ranks_all_exports_and_explains_the_nearest() -> None:
    board = board_of(
        export_of("d/p", properties={"kind": "quote", "live": False}),
        export_of("c/p", properties={"kind": "trade", "live": True}),
        export_of("b/p", properties={"kind": "trade", "live": False}),
        export_of("a/p", properties={"kind": "quote", "live": True}),
        import_of(subscription='kind == "trade" && live'),
    )
    import_ = board.reader.imports()[0]
    ranking = explain_port(take_snapshot(board.reader), import_, limit=3)

    assert (ranking.total, ranking.matched) == (4, 1)
    assert [(pair.export.job, pair.distance) for pair in ranking.pairs] == [
        ("c", 0),
        ("a", 1),
        ("b", 1),
    ]
    assert render_ranking(import_, ranking).splitlines() == [
        "default/alerts/0/trades: 1 of 4 exports matches",
        "  matches     default/c/0/p",
        "  1 change    default/a/0/p  needs kind = trade, has quote",
        "  1 change    default/b/0/p  needs live = true, has false",
        "  and 1 more",
    ]


def test_an_export_ranks_all_imports() -> None:
    board = board_of(
        export_of(), import_of("b/p", subscription="kind == 5"), import_of("c/p"), import_of("a/p")
    )
    export = board.reader.exports()[0]
    ranking = explain_port(take_snapshot(board.reader), export, limit=9)

    assert [pair.import_.job for pair in ranking.pairs] == ["a", "c", "b"]
    assert render_ranking(export, ranking).splitlines()[::3] == [
        "default/feed/0/trades: 2 of 3 imports match",
        "  1 change    default/b/0/p  needs kind = 5, has trade",
    ]


def test_a_resource_without_its_port_or_stream_id_is_not_connected_and_says_why() -> None:
    first, second = export_of(uid="a", created=1.0), export_of(uid="b", created=2.0)
    one = export_of("n/one", uid="c", created=1.0, streamId="s")
    two = export_of("n/two", uid="d", created=2.0, streamId="s")
    mine, late = import_of(uid="i", created=1.0), import_of(uid="j", created=2.0)
    named = import_of("m/p", uid="k", streams=[{"streamId": "s"}])
    known = take_snapshot(board_of(first, second, one, two, mine, late, named).reader)

    by_kind = explain_port(known, mine, limit=2)
    assert [(pair.export_uid, pair.reason) for pair in by_kind.pairs] == [
        ("a", None),
        ("b", "PortTaken"),
    ]
    by_name = explain_port(known, named, limit=2)
    assert [(pair.export_uid, pair.reason) for pair in by_name.pairs] == [
        ("c", None),
        ("d", "StreamIdTaken"),
    ]
    lost = explain_port(known, late, limit=1)
    assert (lost.matched, lost.pairs[0].reason) == (0, "PortTaken")
    back = explain_port(known, second, limit=1)
    assert (back.matched, back.pairs[0].reason) == (0, "PortTaken")
    assert explain_port(known, first, limit=5).matched == 1


EXPORTS: list[dict[str, Any]] = [
    *(case[1] for case in CASES),
    {"properties": {"kind": "trade", "level": 3, "live": True}},
    {"properties": {"kind": "quote", "level": 2.5, "tickers": ["IBM"]}},
    {"streamId": "nyse", "application": {"name": "market"}},
]
IMPORTS: list[dict[str, Any]] = [
    *(case[2] for case in CASES),
    {"subscription": '(kind == "trade" && level > 2) || (live && level > 2) || "IBM" in tickers'},
    {"subscription": '!(kind == "trade") && (kind == "trade" || live)'},
    {"subscription": 'true || kind == "x"'},
    {"subscription": "kind =="},
    {"filter": "price >"},
    {"filter": "price > 1.0", "schema": SIZE},
]


def drawn(kind: str) -> st.SearchStrategy[list[Any]]:
    build = export_of if kind == "Export" else import_of
    specs = st.sampled_from(EXPORTS if kind == "Export" else IMPORTS)
    where = st.sampled_from(("a/p", "a/q", "b/p", "lab/c/0/p"))
    one = st.tuples(where, specs, st.floats(0, 3))
    return st.lists(one, min_size=1, max_size=6).map(
        lambda chosen: [
            build(place, uid=f"{kind}{number}", created=created, **spec)
            for number, (place, spec, created) in enumerate(chosen)
        ]
    )


@settings(deadline=None)
@given(exports=drawn("Export"), imports=drawn("Import"), limit=st.integers(1, 7))
def test_explanations_agree_with_the_board_and_ranks_with_explanations(
    exports: list[Export], imports: list[Import], limit: int
) -> None:
    board = board_of(*exports, *imports)
    known = take_snapshot(board.reader)
    routes = {(route.export_uid, route.import_uid) for route in board.reader.routes()}
    taken = {**known.export_conflicts, **known.import_conflicts}

    def explained(export: Export, import_: Import) -> Pair:
        return explain_pair(
            export,
            import_,
            export_conflict=known.export_conflicts.get(export.uid),
            import_conflict=known.import_conflicts.get(import_.uid),
        )

    def order(pair: Pair) -> Any:
        return pair.distance, pair.export, pair.import_

    for import_ in imports:
        all_pairs = [explained(export, import_) for export in exports]
        for export, pair in zip(exports, all_pairs, strict=True):
            assert pair.matched is ((export.uid, import_.uid) in routes)
            outcome = match(export, import_)
            if not {export.uid, import_.uid} & set(taken):
                assert pair.reason == (None if isinstance(outcome, Match) else outcome.reason)
        ranking = explain_port(known, import_, limit=limit)
        found = [(pair.distance, pair.export) for pair in ranking.pairs]
        nearest = sorted(all_pairs, key=order)[:limit]
        assert found == [(pair.distance, pair.export) for pair in nearest]
        assert ranking.matched == sum(pair.matched for pair in all_pairs)
    for export in exports:
        others = [explained(export, import_) for import_ in imports]
        back = explain_port(known, export, limit=limit)
        nearest = sorted(others, key=order)[:limit]
        assert [(pair.distance, pair.import_) for pair in back.pairs] == [
            (pair.distance, pair.import_) for pair in nearest
        ]
        assert back.matched == sum(pair.matched for pair in others)
