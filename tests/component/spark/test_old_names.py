"""A program of the release before runs with its old names, and is warned of each."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pe_agent import aligned, cep, side
from support.aligned.operators import Multiply
from support.patterns.spark import DDL, Given
from support.sides.feeds import TRADES, Feed
from support.sides.rates import put_rates
from support.spark.session import SECONDS, Session

COLUMNS = "k bigint, v bigint"


@pytest.fixture(autouse=True)
def warned() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DeprecationWarning)
        yield caught


def names(warned: list[warnings.WarningMessage]) -> set[str]:
    """Return what the warnings of this file name as deprecated."""
    own = [str(one.message) for one in warned if one.filename == __file__]
    return {message.partition(" is deprecated: use ")[0] for message in own}


def test_an_operator_of_old_names_gives_its_outputs_by_tag(
    spark: SparkSession, tmp_path: Path, warned: list[warnings.WarningMessage]
) -> None:
    feed = Feed(spark, tmp_path / "in", COLUMNS)
    feed.put(k=[1, 2], v=[3, 4])
    made = feed.stream.through(lambda frame: frame).key_by("k").control_aware(
        Multiply, schema=Multiply.SCHEMA, buckets=2, report="reached", counts="counted"
    )  # fmt: skip
    found: dict[int, dict[str, int]] = {}

    def take(window: int, frames: dict[str, DataFrame]) -> None:
        found[window] = {tag: frame.count() for tag, frame in frames.items()}

    query = made.for_each_window(take, checkpoint=tmp_path / "ck", trigger={"availableNow": True})
    query.awaitTermination()
    assert list(found[0]) == ["out", "reached", "counted"]
    assert found[0]["out"] == 2
    assert made["reached"].schema().names == made.outputs["reached"].schema().names
    by_function = aligned.control_aware(Multiply, feed.stream.key_by("k"), schema=Multiply.SCHEMA)
    assert list(by_function.outputs) == ["out"]
    assert names(warned) == {
        "Stream.through", "Stream.control_aware", "for_each_window(f(id, rows))",
        "stream['reached']", "pe_agent.aligned.control_aware",
    }  # fmt: skip


def test_a_second_query_needs_no_request_any_more(
    spark: SparkSession, tmp_path: Path, warned: list[warnings.WarningMessage]
) -> None:
    made = Feed(spark, tmp_path / "in", COLUMNS).stream.apply(Multiply, schema=Multiply.SCHEMA)
    made.to_df()
    made.to_df()
    assert names(warned) == set()
    assert made.to_df(again=True).columns == ["k", "v", "window"]
    assert names(warned) == {"again="}
    query = made.foreach_batch(lambda *_: None, checkpoint=tmp_path / "ck", again=False)
    query.stop()
    assert [str(one.message)[:6] for one in warned if one.filename == __file__] == ["again="] * 2


def test_patterns_and_side_inputs_of_old_names_have_their_old_settings(
    spark: SparkSession, tmp_path: Path, warned: list[warnings.WarningMessage]
) -> None:
    rows = spark.readStream.schema(DDL).parquet(str(tmp_path))
    shape = cep.Pattern.begin("A").where('n == "A"')
    timed: Any = {"event_time": "t", "watermark": "1 second", "key": "user", "buckets": 2}
    one = cep.pattern(rows, shape, **timed)
    control = tmp_path / "rules"
    several = cep.pattern_processors(rows, Given([]), control=control, tell=list, **timed)
    for found in (one, several):
        assert found.schema()["events"].dataType.typeName() == "string", "matches are JSON"
    assert several.processors.figures() == several.rules.metrics() == []
    several.rules.close()
    assert control.exists()
    assert list(one.outputs) == list(several.outputs) == ["matches", "timeouts", "late", "errors"]
    with pytest.raises(aligned.AlignedError, match="a watermark without an event time"):
        cep.pattern(rows, shape, watermark="1 second")

    put_rates(tmp_path / "rates", EUR=1.0)
    with side.TableStore(tmp_path / "store") as store:
        table = store.folder("rates", tmp_path / "rates")
        trades = Feed(spark, tmp_path / "trades", TRADES).stream
        sides = trades.with_side_inputs(rates=side.side_map(table, key="currency"))
        made = sides.enrich("rates", on="currency").to_stream(figures=True, buckets=2)
        assert list(made.outputs) == ["out", "errors", "late", "figures"]
        with pytest.raises(
            TypeError, match=r"to_stream\(\) got .* 'bucket'. Did you mean 'buckets'"
        ):
            sides.to_stream(bucket=2)
    assert {
        "pe_agent.cep.pattern", "pe_agent.cep.pattern_processors", "PatternStream.processors",
        "rules.figures", "Stream.with_side_inputs", "figures=, buckets= of to_stream",
    } <= names(warned)  # fmt: skip


def test_an_import_and_control_tuples_of_old_names_work_and_wait_as_before(
    jobs: Session, warned: list[warnings.WarningMessage]
) -> None:
    pe = jobs.pe("alerts")
    settings: Any = {"schema": COLUMNS, "control": True, "control_log": False}
    stream = pe.subscribe("in", 'kind == "a"', **settings)
    assert isinstance(stream, aligned.Stream)
    assert not stream.has_control_log
    sent = pe.send_control({"type": "set", "payload": 1}, delivery="BEGIN")
    assert sent.wait_applied(0.0) is False
    assert sent.state()["applied"] is False
    assert isinstance(pe.aligned(stream.to_df()), aligned.Stream)
    frame = jobs.spark.readStream.format("rate").load()
    pe.publish(frame, "out", properties={"a": 1}, checkpoint=jobs.folder / "ck").stop()
    assert (
        pe.emit_control("out", {"type": "set", "payload": 1}, delivery="BEGIN").wait_applied(0.0)
        is False
    )
    change = pe.exports["out"].set_properties({"a": 2})
    assert change.wait_applied(SECONDS)["routes"] == []
    assert change.programmed() is change.applied() is True
    assert pe.set_import_filter("in", "k > 1") == 0
    assert {
        "subscribe(control=)", "PE.send_control", "PE.emit_control", "PE.aligned",
        "Change.programmed", "PE.set_import_filter",
    } <= names(warned)  # fmt: skip
