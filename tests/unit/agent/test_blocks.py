"""Blocks: filtered, cut, shared, and only what is planned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from pe_agent.agent.exports.stream.block_reader import (
    BlockReader,
    BytesCache,
    NotPlannedError,
    ReadRequest,
)
from support.agents.exports import Bench, bench, rows


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as one:
        one.route()
        one.publish(0, rows(0, 4), rows(4, 4))
        yield one


def read(
    made: Bench,
    *pieces: tuple[int, int, int],
    filter_: str | None = None,
    columns: tuple[str, ...] | None = None,
    reader: str = "reader",
) -> ReadRequest:
    return ReadRequest(
        reader=reader, stream=made.stream, pieces=pieces, filter=filter_, columns=columns
    )


def numbers(made: Bench, asked: ReadRequest) -> list[list[int]]:
    return [
        b.column("n").to_pylist() for b, _ in BlockReader().read_batches(made.export.plans, asked)
    ]


def test_each_block_is_one_batch_also_when_no_row_passes(made: Bench) -> None:
    made.plan(filter_="n > 5")
    assert numbers(made, read(made, (0, 0, 2), filter_="n > 5")) == [[], [6, 7]]
    assert numbers(made, read(made, (0, 1, 2), filter_="n > 5")) == [[6, 7]]


def test_a_filter_may_name_a_column_that_is_not_sent(made: Bench) -> None:
    made.plan(filter_="n == 3", columns=["name"])
    asked = read(made, (0, 0, 2), filter_="n == 3", columns=("name",))
    got = [b for b, _ in BlockReader().read_batches(made.export.plans, asked)]
    assert [b.schema.names for b in got] == [["name"], ["name"]]
    assert [b.num_rows for b in got] == [1, 0]


def test_equal_filters_share_the_result_and_others_do_not(made: Bench) -> None:
    blocks = BlockReader()

    def first(reader: str, filter_: str, columns: list[str] | None = None) -> pa.RecordBatch:
        made.plan(reader=reader, filter_=filter_, columns=columns)
        cut = None if columns is None else tuple(columns)
        asked = read(made, (0, 0, 1), reader=reader, filter_=filter_, columns=cut)
        return next(blocks.read_batches(made.export.plans, asked))[0]

    one = first("one", "n > 1")
    assert first("again", "n > 1") is one
    assert first("other", "n > 2").column("n").to_pylist() == [3]
    assert first("narrow", "n > 1", ["n"]).schema.names == ["n"]


@pytest.mark.parametrize("filter_", ["n < 0", "n >= 0"])
def test_what_is_kept_of_tiny_blocks_has_a_bound_also_where_no_row_passes(
    made: Bench, filter_: str
) -> None:
    made.publish(1, *(rows(n, 1) for n in range(200)))
    made.plan({made.stream: 1}, filter_=filter_)
    blocks = BlockReader(cache_bytes=64 << 10)
    found = list(blocks.read_batches(made.export.plans, read(made, (1, 0, 200), filter_=filter_)))
    assert len(found) == 200
    assert 1 < len(blocks._filtered._items) <= 64
    assert 1 < len(blocks._masks._items) <= 16


def test_a_read_is_under_the_filter_and_the_columns_of_its_plan(made: Bench) -> None:
    made.plan(filter_="n > 5", columns=["n"])
    for filter_, columns in (("n > 4", ("n",)), (None, ("n",)), ("n > 5", None), ("n > 5", ())):
        with pytest.raises(NotPlannedError, match="another filter"):
            numbers(made, read(made, (0, 0, 2), filter_=filter_, columns=columns))
    made.replan({made.stream: (0, 1)}, filter_="n > 4", columns=["n"])
    with pytest.raises(NotPlannedError):
        numbers(made, read(made, (0, 0, 2), filter_="n > 5", columns=("n",)))
    asked = read(made, (0, 0, 2), filter_="n > 4", columns=("n",))
    assert numbers(made, asked) == [[], [5, 6, 7]]
    made.reopen()
    assert numbers(made, asked) == [[], [5, 6, 7]]


@pytest.mark.parametrize("piece", [(0, 0, 3), (0, -1, 1), (0, 2, 1), (1, 0, 1)])
def test_blocks_that_are_not_there_are_refused(made: Bench, piece: tuple[int, int, int]) -> None:
    made.plan()
    with pytest.raises(NotPlannedError):
        numbers(made, read(made, piece))


def test_only_the_reader_that_planned_may_read(made: Bench) -> None:
    with pytest.raises(NotPlannedError, match="not in the plan"):
        numbers(made, read(made, (0, 0, 1)))
    made.plan()
    assert numbers(made, read(made, (0, 0, 1))) == [[0, 1, 2, 3]]
    with pytest.raises(NotPlannedError):
        numbers(made, read(made, (0, 0, 1), reader="other"))
    made.plan({made.stream: 1})
    with pytest.raises(NotPlannedError):
        numbers(made, read(made, (0, 0, 1)))


def test_a_cache_keeps_what_was_used_last_within_its_bytes() -> None:
    cache = BytesCache(10)
    cache.put("a", 1, 4)
    cache.put("b", 2, 4)
    assert cache.get("a") == 1
    cache.put("c", 3, 4)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)
    cache.put("huge", 4, 11)
    assert cache.get("huge") is None
    cache.put("a", 5, 6)
    assert (cache.get("a"), cache.get("c")) == (5, 3)
