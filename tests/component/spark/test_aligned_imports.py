"""Imports with control tuples as streams: what an operator is given, and by which import."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from new_factor import SetFactor
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users write it

from streambroker import PE
from streambroker.operators import AlignedError, OperatorOptions, OperatorStream, Stream, Target
from streambroker_core.control.runtime.buckets import Layout, bucket_for_key
from support.aligned.operators import Multiply, Talkative
from support.processes.waiting import until
from support.spark.session import SECONDS, Session

COLUMNS = "k bigint, v bigint"
AT_ONCE = {"availableNow": True}
BY_KEY = Layout(port="in", buckets=3, key=(("k", pa.int64()),))


class Numbers:
    """A folder of files, and a query that exports their rows."""

    def __init__(self, jobs: Session, pe: PE, port: str, kind: str) -> None:
        self._folder = jobs.folder / f"files-{port}"
        self._folder.mkdir()
        self._files = 0
        frame = jobs.spark.readStream.schema(COLUMNS).parquet(str(self._folder))
        query = pe.publish(
            frame,
            port,
            properties={"kind": kind},
            checkpoint=jobs.folder / f"ck-{port}",
        )
        jobs.queries.append(query)

    def give(self, *values: int) -> None:
        table = pa.table({"k": [value % 5 for value in values], "v": list(values)})
        hidden = self._folder / f".{self._files}.tmp"
        pq.write_table(table, hidden)
        hidden.rename(self._folder / f"{self._files}.parquet")
        self._files += 1


class Windows:
    """What an operator with a report handed out: values and types of tuples, window by window."""

    def __init__(self) -> None:
        self.values: dict[int, list[int]] = {}
        self.applied: dict[int, set[str]] = {}
        self.buckets: dict[str, set[int]] = {}

    def __call__(self, frames: dict[str, DataFrame], window: int) -> None:
        self.values[window] = sorted(row.v for row in frames["out"].collect())
        reported = frames["applied"].collect()
        self.applied[window] = {row.id for row in reported}
        for row in reported:
            self.buckets.setdefault(row.id, set()).add(row.bucket)

    @property
    def all(self) -> list[int]:
        return sorted(value for values in list(self.values.values()) for value in values)

    def await_values(self, *values: int) -> None:
        until(lambda: self.all == sorted(values), SECONDS, f"values {values}, not {self.all}")


def multiplied(stream: Stream, **more: Any) -> OperatorStream:
    name = more.pop("name", None)
    options = OperatorOptions(**{"buckets": 3, "report": True, **more})
    return stream.key_by("k").apply(Multiply, name=name, schema=Multiply.SCHEMA, options=options)


def run(jobs: Session, made: OperatorStream) -> Windows:
    windows = Windows()
    jobs.queries.append(made.foreach_batch(windows, checkpoint=jobs.folder / "ck-in"))
    return windows


def subscribed(pe: PE, kind: str = "a", **more: Any) -> Stream:
    settings = {"start": "earliest", "schema": COLUMNS, **more}
    return pe.subscribe_stream(f"in-{kind}", f'kind == "{kind}"', **settings)


def test_an_operator_gets_the_packed_rows_of_its_import_with_control(jobs: Session) -> None:
    exporter, importer = jobs.pe("feed"), jobs.pe("alerts")
    numbers = Numbers(jobs, exporter, "out", "a")
    stream = subscribed(importer, filter="v != 3", columns=["v", "k"])
    made = multiplied(stream)
    plan = made.to_df()._jdf.queryExecution().analyzed().toString()
    assert plan.count("MapInArrow") == 1, "the one behind the operator"
    made = multiplied(stream)
    windows = run(jobs, made)
    numbers.give(1, 2, 3)
    windows.await_values(1, 2)
    sent = exporter.exports["out"].send(SetFactor(10), delivery="BEGIN")
    sent.wait_applied(SECONDS)
    numbers.give(3, 4)
    windows.await_values(1, 2, 40)
    own = importer.operators.send(SetFactor(7), delivery="BEGIN", operator="Multiply")
    own.wait_applied(SECONDS)
    numbers.give(5)
    windows.await_values(1, 2, 40, 35)
    assert windows.buckets == {sent.id: {0, 1, 2}, own.id: {0, 1, 2}}
    assert sum(len(ids) for ids in windows.applied.values()) == 2

    bucket = {key: bucket_for_key((key,), BY_KEY) for key in range(5)}
    aimed = importer.operators.send(
        SetFactor(100), delivery="BEGIN", target=Target(operator="Multiply", key=(3,))
    )
    aimed.wait_applied(SECONDS)
    numbers.give(*range(10, 15))
    changed = [v * (100 if bucket[v % 5] == bucket[3] else 7) for v in range(10, 15)]
    windows.await_values(1, 2, 40, 35, *changed)
    assert windows.buckets[aimed.id] == {bucket[3]}


def steps(stream: Stream) -> Stream:
    """Every operation in front of an operator."""
    return (
        stream.where("v != 3")
        .select("k", (F.col("v") + 1).alias("v"))
        .with_columns({"v": F.col("v") - 1})
        .map_batches(lambda batch: batch)
    )


def code(stream: Stream) -> Stream:
    """Code of Spark that control goes around."""
    return stream.transform(lambda frame: frame.where("v != 3").dropDuplicates(["v"]))


def union(stream: Stream) -> Stream:
    """Two ways that come together."""
    return stream.where("v < 3").union(stream.where("v > 3"))


def first(stream: Stream) -> Stream:
    """Another operator."""
    return multiplied(stream, name="first", report=False).where("v != 3").select("k", "v")


@pytest.mark.slow
@pytest.mark.parametrize(
    "through", [steps, *(pytest.param(one, marks=pytest.mark.long) for one in (code, union, first))]
)
def test_control_of_an_import_passes_whatever_comes_before_the_operator(
    jobs: Session, through: Callable[[Stream], Stream]
) -> None:
    exporter, importer = jobs.pe("feed"), jobs.pe("alerts")
    numbers = Numbers(jobs, exporter, "out", "a")
    windows = run(jobs, multiplied(through(subscribed(importer))))
    numbers.give(1, 2, 3)
    windows.await_values(1, 2)
    sent = exporter.exports["out"].send(SetFactor(1), delivery="BEGIN")
    own = importer.operators.send(SetFactor(1), delivery="BEGIN")
    sent.wait_applied(SECONDS)
    own.wait_applied(SECONDS)
    numbers.give(3, 5)
    windows.await_values(1, 2, 5)
    assert windows.buckets == {sent.id: {0, 1, 2}, own.id: {0, 1, 2}}
    assert sum(len(ids) for ids in windows.applied.values()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("idle", ["a", pytest.param("b", marks=pytest.mark.long)])
def test_of_two_imports_one_brings_the_control_log_also_when_it_or_the_other_is_idle(
    jobs: Session, idle: str
) -> None:
    exporter, importer = jobs.pe("feed"), jobs.pe("alerts")
    numbers = {kind: Numbers(jobs, exporter, f"out-{kind}", kind) for kind in "ab"}
    both = subscribed(importer, "a").union(subscribed(importer, "b"))
    assert both.has_control_log
    windows = run(jobs, multiplied(both))
    busy = numbers["b" if idle == "a" else "a"]
    busy.give(1)
    windows.await_values(1)
    own = importer.operators.send(SetFactor(10), delivery="BEGIN")
    own.wait_applied(SECONDS)
    busy.give(2)
    windows.await_values(1, 20)
    assert windows.buckets == {own.id: {0, 1, 2}}


@pytest.mark.long
def test_imports_that_catch_up_bring_more_tuples_between_them_than_one_query_may_emit(
    jobs: Session,
) -> None:
    exporter, relay, importer = jobs.pe("feed"), jobs.pe("relay"), jobs.pe("alerts")
    for kind in "ab":
        frame = jobs.spark.readStream.schema(COLUMNS).parquet(str(folder_of(jobs, kind)))
        talking = exporter.stream(frame).apply(
            lambda: Talkative(6_000), name=kind, options=OperatorOptions(buckets=1)
        )
        checkpoint = jobs.folder / f"ck-{kind}"
        query = talking.publish(
            f"out-{kind}", properties={"kind": kind}, checkpoint=checkpoint, trigger=AT_ONCE
        )
        assert query.awaitTermination(int(SECONDS))
    both = subscribed(relay, "a").union(subscribed(relay, "b"))
    made = multiplied(both, name="relay", buckets=1, report=False)
    checkpoint = jobs.folder / "ck-relay"
    query = made.publish("all", properties={"kind": "all"}, checkpoint=checkpoint, trigger=AT_ONCE)
    assert query.awaitTermination(int(SECONDS))
    received: dict[int, int] = {}

    def count(frames: dict[str, DataFrame], window: int) -> None:
        received[window] = sum(
            row.received for row in frames["counts"].where("delivery IS NOT NULL").collect()
        )

    stream = subscribed(importer, "all", schema=Multiply.SCHEMA).key_by("k")
    made = stream.apply(Multiply, options=OperatorOptions(buckets=1, counts=True))
    assert made.foreach_batch(
        count, checkpoint=jobs.folder / "ck-in", trigger=AT_ONCE
    ).awaitTermination(int(SECONDS))
    assert max(received.values()) == sum(received.values()) == 12_000


def folder_of(jobs: Session, kind: str) -> Path:
    """Return a folder with a file of one row."""
    folder = jobs.folder / f"files-{kind}"
    folder.mkdir()
    pq.write_table(pa.table({"k": [1], "v": [1]}), folder / "0.parquet")
    return folder


def test_two_imports_that_are_open_do_not_both_bring_the_control_log(jobs: Session) -> None:
    importer = jobs.pe("alerts")
    one, other = (subscribed(importer, kind) for kind in "ab")
    assert one.union(other.where("v > 0")).plan.carrier is other.plan.carrier
    with pytest.raises(AlignedError, match=r"in-a and in-b of one query both.*control_log=False"):
        one.where("v > 0").union(other.where("v > 0"))
    with pytest.raises(AlignedError, match="is open with the control log"):
        one.where("v > 0").without_control_log()
    silent = subscribed(importer, "b", control_log=False)
    assert not silent.has_control_log
    assert one.where("v > 0").union(silent.where("v > 0")).has_control_log
