"""Matches as typed columns: the same as in JSON, with the types of the stream."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streambroker_core.cep.engine.outputs import typed_results
from streambroker_core.cep.operator import PatternOperator
from streambroker_core.cep.pattern.pattern import Pattern
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.rules.rule_set import RuleContext, RuleSet
from streambroker_core.control.operators.operator import OperatorError
from support.patterns.windows import Bucket

TIMES = st.datetimes()
SIMPLE: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.string(), st.text(max_size=4)),
    (pa.binary(), st.binary(max_size=4)),
    (pa.decimal128(20, 3), st.decimals(-9999, 9999, places=3)),
    (pa.date32(), st.dates(date(1900, 1, 1), date(2100, 1, 1))),
    (pa.timestamp("us"), TIMES),
    (pa.timestamp("us", "UTC"), TIMES.map(lambda time: time.replace(tzinfo=UTC))),
]


def nested(
    inner: tuple[pa.DataType, st.SearchStrategy[Any]],
) -> list[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    kind, values = inner
    maybe = st.none() | values
    pairs = st.dictionaries(st.text(max_size=2), maybe, max_size=2).map(lambda m: [*m.items()])
    return [
        (pa.list_(kind), st.lists(maybe, max_size=2)),
        (pa.struct([("x", kind), ("y", pa.string())]), st.fixed_dictionaries({"x": maybe})),
        (pa.map_(pa.string(), kind), pairs),
    ]


FLAT = st.sampled_from(SIMPLE)
DEEP = FLAT.flatmap(lambda each: st.sampled_from(nested(each)))
KINDS = FLAT | DEEP | DEEP.flatmap(lambda each: st.sampled_from(nested(each)))


@st.composite
def batches(draw: st.DrawFn) -> list[pa.RecordBatch]:
    """Batches of a stream with columns of drawn types; ``n`` is what conditions ask for."""
    kinds = draw(st.lists(KINDS, min_size=1, max_size=3))
    fields = [(f"c{place}", kind) for place, (kind, _) in enumerate(kinds)]
    schema = pa.schema([("user", pa.string()), ("t", pa.int64()), ("n", pa.int64()), *fields])
    cuts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    made, time = [], 0
    for count in cuts:
        rows = []
        for _ in range(count):
            time += 1
            values = {name: draw(st.none() | kinds[at][1]) for at, (name, _) in enumerate(fields)}
            user, number = draw(st.sampled_from([None, "u", "v"])), draw(st.integers(0, 2))
            rows.append({"user": user, "t": time, "n": number, **values})
        made.append(pa.RecordBatch.from_pylist(rows, schema=schema))
    return made


PATTERN = (
    Pattern.begin("a")
    .where("n == 0")
    .not_followed_by("no")
    .where("n == 9")
    .followed_by("maybe")
    .where("n == 1")
    .one_or_more()
    .optional()
    .followed_by("end")
    .where("n == 2")
    .within(timedelta(microseconds=4))
)
STAGES = ("a", "maybe", "end")


def rules(pattern: Pattern = PATTERN, key: tuple[str, ...] = ()) -> RuleSet:
    made, _ = RuleSet().apply_update(
        [PatternProcessor(id="r", version=1, pattern=pattern, key=key)], RuleContext()
    )
    return made


def play(
    stream: list[pa.RecordBatch], results: pa.Schema | None, rule_set: RuleSet, key: tuple[str, ...]
) -> dict[str, list[dict[str, Any]]]:
    """Rows of matches and time-outs; each batch is a window of an operator of its own."""
    bucket = Bucket(
        partial(
            PatternOperator, key=key, event_time="t", rules=rule_set, fixed=True, results=results
        )
    )
    found: dict[str, list[dict[str, Any]]] = {}
    watermark = 0
    for batch in [*stream, None]:
        emitted = bucket.window([] if batch is None else [batch], watermark=watermark)
        watermark = 2**40 if batch is None else batch.column("t")[-1].as_py()
        for name, rows in emitted.rows.items():
            found.setdefault(name, []).extend(rows)
    for name, rows in bucket.window([], watermark=2**40).rows.items():
        found.setdefault(name, []).extend(rows)
    return found


def as_json(row: dict[str, Any]) -> dict[str, Any]:
    """A typed row in the form of a JSON row, as it is read."""
    key, events = row["key"], row["events"]
    events = {stage: taken for stage, taken in dict(events).items() if taken is not None}
    values = [*(key.values() if isinstance(key, dict) else (value for _, value in key))]
    plain = {name: row[name].replace(tzinfo=None) for name in ("time", "noticed")}
    read = {"key": values, "events": events}
    return row | plain | {k: json.loads(json.dumps(v, default=str)) for k, v in read.items()}


def read_json(row: dict[str, Any]) -> dict[str, Any]:
    return row | {name: json.loads(row[name]) for name in ("key", "events")}


@pytest.mark.parametrize("stages", [None, STAGES])
@given(stream=batches())
def test_typed_matches_equal_those_in_json(
    stages: tuple[str, ...] | None, stream: list[pa.RecordBatch]
) -> None:
    typed = typed_results(stream[0].schema, key=("user",) if stages else (), stages=stages)
    expected = play(stream, None, rules(), ("user",))
    found = play(stream, typed, rules(), ("user",))
    assert {name: [as_json(row) for row in rows] for name, rows in found.items()} == {
        name: [read_json(row) for row in rows] for name, rows in expected.items()
    }


DAY = date(2013, 1, 2)
AT = datetime(2013, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
WHOLE = {
    "t": 1,
    "names": [("a", [1, None]), ("b", None)],
    "raw": b"\x00\xff",
    "cost": Decimal("1.50"),
    "day": DAY,
    "at": AT,
    "inner": {"x": [{"y": [("k", b"v")]}]},
}
COLUMNS = pa.schema(
    [
        ("t", pa.int64()),
        ("names", pa.map_(pa.string(), pa.list_(pa.int32()))),
        ("raw", pa.binary()),
        ("cost", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        (
            "inner",
            pa.struct([("x", pa.list_(pa.struct([("y", pa.map_(pa.string(), pa.binary()))])))]),
        ),
    ]
)


@pytest.mark.parametrize("windows", [1, 2])
def test_values_come_back_as_they_were_also_from_the_state(windows: int) -> None:
    pattern = Pattern.begin("a").next("b")
    rows = [WHOLE, WHOLE | {"t": 2}]
    batch = pa.RecordBatch.from_pylist(rows, schema=COLUMNS)
    stream = [batch] if windows == 1 else [batch[:1], batch[1:]]
    typed = typed_results(COLUMNS, stages=("a", "b"))
    (match,) = play(stream, typed, rules(pattern), ())["matches"]
    assert match["events"] == {"a": rows[:1], "b": rows[1:]}


def test_a_key_of_any_rule_is_a_map_of_texts() -> None:
    columns = pa.schema(
        [("t", pa.int64()), ("raw", pa.binary()), ("on", pa.bool_()), ("s", pa.string())]
    )
    batch = pa.RecordBatch.from_pylist(
        [{"t": 1, "raw": b"\x00\xff", "on": True, "s": '"'}], columns
    )
    key = ("raw", "on", "s", "t % 2")
    (match,) = play([batch], typed_results(columns), rules(Pattern.begin("a")), key)["matches"]
    assert match["key"] == [("raw", "00ff"), ("on", "true"), ("s", '"'), ("t % 2", "1")]


def test_an_event_of_several_matches_is_converted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from streambroker_core.cep.engine import outputs

    seen: list[int] = []
    convert = outputs._to_structs

    def counted(rows: Any, kind: Any) -> Any:
        seen.append(len(rows))
        return convert(rows, kind)

    monkeypatch.setattr(outputs, "_to_structs", counted)
    pattern = Pattern.begin("a").where("n < 3").followed_by("b").where("n == 3")
    columns = pa.schema([("t", pa.int64()), ("n", pa.int64())])
    batch = pa.RecordBatch.from_pylist([{"t": at, "n": at} for at in range(1, 4)], columns)
    assert len(play([batch], typed_results(columns), rules(pattern), ())["matches"]) == 2
    assert seen == [3]


@pytest.mark.parametrize(("began", "goes_on"), [("json", "typed"), ("typed", "json")])
def test_a_state_keeps_the_form_of_matches_that_it_began_with(began: str, goes_on: str) -> None:
    columns = pa.schema([("t", pa.int64())])
    forms = {"json": None, "typed": typed_results(columns)}
    batch = pa.RecordBatch.from_pylist([{"t": 1}], columns)
    made = partial(PatternOperator, event_time="t", rules=rules(Pattern.begin("a")), fixed=True)
    bucket = Bucket(partial(made, results=forms[began]))
    bucket.window([batch], watermark=0)
    assert ("output" in json.loads(bucket.blobs["meta"])) == (began == "typed")
    bucket.make = partial(made, results=forms[goes_on])
    with pytest.raises(OperatorError, match=f'as {began}, and keeps .* output="{began}"'):
        bucket.window([], watermark=9)
    bucket.make = partial(made, results=forms[began])
    assert len(bucket.window([], watermark=9).rows["matches"]) == 1
