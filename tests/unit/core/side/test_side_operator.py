"""What an operator says of itself, what it refuses, and what its windows cost."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from streambroker_core.control.operators.operator import StateError
from streambroker_core.control.tuples import Target, UndeliverableError
from streambroker_core.side import (
    Enrich,
    SideComplete,
    SideInput,
    SideJoin,
    SideOperator,
    Views,
    fixed,
)
from streambroker_core.side.errors import (
    ReadOnlyViewError,
    SideDefinitionError,
    SideError,
    SideSchemaError,
)
from streambroker_core.side.join.static_table import TableCache, build_content
from streambroker_core.side.state.read_rows import select_columns
from streambroker_core.side.state.sorted_runs import SortedRun, run_from_rows
from streambroker_core.side.windows import (
    assign_windows,
    first_start,
    sessions,
    side_start,
    sliding,
)
from support.sides.cases import Runner, Sink, batch_of, control_of

RATES = pa.schema([("currency", pa.string()), ("rate", pa.float64())])
TRADES = pa.schema([("id", pa.string()), ("currency", pa.string()), ("n", pa.int64())])


def rates(**reported: Any) -> SideInput:
    known = {"name": "rates", "kind": "map", "key": ("currency",), "schema": RATES}
    return SideInput(**{**known, **reported})


def joined(side: SideInput, **reported: Any) -> SideJoin:
    return SideJoin(schema=TRADES, inputs=(side,), **reported)


def row(id_: str, currency: str | None, n: int = 0) -> list[Any]:
    return ["main", {"id": id_, "currency": currency, "n": n}]


def rate(currency: str, value: float | None) -> list[Any]:
    return ["rates", {"currency": currency, "rate": value}]


def test_explain_names_every_policy_and_which_are_defaults() -> None:
    side = rates(timeout=60, on_timeout="error", default=1.0)
    enrich = Enrich(input="rates", on=("currency",), missing="wait")
    assert SideOperator(joined(side, enrich=(enrich,))).explain() == [
        "Rows of all inputs are processed in the order of arrival.",
        "Side input `rates`: map by currency, in every bucket; one global window; a further value"
        " replaces the one before (by default); rows wait for the first data (by default); after"
        " 60 s they go to the output `errors`; where there is no value it is 1.0; rows that are"
        " rejected stop the query.",
        "Columns rate of `rates` are added on currency; a row without a value waits for its key.",
    ]


@pytest.mark.parametrize(
    ("kind", "static", "update", "ready"),
    [
        ("singleton", False, "replaces the one before", "first data"),
        ("list", False, "added to the existing ones", "first data"),
        ("map", True, "replaces the one before", "until it is complete"),
        ("multimap", True, "added to the existing ones", "until it is complete"),
    ],
)
def test_defaults_are_those_of_the_kind(kind: Any, static: bool, update: str, ready: str) -> None:
    key = ("currency",) if kind in ("map", "multimap") else ()
    [_, reported] = SideOperator(joined(rates(kind=kind, key=key, static=static))).explain()
    assert f"{update} (by default)" in reported
    assert f"{ready} (by default)" in reported


def test_a_stall_says_who_waits_for_what_and_since_when() -> None:
    schema = pa.schema([*RATES, ("t", pa.timestamp("us", "UTC"))])
    side = rates(schema=schema, windows=fixed(3600), event_time="t")
    main = pa.schema([*TRADES, ("t", pa.timestamp("us", "UTC"))])
    runner = Runner(lambda: SideOperator(SideJoin(schema=main, inputs=(side,), event_time="t")))
    rows = [["main", {"id": id_, "currency": "EUR", "t": 10, "n": 0}] for id_ in "ab"]
    runner.window(rows, watermark=None, now=100)
    runner.window([], watermark=None, now=190)
    runner.window([["main", {"id": "c", "currency": "EUR", "t": 20, "n": 1}]], watermark=0, now=190)
    assert runner.run.ended[0].stall_texts() == [
        "3 rows wait for side input `rates`, window 1970-01-01T00:00:00Z to 1970-01-01T01:00:00Z"
        " (rows wait for the first data); the first for 90 s."
    ]
    figures = runner.run.ended[0].metrics()
    assert figures["waiting_since"] == 100_000_000
    assert figures["waiting_bytes"] > 0


def test_figures_tell_values_bytes_and_the_version_with_its_age() -> None:
    runner = Runner(lambda: SideOperator(joined(rates(ready="complete"))))
    runner.window([rate("EUR", 1.1), rate("USD", 1.0)], watermark=None, now=5)
    assert runner.run.ended[0].metrics()["inputs"]["rates"]["staged"] == 2
    runner.window([["complete", {"input": "rates", "version": "monday"}]], watermark=None, now=7)
    figures = runner.run.ended[0].metrics()["inputs"]["rates"]
    assert figures["entries"] == 2
    assert figures["staged"] == 0
    assert figures["bytes"] > 0
    assert (figures["version"], figures["version_since"]) == ("monday", 7_000_000)


def test_rows_with_other_columns_are_refused_by_name() -> None:
    operator = SideOperator(joined(rates()))
    operator.bind(_window(), None)
    operator.begin_window()
    other = pa.record_batch([["EUR"], ["1.1"]], names=["currency", "rate"])
    with pytest.raises(SideSchemaError, match="column rate is string, and was defined as double"):
        operator.process("rates", other)
    with pytest.raises(SideSchemaError, match="column currency is missing; there are: rate"):
        operator.process("rates", pa.record_batch([[1.0]], names=["rate"]))


def test_a_column_without_any_value_is_taken_for_the_type_that_is_defined() -> None:
    runner = Runner(lambda: SideOperator(joined(rates(value="rate"))), twice=False)
    batch = pa.record_batch([["EUR"], pa.nulls(1)], names=["currency", "rate"])
    assert select_columns("rates", batch, RATES).to_pylist() == [{"currency": "EUR", "rate": None}]
    runner.window([rate("EUR", None)], watermark=None, now=0)
    assert runner.run.ended[0].metrics()["inputs"]["rates"]["entries"] == 1


def test_more_columns_and_another_order_of_them_do_no_harm() -> None:
    operator = SideOperator(joined(rates()))
    operator.bind(_window(), None)
    operator.begin_window()
    batch = pa.record_batch([[7], [1.1], ["EUR"]], names=["more", "rate", "currency"])
    operator.process("rates", batch)
    assert operator.metrics()["inputs"]["rates"]["entries"] == 1


def test_state_of_other_side_inputs_is_refused() -> None:
    runner = Runner(lambda: SideOperator(joined(rates())))
    runner.window([rate("EUR", 1.1)], watermark=None, now=0)
    operator = SideOperator(SideJoin(schema=TRADES, inputs=(rates(), rates(name="more"))))
    with pytest.raises(StateError, match="1 side inputs, the operator has 2"):
        operator.restore(1, runner.blobs[0])
    with pytest.raises(StateError, match="side is damaged"):
        operator.restore(1, {"side": b"{"})


WHOLE = pa.schema([("currency", pa.string()), ("rate", pa.int64())])


@pytest.mark.parametrize(
    ("name", "side", "join"),
    [
        ("rates", {"schema": WHOLE}, {}),
        ("rates", {"name": "values"}, {}),
        ("rates", {"kind": "multimap"}, {}),
        ("rates", {"key": ("currency", "rate"), "value": "rate"}, {}),
        ("rates", {"schema": pa.schema([*RATES, ("more", pa.int64())])}, {}),
        ("main", {}, {"schema": pa.schema([*TRADES, ("more", pa.int64())])}),
        ("main", {}, {"key": ("currency",)}),
    ],
)
def test_state_of_another_definition_is_refused_and_not_misread(
    name: str, side: dict[str, Any], join: dict[str, Any]
) -> None:
    """Whole numbers have as many bytes as fractions: they would be read as such."""
    runner = Runner(lambda: SideOperator(joined(rates())))
    runner.window([rate("EUR", 1.1)], watermark=None, now=0)
    reported = {"schema": TRADES, "inputs": (rates(**side),), **join}
    operator = SideOperator(SideJoin(**reported))
    says = f"`{reported['inputs'][0].name if name == 'rates' else name}` has another definition"
    with pytest.raises(StateError, match=says):
        operator.restore(1, runner.blobs[0])


def test_state_is_taken_up_under_other_policies_and_that_of_before_forms_too() -> None:
    runner = Runner(lambda: SideOperator(joined(rates())))
    runner.window([rate("EUR", 1.1)], watermark=None, now=0)
    blobs = runner.blobs[0]
    other = rates(update="refuse", ready="not required", default=1.0, max_entries=5)
    reported = json.loads(blobs["side"])
    old = {**blobs, "side": json.dumps({k: reported[k] for k in reported if k != "forms"}).encode()}
    for state in (blobs, old):
        operator = SideOperator(joined(other, max_waiting_rows=7))
        operator.restore(1, state)
        operator.bind(_window(), Sink())
        operator.begin_window()
        assert operator.metrics()["inputs"]["rates"]["entries"] == 1


def test_control_of_others_goes_on() -> None:
    from streambroker_core.side import SideComplete, SideVersion

    operator = SideOperator(joined(rates()))
    operator.bind(_window(), None)
    operator.begin_window()
    assert operator.process_control("main", control_of(SideComplete(input="rates"))) is True
    assert operator.process_control("main", control_of(SideComplete(input="others"))) is False
    with pytest.raises(UndeliverableError, match="is a stream; send SideComplete"):
        operator.process_control("main", control_of(SideVersion(input="rates", version="v"), 2))


def test_a_window_writes_what_it_touched_of_many_keys() -> None:
    count = 40_000
    runner = Runner(lambda: SideOperator(joined(rates())), twice=False)
    runner.window([rate(f"c{n:06}", n) for n in range(count)], watermark=None, now=0)
    runner.window([rate("c000500", -1.0)], watermark=None, now=0)
    runner.window([row("m", "c000500")], watermark=None, now=0)
    whole, change, none = runner.run.written
    assert change < whole / 5
    assert none < 330


def test_many_rows_wait_for_many_keys_and_each_comes_out_once() -> None:
    enrich = Enrich(input="rates", on=("currency",), missing="wait")
    runner = Runner(lambda: SideOperator(joined(rates(), enrich=(enrich,))), twice=False)
    runner.window([rate("first", 0.0)], watermark=None, now=0)
    rows = [row(f"m{n}", f"c{n % 500}", n) for n in range(5_000)]
    runner.window(rows, watermark=None, now=0)
    assert runner.run.out["out"] == []
    runner.window([rate("c7", 7.0)], watermark=None, now=0)
    assert [r["n"] for r in runner.run.out["out"]] == list(range(7, 5_000, 500))
    runner.window([rate(f"c{n}", float(n)) for n in range(500)], watermark=None, now=0)
    assert sorted(r["n"] for r in runner.run.out["out"]) == list(range(5_000))
    assert {name for name in runner.blobs[0] if not name.startswith(("side",))} == set()


@pytest.mark.parametrize("first", ["m", "the load"])
def test_ten_thousand_rows_that_waited_come_out_once_each_in_the_order_of_arrival(
    first: str,
) -> None:
    """A load of several keys releases rows of all keys together, whichever key comes first."""
    enrich = Enrich(input="rates", on=("currency",))
    runner = Runner(lambda: SideOperator(joined(rates(), enrich=(enrich,))), twice=False)
    if first == "the load":
        runner.window([rate("z", 0.0)], watermark=None, now=0)
    rows = [row(f"m{n}", f"c{n * 7 % 500}" if n % 11 else None, n) for n in range(10_000)]
    runner.window(rows, watermark=None, now=0)
    waited = {r["n"] for r in runner.run.out["out"]}
    runner.window([rate(f"c{n}", float(n)) for n in range(500)], watermark=None, now=0)
    found = [r["n"] for r in runner.run.out["out"] if r["n"] not in waited]
    assert found == [n for n in range(10_000) if n not in waited]
    assert all(r["rate"] == r["n"] * 7 % 500 for r in runner.run.out["out"] if r["currency"])


def test_rows_of_one_main_key_keep_their_order_over_several_buckets() -> None:
    join = joined(rates(), enrich=(Enrich(input="rates", on=("currency",)),), key=("id",))
    runner = Runner(lambda: SideOperator(join), buckets=4, twice=False)
    rows = [row(f"m{n % 9}", f"c{n * 7 % 50}", n) for n in range(1_000)]
    runner.window(rows, watermark=None, now=0)
    runner.window([rate(f"c{n}", float(n)) for n in range(50)], watermark=None, now=0)
    for id_ in {r["id"] for r in runner.run.out["out"]}:
        found = [r["n"] for r in runner.run.out["out"] if r["id"] == id_]
        assert found == [n for n in range(1_000) if f"m{n % 9}" == id_]


def test_what_is_complete_for_no_side_input_is_an_error_row_and_refused_where_it_is_addressed() -> (
    None
):
    operator, sink = SideOperator(joined(rates(ready="complete"))), Sink()
    operator.bind(_window(), sink)
    operator.begin_window()
    unknown = control_of(SideComplete(input="nosuch"))
    assert not operator.process_control("main", unknown)
    assert not operator.process_control("rates", unknown)
    [(output, rows)] = sink.given
    assert (output, rows["code"].to_pylist()) == ("errors", ["SideUnknown"])
    assert (
        "for `nosuch`, which is not a side input here; there are: rates"
        in rows["message"][0].as_py()
    )
    addressed = replace(unknown, id="other", target=Target(operator="rated"))
    with pytest.raises(
        UndeliverableError, match=r"`nosuch`, .* of operator rated; there are: rates"
    ):
        operator.process_control("main", addressed)


def test_views_answer_for_whole_columns_and_cannot_be_changed() -> None:
    seen: dict[str, Any] = {}

    def look(batch: pa.RecordBatch, views: Views) -> None:
        view = views["rates"]
        seen["lookup"] = view.lookup(batch["currency"]).to_pylist()
        seen["contains"] = view.contains(batch["currency"]).to_pylist()
        seen["one"] = (view["EUR"], view.get("XXX"), "EUR" in view, len(view), view.keys())
        for change in (
            lambda: view.__setitem__("EUR", 2.0),
            lambda: setattr(view, "name", "other"),
            lambda: view.__delitem__("EUR"),
            lambda: views.__setitem__("rates", None),
        ):
            with pytest.raises(ReadOnlyViewError, match="read-only"):
                change()

    runner = Runner(lambda: SideOperator(joined(rates(value="rate")), look))
    keys = ["EUR", "XXX", None, "EUR"]
    feed = [rate("EUR", 1.1), rate("USD", 1.0), *(row(str(n), k, n) for n, k in enumerate(keys))]
    runner.window(feed, watermark=None, now=0)
    assert seen == {
        "lookup": [1.1, None, None, 1.1],
        "contains": [True, False, False, True],
        "one": (1.1, None, True, 2, ["EUR", "USD"]),
    }


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (lambda batch: batch.to_pydict(), "dict"),
        (lambda batch: batch.to_pylist(), "list of dict"),
        (lambda batch: batch.num_rows, "int"),
        (lambda batch: "rows", "str"),
        (lambda batch: batch["id"], "StringArray of StringScalar"),
    ],
)
def test_a_function_that_gives_no_batches_learns_what_it_gave(given: Any, found: str) -> None:
    runner = Runner(lambda: SideOperator(joined(rates()), lambda batch, _: given(batch)))
    with pytest.raises(SideError, match=f"returned {found}; return Arrow record batches"):
        runner.window([rate("EUR", 1.1), row("m1", "EUR")], watermark=None, now=0)


@pytest.mark.parametrize(
    "given",
    [
        lambda batch: batch,
        lambda batch: pa.Table.from_batches([batch]),
        lambda batch: [batch.slice(0, 1), pa.Table.from_batches([batch.slice(1)])],
        lambda batch: (batch.slice(at, 1) for at in range(batch.num_rows)),
    ],
)
def test_a_function_may_give_its_rows_in_pieces(given: Any) -> None:
    runner = Runner(lambda: SideOperator(joined(rates()), lambda batch, _: given(batch)))
    runner.window([rate("EUR", 1.1), row("m1", "EUR"), row("m2", "USD", 1)], watermark=None, now=0)
    assert [one["id"] for one in runner.run.out["out"]] == ["m1", "m2"]


def test_a_table_is_checked_before_it_is_announced() -> None:
    side = rates(static=True, update="refuse")
    table = pa.table({"currency": ["EUR", "EUR"], "rate": [1.0, 2.0]})
    with pytest.raises(SideError, match="a table with several rows for one value"):
        build_content(side, table)
    with pytest.raises(SideError, match="column rate is missing"):
        build_content(side, pa.table({"currency": ["EUR"]}))
    with pytest.raises(SideError, match="rows of a version: 2, the limit is 1"):
        build_content(rates(static=True, max_entries=1), table)


def test_a_shelf_reads_a_version_once_and_keeps_the_last_ones() -> None:
    read: list[str] = []

    def table(name: str, version: str) -> pa.Table:
        read.append(version)
        return pa.table({"currency": [version], "rate": [1.0]})

    shelf, side = TableCache(table), rates(static=True)
    for version in ("1", "2", "1", "3", "4", "1", "2"):
        shelf(side, version)
    assert read == ["1", "2", "3", "4", "2"]


def test_a_definition_is_the_same_in_another_process() -> None:
    again: SideInput = pickle.loads(pickle.dumps(rates()))
    assert (again, again.has_default) == (rates(), False)
    assert pickle.loads(pickle.dumps(rates(default=None))).has_default


def test_what_is_said_twice_is_heard_once() -> None:
    """A load that replaces all: the copy of another port must not replace it by nothing."""
    made = SideOperator(joined(rates(ready="complete")), lambda batch, views: batch)
    made.bind(_window(), Sink())
    made.begin_window()
    made.process("rates", batch_of([{"currency": "EUR", "rate": 1.1}], RATES))
    said = control_of(SideComplete(input="rates", whole=True))
    assert all(made.process_control(port, said) for port in ("rates", "main"))
    assert made.metrics()["inputs"]["rates"]["entries"] == 1


def test_a_table_has_no_input_for_rows() -> None:
    made = SideOperator(joined(rates(static=True)))
    assert [one.name for one in made.inputs] == ["main"]


def test_keys_that_ascend_are_taken_as_they_lie() -> None:
    keys = pa.array(["a", "b", "c"])
    rows = SortedRun(keys, pa.nulls(3, pa.int64()), pa.array([False] * 3), pa.array([1, 2, 3]))
    assert run_from_rows(rows, latest=False) is rows
    twice = SortedRun(*(pa.concat_arrays([one, one.slice(2)]) for one in rows.columns))
    assert run_from_rows(twice, latest=False).keys.to_pylist() == ["a", "b", "c"]


def test_names_of_side_inputs_are_known() -> None:
    with pytest.raises(SideDefinitionError, match="there is no such side input; there are: rates"):
        SideOperator(joined(rates(), enrich=(Enrich(input="rate", on=("currency",)),)))


@pytest.mark.parametrize("windows", [fixed(10), sliding(6, 2), sliding(5, 2)])
def test_equal_windows_are_mapped_to_themselves(windows: Any) -> None:
    times = pa.array([t * 1_000_000 + d for t in range(-12, 12) for d in (-1, 0, 1)], pa.int64())
    rows, starts = assign_windows(windows, times)
    assert side_start(windows, windows, starts).equals(starts)
    for at, start in zip(rows.to_pylist(), starts.to_pylist(), strict=True):
        assert start <= times[at].as_py() < start + windows.size
    first = dict(zip(reversed(rows.to_pylist()), reversed(starts.to_pylist()), strict=True))
    assert first_start(windows, times).to_pylist() == [first[n] for n in range(len(times))]


def _window() -> Any:
    from streambroker_core.control.operators.operator import Window

    return Window(number=1, time=0, watermark=None, bucket=0, buckets=1)


def test_rows_given_in_seconds_are_times() -> None:
    schema = pa.schema([("t", pa.timestamp("us", "UTC"))])
    assert batch_of([{"t": 2}], schema)["t"].cast(pa.int64()).to_pylist() == [2_000_000]


def restarted(*turns: tuple[SideInput, list[list[Any]]]) -> list[tuple[Any, ...]]:
    """Return what comes out of a query that starts again with other policies, row by row."""
    runner: Runner | None = None
    for side, feed in turns:
        join = joined(side, enrich=(Enrich(input="rates", on=("currency",)),))
        make = partial(SideOperator, join)
        if runner is None:
            runner = Runner(make)
        runner._make = make
        for entry in feed:
            runner.window([entry], watermark=None, now=0)
        runner.window([], watermark=None, now=0)
    assert runner is not None
    return [(one["id"], one["rate"]) for one in runner.run.out["out"]]


def test_rows_that_waited_under_another_policy_are_looked_at_again() -> None:
    assert restarted(
        (rates(), [row("p", "EUR"), row("q", "EUR")]),
        (rates(ready="not required"), [row("r", "EUR")]),
    ) == [("p", None), ("q", None), ("r", None)]


def test_what_was_staged_is_seen_under_a_policy_without_a_stage() -> None:
    assert restarted(
        (rates(ready="complete"), [rate("EUR", 1.0), row("p", "EUR")]),
        (rates(ready="first data"), [row("q", "EUR"), rate("USD", 2.0), row("r", "USD")]),
    ) == [("p", 1.0), ("q", 1.0), ("r", 2.0)]


def test_a_value_without_a_time_is_older_than_any_that_has_one() -> None:
    schema = pa.schema([*RATES, ("t", pa.timestamp("us", "UTC"))])
    old, new = (
        ["rates", {"currency": "EUR", "rate": value, "t": time}]
        for value, time in ((1.0, None), (2.0, 5))
    )
    side = {"schema": schema, "event_time": "t"}
    assert restarted(
        (rates(update="replace", **side), [old, row("p", "EUR")]),
        (rates(update="latest", **side), [new, row("q", "EUR"), row("r", "EUR")]),
    ) == [("p", 1.0), ("q", 2.0), ("r", 2.0)]


@pytest.mark.parametrize(
    ("reported", "says"),
    [
        (
            {"timeout": float("inf")},
            "a timeout of inf s is not valid; use more than 0 seconds, at most",
        ),
        ({"timeout": 1e300}, "a timeout of 1e+300 s is not valid"),
        ({"timeout": float("nan")}, "a timeout of nan s is not valid"),
        ({"key": ("currency", "currency")}, "column currency is in its key twice; name it once"),
    ],
)
def test_limits_and_keys_that_make_no_sense_are_refused(
    reported: dict[str, Any], says: str
) -> None:
    with pytest.raises(SideDefinitionError, match=re.escape(says)):
        SideOperator(joined(rates(**reported)))


@pytest.mark.parametrize("value", [-1, float("inf"), float("nan")])
def test_lateness_that_is_no_time_is_refused(value: float) -> None:
    with pytest.raises(SideDefinitionError, match="lateness of"):
        SideOperator(joined(rates(), lateness=value))


def test_a_bucket_in_which_nothing_may_wait_is_refused() -> None:
    with pytest.raises(SideDefinitionError, match="a limit below 1"):
        SideOperator(joined(rates(), max_waiting_rows=0))


@pytest.mark.parametrize("value", [0, -5, 1e-7, float("inf"), float("nan"), 1e12])
def test_windows_without_a_size_are_refused_and_not_taken_for_one_global_window(
    value: float,
) -> None:
    for make in (fixed, sessions, partial(sliding, every=1), partial(sliding, 1)):
        with pytest.raises(SideDefinitionError, match=r"^Windows: .* leave windows out for one"):
            make(value)
