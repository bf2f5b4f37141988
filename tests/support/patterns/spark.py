"""Rules on Spark, window by window: each batch of rows is a file, and rules change between them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pe_agent.datasource.schemas import as_arrow_schema
from streambroker.operators import Stream, stream
from streambroker.patterns import PatternProcessorManager, PatternStream
from support.processes.waiting import until
from support.spark.feeds import put_file

DDL = "t timestamp, n string, user string, item string"
SCHEMA = as_arrow_schema(DDL)
Reported = dict[str, list[dict[str, Any]]]
"""Rows by output."""


class Given:
    """A discoverer whose rules a test says; `Rules.manager` takes in later ones."""

    def __init__(self, first: Sequence[Any]) -> None:
        self._first, self._ended = first, threading.Event()

    def initial_pattern_processors(self) -> Sequence[Any]:
        return self._first

    def discover_pattern_processor_updates(self, manager: PatternProcessorManager) -> None:
        del manager
        self._ended.wait()

    def close(self) -> None:
        self._ended.set()


class Play:
    """A query with rules that is fed and looked at by a test."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        make: Callable[[Stream, Sequence[Any]], PatternStream],
        *,
        ddl: str = DDL,
        schema: pa.Schema = SCHEMA,
    ) -> None:
        self.spark, self.folder, self._make = spark, folder, make
        self._ddl, self._schema = ddl, schema
        self.checkpoint = folder / "ck"
        self.windows: dict[int, Reported] = {}
        self.made: PatternStream | None = None
        self.query: StreamingQuery | None = None
        self._files = 0
        (folder / "in").mkdir(parents=True, exist_ok=True)

    @property
    def rules(self) -> PatternProcessorManager:
        assert self.made is not None
        return self.made.rules.manager

    def start(self, first: Sequence[Any]) -> None:
        """Start the query, with what the source of rules has now."""
        source = self.spark.readStream.schema(self._ddl).option("maxFilesPerTrigger", 1)
        self.made = self._make(stream(source.parquet(str(self.folder / "in"))), first)
        self.query = self.made.foreach_batch(self._take, checkpoint=self.checkpoint)

    def _take(self, frames: dict[str, DataFrame], window: int) -> None:
        rows = {tag: [row.asDict() for row in frame.collect()] for tag, frame in frames.items()}
        self.windows[window] = rows

    def rows(self, rows: Iterable[dict[str, Any]], *, wait: bool = True) -> None:
        """Feed a batch of rows, and wait until it and what follows of it is done."""
        assert self.query is not None
        table = pa.Table.from_pylist(list(rows), schema=self._schema)
        put_file(self.folder / "in", f"{self._files:05}", table, order=self._files)
        self._files += 1
        if wait:
            self.query.processAllAvailable()

    def stop(self) -> None:
        """Stop the query; the next `start` goes on from its checkpoint."""
        assert self.query is not None
        assert self.made is not None
        self.query.stop()
        processors = self.made.rules
        until(lambda: not processors.running, 10.0, "the rules are closed with the query")

    def output(self, output: str = "matches") -> list[dict[str, Any]]:
        return [row for window in sorted(self.windows) for row in self.windows[window][output]]


def letters(row: dict[str, Any]) -> str:
    """Return the letters of a match, in order."""
    return "".join(event["n"][-1] for event in events_of(row))


def events_of(row: Any) -> list[Any]:
    """Return the events of a match, in the order of time ``t``, where they have one.

    The stages of a map come in any order.
    """
    stages = row["events"]
    taken = stages.values() if isinstance(stages, dict) else stages
    events = [event for each in taken for event in each or ()]
    return sorted(events, key=lambda event: 0 if event["t"] is None else event["t"].timestamp())
