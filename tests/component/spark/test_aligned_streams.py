"""The wrapper over a streaming DataFrame: control survives every operation, or it is refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from new_factor import SetFactor
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users write it

from pe_agent.aligned.runtime.frames import encode_control
from pe_agent.aligned.runtime.hosting import CHANGELOG, prepare_session
from streambroker.operators import (
    AlignedError,
    ControlFile,
    OperatorOptions,
    Stream,
    apply,
    control_stream,
    stream,
)
from streambroker_core.control.tuples import Delivery, make_logged_tuple
from support.aligned.graphs import Node, chain, names_of, reported, sink, turns
from support.aligned.operators import Multiply, Totals
from support.aligned.spark import IN_ORDER, collected, on_spark, renumbered, run, scripted, seen

PASS = Node(name="pass", answer="forward")


def twice(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    return [batch, batch]


def test_control_keeps_place_and_window_through_every_operation(
    spark: SparkSession, tmp_path: Path
) -> None:
    script = renumbered(turns("D1 I(a) D2 D3 E(b)", "D4"))
    second = renumbered(turns(["", "I(c) D7"], ["", "E(d)"]))
    source = scripted(spark, tmp_path / "one", script, tasks=1, seed=IN_ORDER)
    graph = chain(sink())
    plain = (
        source.where("v != 2")
        .with_columns({"v": F.expr("if(isnull(v), raise_error('a row without v'), v + 10)")})
        .select("*", F.expr("cast(if(isnull(v), 'no number', '0') AS int)").alias("zero"))
        .map_batches(lambda batch: batch.select(["k", "v", "t"]), "k bigint, v bigint, t timestamp")
        .union(scripted(spark, tmp_path / "two", second, tasks=1, seed=IN_ORDER))
    )
    (only,) = on_spark(graph, plain, tmp_path / "seen").values()
    log = seen(tmp_path / "seen", run(only, tmp_path / "ck"))
    words = reported(log, names_of([*script, *second]))
    assert words == {0: "D11 a D13 c D7 b", 1: "D14 d"}


@pytest.mark.long
def test_a_function_on_batches_may_make_any_number_of_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    script = renumbered(turns("D1 I(a) D2 I(b)"))
    source = scripted(spark, tmp_path, script, tasks=1, seed=IN_ORDER)
    first = on_spark(chain(PASS), source, tmp_path / "first")["pass"]
    (only,) = on_spark(chain(sink()), first.map_batches(twice), tmp_path / "seen").values()
    log = seen(tmp_path / "seen", run(only, tmp_path / "ck"))
    assert reported(log, names_of(script)) == {0: "D1 D1 a D2 D2 b"}


@pytest.mark.slow
def test_control_goes_around_code_that_knows_nothing_of_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    script = renumbered(turns("B(a) D1 E(b) I(c) D2", "D3 E(d)"))

    def code(frame: DataFrame) -> DataFrame:
        assert frame.columns == ["k", "v", "t"]
        frame = frame.where(F.udf(lambda v: v > 0, "boolean")("v"))  # cannot do with None
        return frame.select("k", F.explode(F.array("v", F.col("v") + 5)).alias("v"), "t")

    around = scripted(spark, tmp_path, script).transform(code)
    (only,) = on_spark(chain(sink()), around, tmp_path / "seen").values()
    log = seen(tmp_path / "seen", run(only, tmp_path / "ck"))
    first, second = (reported(log, names_of(script))[at].split() for at in (0, 1))
    assert (first[0], sorted(first[1:5]), first[5:]) == ("a", ["D1", "D2", "D6", "D7"], ["c", "b"])
    assert second == ["D3", "D8", "d"]


def even(value: int) -> bool:
    return value % 2 == 0


def of_even(column: str) -> Column:
    """Call it, which cannot do with None."""
    return F.udf(even, "boolean", useArrow=False)(column)


def files(spark: SparkSession, folder: Path, count: int, rows: int = 8) -> Stream:
    for number in range(count):
        spark.range(number * rows, (number + 1) * rows).selectExpr(
            "id % 4 AS k", "id AS v"
        ).coalesce(1).write.mode("append").parquet(str(folder))
    frame = spark.readStream.schema("k bigint, v bigint").parquet(str(folder))
    return stream(frame)


def test_a_stream_that_is_not_imported_gets_control_from_a_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A-26: what holds from the beginning, what holds from the next window on, and the report."""
    control = ControlFile(tmp_path / "control")
    first = control.append(SetFactor(10), delivery="BEGIN")
    second = control.append(SetFactor(3), delivery=Delivery.END_WINDOW)
    found: dict[int, dict[str, list[Row]]] = {}

    def take(frames: dict[str, DataFrame], window: int) -> None:
        found[window] = {tag: frame.collect() for tag, frame in frames.items()}

    def window(files_: int) -> None:
        feed = files(spark, tmp_path / "in", files_).union(control_stream(spark, control.path))
        made = feed.key_by("k").apply(
            Multiply,
            schema=Multiply.SCHEMA,
            options=OperatorOptions(buckets=4, report=True, counts=True),
        )
        made.foreach_batch(
            take, checkpoint=tmp_path / "ck", trigger={"availableNow": True}
        ).awaitTermination()

    window(1)
    control.append(SetFactor(4), delivery=Delivery.END_WINDOW)
    window(1)
    values = {at: sorted(row.v for row in reported_["out"]) for at, reported_ in found.items()}
    assert values == {0: [10 * v for v in range(8)], 1: [3 * v for v in range(8)]}
    applied = sorted((row.bucket, row.id, row.delivery) for row in found[0]["applied"])
    assert applied == [
        (bucket, one.id, one.delivery.value) for bucket in range(4) for one in (first, second)
    ]
    assert {row.window for row in found[1]["applied"]} == {1}
    counts = [(row.delivery, row.bucket, row.delivered) for row in found[0]["counts"]]
    assert sorted(one for one in counts if one[0] is not None) == [
        (delivery, bucket, 1) for delivery in ("BEGIN", "END_WINDOW") for bucket in range(4)
    ]
    assert sum(delivered for delivery, _, delivered in counts if delivery is None) == 8


