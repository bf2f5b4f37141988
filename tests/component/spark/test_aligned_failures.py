"""What is refused inside a query: the window fails with a reason, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users write it

import streambroker as sb
from pe_agent.aligned.data import RowsFrame
from pe_agent.aligned.plan import StreamPlan
from streambroker.operators import Limits, Operator, OperatorOptions, OperatorStream, Stream
from support.aligned.graphs import Node, Turn, chain, sink, turns
from support.aligned.model import simulate
from support.aligned.operators import Failing, Multiply, NewerMultiply, Talkative
from support.aligned.spark import (
    IN_ORDER,
    collected,
    on_spark,
    renumbered,
    run,
    scripted,
    seen,
)
from support.processes.waiting import until

SCRIPT = renumbered(turns("D1 D2 D3 D4", "D5 D6 D7 D8", "D9"))
LONG = pytest.mark.long


def multiplied(source: Stream, operator: Callable[[], Operator], **more: Any) -> OperatorStream:
    return source.apply(
        operator,
        name=more.pop("name", "Multiply"),
        schema=Multiply.SCHEMA,
        options=OperatorOptions(**{"buckets": 3, **more}),
    )


def counted(frames: dict[str, DataFrame], window: int) -> None:
    del window
    for frame in frames.values():
        frame.count()


def failure(stream: Stream, checkpoint: Path) -> StreamingQueryException:
    with pytest.raises(StreamingQueryException) as error:
        collected(stream.to_df(), checkpoint)
    return error.value


def refused(stream: Stream, checkpoint: Path) -> str:
    return str(failure(stream, checkpoint))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "why"),
    [
        ("payload", "Handle.file holds a builtins.object, which cannot be written"),
        pytest.param("thread", "operator Multiply emits from another thread", marks=LONG),
        pytest.param(
            "limit",
            "emits more control tuples in window 1 than one bucket may: 5 tuples",
            marks=LONG,
        ),
    ],
)
def test_a_window_that_fails_says_why_first_and_leaves_no_trace(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, way: str, why: str
) -> None:
    source, checkpoint = scripted(spark, tmp_path, SCRIPT).key_by("k"), tmp_path / "ck"
    failing = multiplied(source, partial(Failing, way), limits=Limits(tuples=5))
    query = failing.foreach_batch(counted, checkpoint=checkpoint)
    with pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination()
    found = sb.cause(query)
    assert found is not None
    if way == "payload":
        assert (found.type, found.code) == ("ControlError", "ControlInvalid")
    assert str(found).startswith(f"{found.code}: ")
    assert why in str(found)
    assert sb.cause(raised.value) == found
    assert found.place is not None
    assert "operators.py:" in found.place
    assert str(raised.value).startswith(str(found))
    assert str(query.exception()).startswith(str(found))
    reported = f"failed: {found.code}: "
    until(lambda: any(reported in one for one in caplog.messages), 30.0, "the cause is logged")
    rows = collected(multiplied(source, Multiply).to_df(), checkpoint)
    assert {window: sorted(v for _, v, _ in found) for window, found in rows.items()} == {
        1: [5, 6, 7, 8],
        2: [9],
    }


@pytest.mark.slow
def test_control_that_a_receiver_does_not_know_or_that_was_changed_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A-25 at the receiver."""
    source = scripted(spark, tmp_path, renumbered(turns("D1 E(a)"))).key_by("k")
    reported = refused(multiplied(source, Multiply), tmp_path / "ck")
    assert "has type Note, which is not known to this receiver; it knows SetFactor" in reported
    passing = multiplied(source, Multiply, on_invalid="pass")
    assert collected(passing.to_df(), tmp_path / "ck") == {0: [(1, 1, 0)]}
    assert isinstance(source.plan.data, RowsFrame)
    changed = source.plan.data.frame.withColumn("_control", F.substring("_control", 1, 20))
    rows = RowsFrame(frame=changed, mixed=True)
    broken = Stream(StreamPlan(spark=spark, data=rows, key=("k",)))
    reported = refused(multiplied(broken, Multiply), tmp_path / "ck2")
    assert "a control row contains no control tuple" in reported


@pytest.mark.slow
@pytest.mark.parametrize("tried", [1, pytest.param(4, marks=pytest.mark.long)])
def test_a_checkpoint_of_another_kind_is_refused_and_not_overwritten(
    spark: SparkSession, tmp_path: Path, tried: int
) -> None:
    folder, checkpoint = tmp_path / "s", tmp_path / "ck"
    source = scripted(spark, folder, SCRIPT[:1]).key_by("k")
    collected(multiplied(source, NewerMultiply).to_df(), checkpoint)
    source = scripted(spark, folder, SCRIPT[:2]).key_by("k")
    others = {
        "has 3 buckets and the query 5": multiplied(source, NewerMultiply, buckets=5),
        "has version 2 and the operator reads up to 1": multiplied(source, Multiply),
        "belongs to operator Multiply": multiplied(source, NewerMultiply, name="Other"),
        "has input in distributed as": multiplied(source.key_by("v"), NewerMultiply),
    }
    for why, other in list(others.items())[:tried]:
        reported = refused(other, checkpoint)
        assert why in reported
        assert "Nothing was overwritten" in reported
    rows = collected(multiplied(source, NewerMultiply).to_df(), checkpoint)
    assert sorted(v for _, v, _ in rows[1]) == [5, 6, 7, 8]


@pytest.mark.long
def test_a_query_goes_on_with_other_tasks_and_the_partitions_of_its_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A-24: tasks before the shuffle may change; behind it Spark keeps those of the checkpoint."""
    script = renumbered(turns("D1 E(a) I(b) D2", "D3 E(c)", "I(d) D4 E(e)"))
    graph = chain(Node(name="P", buckets=3), Node(name="Q", buckets=5, answer="forward"), sink(2))
    query = ""
    for count, tasks, partitions in ((1, 1, 2), (2, 4, 3), (3, 2, 1)):
        source = scripted(spark, tmp_path, script[:count], tasks=tasks, seed=tasks)
        nodes = on_spark(graph, source, tmp_path / "seen")
        query = run(nodes["sink"], tmp_path / "ck", partitions=partitions)
    assert seen(tmp_path / "seen", query) == simulate(graph, script)


@pytest.mark.long
def test_ten_thousand_tuples_in_a_window_work_and_more_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A-30: the limit is that of a port, and is told with who emitted most."""
    for each in (5_000, 5_001):
        folder = tmp_path / str(each)
        rows = tuple((key, 1, 0) for key in range(8))
        script = [Turn(number=0, rows=(rows,), control=())]
        source = scripted(spark, folder, script, seed=IN_ORDER).key_by("k")
        emits = source.apply(
            partial(Talkative, each), name="emits", options=OperatorOptions(buckets=2)
        )
        made = multiplied(emits.key_by("k"), Multiply, buckets=2, counts=True)
        if each > 5_000:
            assert "has 10002 control tuples" in refused(made, folder / "ck")
            continue
        reported = collected(made.outputs["counts"].to_df(), folder / "ck")[0]
        assert sorted((row[1], row[3], row[6]) for row in reported if row[3] is not None) == [
            (bucket, "END_WINDOW", 10_000) for bucket in range(2)
        ]
