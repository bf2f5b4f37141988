"""What tasks of the sink of streams with control stage, and where tuples stand in their epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from pe_agent.aligned.runtime.frames import (
    EMITTED,
    END_POSITION,
    ROWS,
    TUPLES,
    encode_control,
    write_ipc,
)
from pe_agent.aligned.runtime.progress_messages import WatermarkUpdate, encode
from pe_agent.aligned.sinks import OutputsWriter, unpack_emitted_rows, unpack_mixed_rows
from pe_agent.datasource.unpacker import UnpackedControl, Unpacker
from streambroker_core.control.operators.operator import OperatorError
from streambroker_core.control.runtime.packing import pack_control, sequence
from streambroker_core.control.tuples import ControlError, ControlTuple, Delivery
from support.aligned.graphs import note

V = pa.schema([("v", pa.int64())])
MIXED = pa.schema([("v", pa.int64()), ("_seq", pa.int64()), ("_control", pa.binary())])

Give = Callable[[Unpacker], Iterator[pa.RecordBatch]]


def mark(name: str, delivery: Delivery = Delivery.IMMEDIATE) -> ControlTuple:
    return note(name, delivery, 0, 1, ord(name))


def staged(give: Give) -> tuple[list[int], list[tuple[int | None, str]]]:
    """Return the rows that a task stages, and its tuples with their places."""
    unpacker = Unpacker(V, "batch 0", "q")
    rows = [v for batch in give(unpacker) for v in batch.column("v").to_pylist()]
    found: list[UnpackedControl] = unpacker.collect_control()
    return rows, [(at, one.payload["name"]) for at, _, one in found]


def mixed(*given: tuple[int | None, int | bytes]) -> pa.RecordBatch:
    rows: list[dict[str, Any]] = [
        {"v": what, "_seq": place} if isinstance(what, int) else {"_control": what, "_seq": place}
        for place, what in given
    ]
    return pa.RecordBatch.from_pylist(rows, schema=MIXED)


def of_rows(*batches: pa.RecordBatch) -> Give:
    return partial(unpack_mixed_rows, iter(batches), V, "export out")


def test_a_tuple_among_rows_stands_between_those_of_its_part() -> None:
    first, second = sequence(part=5), sequence(part=2)
    reported = [encode_control(mark(name)) for name in "abc"]
    rows, control = staged(
        of_rows(
            mixed((first, 10), (first + 1, 11), (second, 20)),
            mixed(
                (first + 1, reported[0]), (second + 4, reported[1]), (sequence(part=9), reported[2])
            ),
            mixed((second + 3, 21), (second + 4, 22)),
        )
    )
    assert rows == [10, 11, 20, 21, 22]
    assert control == [(1, "a"), (4, "b"), (None, "c")]


def test_rows_without_places_are_numbered_and_notes_are_no_tuples() -> None:
    tick = encode([WatermarkUpdate(operator="op", watermark=7)])
    end = encode_control(mark("e", Delivery.END_WINDOW))
    rows, control = staged(of_rows(mixed((-1, 1), (-1, 2), (0, tick), (-1, end))))
    assert (rows, control) == ([1, 2], [(None, "e")])


def test_an_immediate_tuple_beside_rows_is_refused_or_comes_last() -> None:
    reported = encode_control(mark("a"))
    with pytest.raises(
        ControlError, match=r"in sequence with the rows of export out.*immediate='end'"
    ):
        staged(of_rows(mixed((-8, reported))))
    assert staged(of_rows(mixed((-1, 1), (END_POSITION + 7, reported)))) == ([1], [(None, "a")])


def packed(name: str, place: int) -> bytes:
    row = pack_control([(place, mark(name))], "out", 1).to_pylist()[0]
    return bytes(row["payload"])


def rows_of(*values: int) -> bytes:
    return write_ipc([pa.RecordBatch.from_pydict({"v": [v]}) for v in values])


def test_a_tuple_that_a_bucket_emits_stands_between_its_rows() -> None:
    three, one = sequence(part=3), sequence(part=1)
    emissions = [
        (TUPLES, 3, three + 1, 1, packed("a", three + 1)),
        (ROWS, 3, three, 2, rows_of(30, 31)),
        (ROWS, 1, one, 1, rows_of(10)),
        (TUPLES, 1, one, 1, packed("b", one)),
    ]
    give = partial(unpack_emitted_rows, iter(emissions), V, "out")
    assert staged(give) == ([30, 31, 10], [(1, "a"), (2, "b")])
    wrong = partial(unpack_emitted_rows, iter(emissions), pa.schema([("w", pa.int64())]), "out")
    with pytest.raises(OperatorError, match="output out returns the columns v, but w are declared"):
        staged(wrong)


class Writer:
    """Stands for the sink of an export."""

    def __init__(self, reported: dict[str, Any], name: str) -> None:
        self._reported, self._name = reported, name

    def write_with_control(self, give: Give) -> None:
        self._reported[self._name] = staged(give)


@pytest.mark.parametrize("names", [["x"], ["x", "y"]])
def test_each_output_gets_its_own_rows_and_tuples(names: list[str]) -> None:
    rows = [
        (output, *more)
        for at, output in enumerate(names)
        for more in (
            (ROWS, 0, 0, 1, rows_of(at)),
            (TUPLES, 0, 0, 1, packed("ab"[at], 0)),
        )
    ]
    batch = pa.RecordBatch.from_arrays(list(map(pa.array, zip(*rows, strict=True))), EMITTED.names)
    reported: dict[str, Any] = {}
    writers: dict[str, Any] = {name: Writer(reported, name) for name in names}
    OutputsWriter(writers, dict.fromkeys(names, V)).write(iter([batch]))
    assert reported == {name: ([at], [(0, "ab"[at])]) for at, name in enumerate(names)}