@pytest.mark.long
def test_thousands_of_tuples_in_a_control_file_come_in_several_windows(
    spark: SparkSession, tmp_path: Path
) -> None:
    control = ControlFile(tmp_path / "control")
    with control.path.open("ab") as file:
        for seq in range(10_001):
            one = make_logged_tuple(control.log, seq, type_="SetFactor", text='{"factor":2}')
            file.write(encode_control(one) + b"\n")
    feed = files(spark, tmp_path / "in", 1).union(control_stream(spark, control.path))
    made = feed.apply(
        Multiply, schema=Multiply.SCHEMA, options=OperatorOptions(buckets=1, counts=True)
    )
    found: dict[int, dict[str | None, int]] = {}

    def take(frames: dict[str, DataFrame], window: int) -> None:
        found[window] = {row.delivery: row.delivered for row in frames["counts"].collect()}

    query = made.foreach_batch(take, checkpoint=tmp_path / "ck", trigger={"availableNow": True})
    query.awaitTermination()
    assert found == {0: {None: 8, "BEGIN": 9_000}, 1: {"BEGIN": 1_001}}


def test_all_outputs_of_a_window_go_to_one_function(spark: SparkSession, tmp_path: Path) -> None:
    both = files(spark, tmp_path / "one", 1).union(files(spark, tmp_path / "two", 1))
    totals = both.key_by("k").apply(
        Totals, schemas=Totals.SCHEMAS, options=OperatorOptions(buckets=2)
    )
    found: dict[int, dict[str, list[tuple[int, ...]]]] = {}

    def take(frames: dict[str, DataFrame], window: int) -> None:
        found[window] = {tag: [tuple(row) for row in f.collect()] for tag, f in frames.items()}

    totals.foreach_batch(
        take, checkpoint=tmp_path / "ck", trigger={"availableNow": True}
    ).awaitTermination()
    assert list(found) == [0]
    assert sum(total for _, total in found[0]["sums"]) == 56
    assert sorted(value for _, value in found[0]["odd"]) == [1, 1, 3, 3, 5, 5, 7, 7]


def test_formats_are_found_in_the_session_of_the_frame(spark: SparkSession, tmp_path: Path) -> None:
    other = spark.newSession()
    spark.createDataFrame([], "a int")  # makes it the active one again
    control = ControlFile(tmp_path / "control")
    assert control_stream(other, control.path).spark is other
    assert SparkSession.getActiveSession() is spark


# -- refused before anything starts ----------------------------------------------------------


