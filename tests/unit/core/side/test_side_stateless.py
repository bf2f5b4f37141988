"""Rows that meet tables without state see what they see with it; what needs state is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streambroker_core.control.operators.operator import Window
from streambroker_core.side import Enrich, SideInput, SideJoin, SideOperator, SideVersion, fixed
from streambroker_core.side.describe import explain
from streambroker_core.side.errors import SideDefinitionError, SideError
from streambroker_core.side.join.stateless import build_views, join_rows
from streambroker_core.side.join.static_table import build_content
from streambroker_core.side.state.layout import build_layout
from streambroker_core.side.state.stores import Content
from support.sides.cases import Sink, batch_of

TRADES = pa.schema([("id", pa.string()), ("k", pa.string()), ("at", pa.timestamp("us", "UTC"))])
RATES = pa.schema([("k", pa.string()), ("rate", pa.float64()), ("note", pa.string())])
KINDS: dict[str, dict[str, Any]] = {
    "map": {"key": ("k",), "value": ("rate", "note")},
    "with default": {"kind": "map", "key": ("k",), "value": ("rate",), "default": 0.5},
    "multimap": {"key": ("k",), "value": ("rate", "note")},
    "singleton": {"value": ("rate", "note")},
    "list": {"value": "rate"},
}
KEYS = st.sampled_from(["a", "b", "c", None])


def side(kind: str, **reported: Any) -> SideInput:
    given = {
        "name": "rates",
        "kind": kind,
        "schema": RATES,
        "static": True,
        **KINDS[kind],
        **reported,
    }
    return SideInput(**given)


def join_of(kind: str) -> SideJoin:
    one = side(kind)
    enrich = Enrich(input="rates", on=one.key, version="version", names=(("k", "kk"),))
    added = () if kind == "list" else (enrich,)
    return SideJoin(schema=TRADES, inputs=(one,), enrich=added, stateless=True)


def see(batch: pa.RecordBatch, views: Any) -> pa.Table:
    """Return the rows, twice, with all that is in the view."""
    view = views["rates"]
    reported = repr(list(view) if view._side.kind == "list" else getattr(view, "items", view.get)())
    return pa.Table.from_batches(
        2 * [batch.append_column("sees", pa.array([reported] * len(batch)))]
    )


def with_state(
    join: SideJoin, function: Any, content: Content, batches: list[pa.RecordBatch]
) -> list[dict[str, Any]]:
    operator = SideOperator(replace(join, stateless=False), function, lambda *_: content)
    sink = Sink()
    operator.bind(Window(number=0, time=0, watermark=None, bucket=0, buckets=1), sink)
    operator.begin_window()
    operator.apply_control(SideVersion(input="rates", version="v1"))
    for batch in batches:
        operator.process("main", batch)
    operator.end_window()
    return [row for _, batch in sink.given for row in batch.to_pylist()]


@pytest.mark.parametrize("function", [None, see], ids=["enriched", "function"])
@pytest.mark.parametrize("kind", KINDS)
@given(
    table=st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 9) | st.none()), max_size=6),
    keys=st.lists(st.lists(KEYS, max_size=5), max_size=3),
)
def test_a_row_sees_what_it_sees_in_an_operator_with_state(
    kind: str, function: Any, table: list[tuple[str, float | None]], keys: list[list[str | None]]
) -> None:
    """Null keys, keys that are not there, defaults and values that are null among them."""
    rows = table[:1] if kind == "singleton" else table
    columns = {"k": [k for k, _ in rows], "rate": [r for _, r in rows]}
    notes = [f"n{number}" for number in range(len(rows))]
    join = join_of(kind)
    content = build_content(join.inputs[0], pa.table({**columns, "note": notes}, schema=RATES))
    batches = [
        batch_of([{"id": f"{n}", "k": k, "at": n} for n, k in enumerate(some)], TRADES)
        for some in keys
    ]
    views = build_views(join, {"rates": ("v1", content)})
    found = [
        row
        for batch in batches
        for made in join_rows(join, function, batch, views)
        for row in made.to_pylist()
    ]
    assert found == with_state(join, function, content, batches)


def test_a_function_is_called_with_rows_and_gives_rows_or_nothing() -> None:
    join = join_of("map")
    content = build_content(join.inputs[0], RATES.empty_table())
    views, rows = build_views(join, {"rates": ("v1", content)}), batch_of([{"id": "1"}], TRADES)
    assert list(join_rows(join, lambda batch, views: None, rows, views)) == []
    assert list(join_rows(join, lambda batch, views: batch.slice(0, 0), rows, views)) == []
    called: list[pa.RecordBatch] = []
    assert (
        list(join_rows(join, lambda batch, _: called.append(batch), rows.slice(0, 0), views)) == []
    )
    assert called == []
    with pytest.raises(SideError, match="The function with side inputs returned int"):
        list(join_rows(join, lambda batch, views: 7, rows, views))


TABLE = side("map")
STREAM = replace(TABLE, static=False)
ENRICH = Enrich(input="rates", on=("k",))


@pytest.mark.parametrize(
    ("reported", "why"),
    [
        (
            {"inputs": (STREAM,)},
            "`rates`: rows that arrived on a stream are kept .*make it a table of a",
        ),
        ({"inputs": (replace(TABLE, timeout=1.0),)}, "timeout is for rows that wait .* leave tim"),
        ({"inputs": (replace(TABLE, ready="not required"),)}, "ready is for rows that wait"),
        ({"inputs": (replace(TABLE, on_timeout="error"),)}, "on_timeout is for rows that wait"),
        (
            {"inputs": (replace(TABLE, on_refused="output"),)},
            "on_refused is for rows .* or are rej",
        ),
        ({"windows": fixed(10)}, "windows of rows are kept in state.*leave window and apply out"),
        ({"grouped": True}, "windows of rows are kept in state"),
        ({"order": "event time"}, "order is for rows that wait, .*; leave order out, or leave sta"),
        ({"event_time": "at"}, "event_time is for rows that wait"),
        ({"lateness": 1.0}, "lateness is for rows that wait"),
        ({"max_waiting_rows": 5}, "max_waiting_rows is for rows that wait"),
        ({"max_waiting_bytes": 5}, "max_waiting_bytes is for rows that wait"),
        ({"enrich": (replace(ENRICH, missing="wait"),)}, "would wait for its key, .*'null' and"),
        ({"enrich": (replace(ENRICH, missing="error"),)}, "would go to the output `errors`"),
    ],
)
def test_what_needs_state_is_refused_with_what_to_do(reported: dict[str, Any], why: str) -> None:
    join = SideJoin(schema=TRADES, inputs=(TABLE,), enrich=(ENRICH,), stateless=True)
    assert build_layout(join).join is join
    with pytest.raises(SideDefinitionError, match=why):
        build_layout(replace(join, **reported))


def test_what_could_never_work_is_refused_as_with_state() -> None:
    join = SideJoin(schema=TRADES, inputs=(TABLE,), stateless=True)
    with pytest.raises(SideDefinitionError, match="`on` has 0 columns, its key 1"):
        build_layout(replace(join, enrich=(Enrich(input="rates"),)))
    with pytest.raises(SideDefinitionError, match="missing `never` is not known"):
        build_layout(replace(join, enrich=(replace(ENRICH, missing="never"),)))  # type: ignore[arg-type]


def test_what_holds_is_reported_without_what_does_not_apply() -> None:
    reported = explain(replace(join_of("with default"), enrich=(ENRICH,)))
    assert reported == [
        "Rows are joined with tables where the rows are, without state: there is no shuffle and no"
        " order, and no row waits.",
        "A micro-batch has one version of each table, pinned when its first row is joined: all of"
        " its tasks see that version, and so does a replay; versions are swapped between two"
        " micro-batches.",
        "Side input `rates`: map by k, a table, once per process, replaced version by version; a"
        " further value replaces the one before (by default); where there is no value it is 0.5.",
        "Columns rate of `rates` are added on k; a row without a value gets nulls (by default).",
    ]
