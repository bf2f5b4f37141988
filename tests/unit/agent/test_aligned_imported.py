"""Imports as streams, before Spark: with which options each is opened, and which brings the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pyarrow as pa
import pytest

from pe_agent.aligned.data import RowsFrame
from pe_agent.aligned.import_frame import Import, ImportFrame
from pe_agent.aligned.plan import StreamPlan, choose_carrier
from pe_agent.datasource.options import Options
from streambroker.operators import AlignedError
from streambroker_core.control.runtime.buckets import Layout

COLUMNS = "`a key` bigint, v int, t timestamp"
LAYOUT = Layout(port="left", buckets=5, key=(("a key", pa.int64()), ("v", pa.int32())), nulls=True)


@dataclass
class Frame:
    """Stands for a DataFrame: the options with which its sources were opened."""

    options: list[Mapping[str, str]] = field(default_factory=list)

    def unionByName(self, other: Frame) -> Frame:  # noqa: N802 - Spark's name
        return Frame([*self.options, *other.options])

    def mapInArrow(self, function: object, schema: object) -> Frame:  # noqa: N802 - Spark's name
        del function, schema
        return self


def imported(port: str, *, log: bool = True, ddl: str = COLUMNS) -> StreamPlan:
    load = cast(Any, lambda more: Frame([{"import": port, **more}]))
    one = Import(port=port, ddl=ddl, load=load)
    data, carrier = ImportFrame(imports=(one,)), one if log else None
    return StreamPlan(spark=cast(Any, None), data=data, carrier=carrier)


def opened(stream: StreamPlan) -> StreamPlan:
    """Return a stream that an operation has opened."""
    return replace(stream, data=stream.as_rows("where"))


def packed(stream: StreamPlan, layout: Layout = LAYOUT) -> list[Mapping[str, str]]:
    assert isinstance(stream.data, ImportFrame)
    return cast(Frame, stream.data.open_packed(layout, "t", stream.carrier, slots=True)).options


def logs(options: list[Mapping[str, str]]) -> list[tuple[str, str, str]]:
    return [(one["import"], one["rank"], one["controlLog"]) for one in options]


def test_an_operator_opens_its_import_as_the_operator_wants_its_rows() -> None:
    schema = pa.schema([("a key", pa.int64()), ("v", pa.int32()), ("t", pa.timestamp("us", "UTC"))])
    for layout in (LAYOUT, Layout(port="x", buckets=1, broadcast=True), Layout(port="y")):
        (options,) = packed(imported("in"), layout)
        given = {**options, "agent": "grpc+tcp://h:1", "control": "true"}
        packing = Options.read(given, "import").packing
        assert packing is not None
        assert packing.layout(schema) == layout
        assert (packing.event_time, packing.log) == ("t", True)


def test_of_imports_put_together_the_first_that_may_brings_the_log() -> None:
    silent, one, two = imported("silent", log=False), imported("one"), imported("two")
    all_ = silent.union(one, two)
    assert logs(packed(all_)) == [
        ("silent", "0", "false"),
        ("one", "1", "true"),
        ("two", "2", "false"),
    ]
    assert logs(packed(one.union(one))) == [("one", "0", "true"), ("one", "1", "false")]
    assert silent.union(silent).carrier is None
    assert logs(packed(one.without_control_log())) == [("one", "0", "false")]


def test_one_that_is_open_goes_before_one_that_is_not_and_two_are_refused() -> None:
    one, two = imported("one"), imported("two")
    ways = choose_carrier([one, opened(two)])
    assert ways[1] is two.carrier
    assert [way.carrier is not None for way in ways[0]] == [False, True]
    with pytest.raises(AlignedError, match=r"imports two and one of one query both.*control_log="):
        choose_carrier([opened(two), opened(one)])
    with pytest.raises(AlignedError, match="import one is open with the control log"):
        opened(one).without_control_log()


def test_two_branches_of_an_import_share_what_is_opened() -> None:
    one = imported("one")
    first, second = opened(one), opened(one)
    assert isinstance(first.data, RowsFrame)
    assert isinstance(second.data, RowsFrame)
    assert first.data.frame is second.data.frame
    assert choose_carrier([first, second])[1] is one.carrier


def test_a_union_has_equal_columns_and_so_many_frames_as_places_tell_apart() -> None:
    with pytest.raises(AlignedError, match="have the columns"):
        imported("one").union(imported("two", ddl="v int"))
    with pytest.raises(AlignedError, match="a union of 128 streams"):
        imported("one").union(*(imported(str(at)) for at in range(127)))