@pytest.fixture
def rate(spark: SparkSession) -> Stream:
    return stream(spark.readStream.format("rate").load())


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (lambda s: s.select(F.explode(F.array("value"))), "does not return one row for each"),
        (lambda s: s.select(F.sum("value")), "does not return one row for each"),
        (lambda s: s.select("value", F.lit(1).alias("_seq")), "are reserved"),
        (lambda s: s.with_columns({"_control": F.lit(None)}), "are reserved"),
        (lambda s: s.key_by("nobody"), "the key nobody is not a column of the stream"),
        (lambda s: s.with_watermark("value", "1 second"), "an event time is a timestamp"),
        (lambda s: s.union(s.select("value")), "have the columns"),
        (lambda s: s.transform(lambda frame: None), "it has to return a streaming DataFrame"),
        (lambda s: s.transform(lambda frame: frame, immediate="maybe"), "'refuse' or 'end'"),
        (lambda s: s.publish("out", checkpoint="ck"), "publish needs a PE"),
        (lambda s: s.apply(Multiply()), "pass its class"),
        (lambda s: s.apply(partial(Multiply)), "give it one with name="),
        (lambda s: s.apply(Totals), "columns are given for none"),
        (lambda s: s.apply(Totals, schemas=Totals.SCHEMAS).outputs["none"], "has no output none"),
        (
            lambda s: s.apply(Multiply).apply(Multiply),
            "the query has an operator Multiply already",
        ),
        (
            lambda s: s.apply(Multiply, name="a").with_watermark("timestamp", "1 second"),
            "before its first operator",
        ),
        (lambda s: apply(Multiply, {"x": s}), "has the inputs in, and is given"),
        (lambda s: s.apply(Multiply).where(of_even("value")), "where calls the .* even"),
        (
            lambda s: s.apply(Multiply).with_columns({"v": F.coalesce(of_even("value"))}),
            "with_columns calls the Python function even, but control tuples are among the rows",
        ),
        (
            lambda s: s.apply(Multiply).where("value > 0").select(of_even("value")),
            "select calls the Python function even",
        ),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_where_it_is_said(rate: Stream, act: object, why: str) -> None:
    assert callable(act)
    with pytest.raises(AlignedError, match=why):
        act(rate)


def test_python_functions_may_be_called_where_no_control_is_among_the_rows(rate: Stream) -> None:
    made = rate.where(of_even("value")).with_columns({"even": of_even("value")})
    assert made.select("even", of_even("value")).schema().names == ["even", "even(value)"]


def test_other_operations_of_spark_are_not_there_and_say_what_to_do(rate: Stream) -> None:
    assert repr(rate) == "Stream(timestamp timestamp, value bigint)"
    with pytest.raises(AttributeError, match=r"a Stream has no aply\. Did you mean 'apply'\?"):
        _ = rate.aply
    with pytest.raises(AttributeError, match=r"no outputs\. Outputs are of an operator"):
        _ = rate.outputs
    with pytest.raises(AttributeError, match=r"no groupBy: Spark would lose.*transform"):
        rate.groupBy("value")


def values(of: DataFrame, checkpoint: Path) -> dict[int, list[int]]:
    """Run a frame to its end; return ``v`` by window."""
    rows = collected(of.select("v"), checkpoint)
    return {window: [row[0] for row in some] for window, some in rows.items()}


@pytest.mark.slow
def test_one_frame_feeds_several_queries_each_with_its_own_state(
    spark: SparkSession, tmp_path: Path
) -> None:
    control = ControlFile(tmp_path / "control")
    source = scripted(spark, tmp_path, renumbered(turns("D1", "D2"))).key_by("k")
    both = source.union(control_stream(spark, tmp_path / "control"))
    made = both.apply(Multiply, schema=Multiply.SCHEMA)
    assert (
        repr(made) == "OperatorStream('Multiply': k bigint, v bigint, window bigint; outputs out)"
    )
    frame = made.to_df()
    assert values(frame, tmp_path / "one") == {0: [1], 1: [2]}
    control.append(SetFactor(3), delivery=Delivery.BEGIN)
    assert values(frame.where("v > 3"), tmp_path / "two") == {0: [], 1: [6]}
    assert values(frame, tmp_path / "one") == {2: []}
    assert values(frame, tmp_path / "two") == {}


@pytest.mark.parametrize("reported", [None, "false"])
def test_commits_write_changes_unless_the_session_says_otherwise(
    spark: SparkSession, reported: str | None
) -> None:
    before = spark.conf.get(CHANGELOG, None)
    spark.conf.unset(CHANGELOG)
    try:
        if reported is not None:
            spark.conf.set(CHANGELOG, reported)
        prepare_session(spark)
        assert spark.conf.get(CHANGELOG) == (reported or "true")
    finally:
        spark.conf.set(CHANGELOG, before or "true")


def test_a_frame_that_is_not_streaming_or_has_a_reserved_column_is_refused(
    spark: SparkSession,
) -> None:
    with pytest.raises(AlignedError, match="is not streaming"):
        stream(spark.range(3))
    reserved = spark.readStream.format("rate").load().withColumn("_seq_of_mine", F.lit(1))
    with pytest.raises(AlignedError, match="column _seq_of_mine"):
        stream(reserved)
