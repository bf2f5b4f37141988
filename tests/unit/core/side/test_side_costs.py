"""What windows cost: they follow what a window touches, not what there is."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from streambroker_core.control.operators.operator import Window
from streambroker_core.side import (
    Enrich,
    SideInput,
    SideJoin,
    SideOperator,
    Views,
    fixed,
)
from streambroker_core.side.join.joiner import Joiner
from streambroker_core.side.windows import last_instant as last_window_of
from support.sides.cases import Runner, Sink, batch_of

TIME = pa.timestamp("us", "UTC")
WORDS = pa.schema([("word", pa.string())])
MAIN = pa.schema([("id", pa.string()), ("t", TIME), ("n", pa.int64())])


def count(batch: pa.RecordBatch, views: Views) -> pa.RecordBatch:
    view: Any = next(iter(views.values()))
    return pa.record_batch({"id": batch["id"], "words": [len(view)] * batch.num_rows})


def row(number: int, t: float) -> list[Any]:
    return ["main", {"id": f"m{number}", "t": t, "n": number}]


def test_a_list_that_is_read_and_grows_is_not_written_again_each_time() -> None:
    side = SideInput(name="words", kind="list", schema=WORDS, value="word")
    join = SideJoin(schema=MAIN, inputs=(side,))
    runner = Runner(lambda: SideOperator(join, count), twice=False)
    many = [["words", {"word": f"word {number}"}] for number in range(20_000)]
    runner.window(many, watermark=None, now=0)
    for number in range(10):
        feed = [["words", {"word": "one more"}], row(number, 0)]
        runner.window(feed, watermark=None, now=0)

    whole, *later = runner.run.written
    assert [one["words"] for one in runner.run.out["out"]] == list(range(20_001, 20_011))
    assert max(later) < whole / 50


@pytest.mark.parametrize("order", ["arrival", "event time"])
def test_many_windows_that_end_at_once_cost_each_its_own(
    monkeypatch: pytest.MonkeyPatch, order: Any
) -> None:
    """History that is read in one go: the watermark passes all of its windows in one step."""
    opened = 0
    ends = 0

    def last_instant(*of: Any) -> int:
        nonlocal ends
        ends += 1
        return real(*of)

    def open_(self: Joiner, number: int, start: int | None) -> None:
        nonlocal opened
        opened += 1
        again(self, number, start)

    real, again = last_window_of, Joiner.retry_window
    monkeypatch.setattr(f"{Joiner.__module__}.last_instant", last_instant)
    monkeypatch.setattr(Joiner, "retry_window", open_)
    schema = pa.schema([*WORDS, ("t", TIME)])
    side = SideInput(
        name="words", kind="list", schema=schema, value="word", windows=fixed(1), event_time="t",
        ready="watermark",
    )  # fmt: skip
    join = SideJoin(schema=MAIN, inputs=(side,), event_time="t", windows=fixed(1), order=order)
    runner = Runner(lambda: SideOperator(join, count), twice=False)
    windows = 300
    feed = [row(number, number) for number in range(windows)]
    feed += [["words", {"word": "w", "t": number}] for number in range(windows)]
    runner.window(feed, watermark=None, now=0)
    runner.window([], watermark=10_000, now=0)

    assert [one["words"] for one in runner.run.out["out"]] == [1] * windows
    assert opened <= 3 * windows
    assert ends <= 20 * windows


RATES = pa.schema([("currency", pa.string()), ("rate", pa.float64())])
TRADES = pa.schema([("id", pa.string()), ("currency", pa.string()), ("n", pa.int64())])


class Looks:
    """Looks up the key of each row, and says how much of the map it could see."""

    def __init__(self, own_keys: bool) -> None:
        self.own_keys, self.sizes = own_keys, list[int]()

    def __call__(self, batch: pa.RecordBatch, views: Views) -> pa.RecordBatch:
        self.sizes.append(len(views["rates"]))
        return batch.append_column("seen", views["rates"].lookup(batch["currency"]))


def test_a_function_of_own_keys_is_called_once_for_all_keys_that_come_together() -> None:
    """Another one sees the map grow, key by key, and is called for each."""
    side = SideInput(name="rates", kind="map", schema=RATES, key=("currency",), value="rate")
    enrich = (Enrich(input="rates", on=("currency",), missing="wait"),)
    join = SideJoin(schema=TRADES, inputs=(side,), enrich=enrich)
    keys = [f"c{number:03}" for number in range(100)]
    found = {}
    for own in (False, True):
        function = Looks(own)
        runner = Runner(lambda: SideOperator(join, function), twice=False)  # noqa: B023
        first = [["rates", {"currency": "first", "rate": -1.0}]]
        waits = [["main", {"id": key, "currency": key, "n": 0}] for key in keys]
        runner.window([*first, *waits], watermark=None, now=0)
        values = [["rates", {"currency": k, "rate": at}] for at, k in enumerate([*keys, *keys])]
        runner.window(values, watermark=None, now=0)
        found[own] = sorted((row["id"], row["seen"]) for row in runner.run.out["out"])
        assert function.sizes == ([101] if own else list(range(2, 102)))
    assert found[True] == found[False] == [(key, at) for at, key in enumerate(keys)]


class Counting(dict[str, bytes]):
    """Blobs that know which of them were read."""

    def __init__(self, store: dict[str, bytes]) -> None:
        super().__init__(store)
        self.read: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> bytes:
        self.read.add(name)
        return super().__getitem__(name)


def test_windows_that_are_open_are_not_read_by_those_that_need_them_not() -> None:
    """They are many where the watermark lags: only figures of them are read, with one blob."""
    schema = pa.schema([*WORDS, ("t", TIME)])
    reported: dict[str, Any] = {
        "kind": "list",
        "schema": schema,
        "value": "word",
        "event_time": "t",
    }
    sides = tuple(
        SideInput(name=name, windows=fixed(1), **{**reported, "ready": ready})
        for name, ready in (("words", "watermark"), ("loads", "complete"))
    )
    join = SideJoin(schema=MAIN, inputs=sides, event_time="t", windows=fixed(1))
    runner = Runner(lambda: SideOperator(join, lambda batch, views: batch), twice=False)
    feed = [row(number, number) for number in range(50)]
    for name in ("words", "loads"):
        feed += [[name, {"word": "w", "t": number}] for number in range(50)]
    runner.window(feed, watermark=0, now=5)
    blobs = Counting(runner.blobs[0])
    made = SideOperator(join)
    sink = Sink()
    made.bind(Window(number=2, time=0, watermark=0, bucket=0, buckets=1), sink)
    made.restore(1, blobs)
    made.begin_window()
    made.advance(0)
    made.process("main", batch_of([{"id": "m", "t": 30, "n": 0}], MAIN))
    made.end_window()
    figures, changes = made.metrics(), made.snapshot()

    assert figures["waiting_rows"] == 51
    assert (figures["waiting_since"], made.held_at(), made.wake_at()) == (0, 0, 999_999)
    assert [one["entries"] for one in figures["inputs"].values()] == [50, 0]
    assert [one["staged"] for one in figures["inputs"].values()] == [0, 50]
    assert len(blobs.read) <= 5
    assert len(changes) <= 5
