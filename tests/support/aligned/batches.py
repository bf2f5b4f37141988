"""Micro-batches as Spark runs them around operators, without Spark: state, timers, watermark.

The product's own packer and processor are called as in Spark's tasks. A timer fires when the
watermark has reached it, after the rows of the batch; the watermark of a batch is that of the
largest event time before it; a batch in which anything raises leaves no state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from pe_agent.aligned.runtime import processor
from pe_agent.aligned.runtime.frames import EMITTED, ROWS, read_ipc
from pe_agent.aligned.runtime.packer import FramePacker, Repacker
from pe_agent.aligned.runtime.processor import GroupProcessor, OperatorConfig
from streambroker_core.control.operators.operator import Operator
from streambroker_core.control.runtime.buckets import Layout
from streambroker_core.control.tuples import Limits

SLOTS = 2
"""Partitions of the state."""


@dataclass
class Value:
    """Spark's value state of the group that is being processed."""

    stage: Stage
    name: str

    def get(self) -> tuple[Any, ...] | None:
        found = self.stage.state.get((self.stage.group, self.name))
        return None if found is None else (found,)

    def update(self, newValue: tuple[Any, ...]) -> None:  # noqa: N803
        self.stage.state[self.stage.group, self.name] = newValue[0]


@dataclass
class Values:
    """Spark's map state of the group that is being processed; records what is read and written."""

    stage: Stage
    name: str

    def _key(self, key: tuple[Any, ...]) -> tuple[int, str]:
        return (self.stage.group, "/".join([self.name, *map(str, key)]))

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:  # noqa: N802
        self.stage.calls.append(("get", key[-1]))
        found = self.stage.state.get(self._key(key))
        return None if found is None else (found,)

    def containsKey(self, key: tuple[Any, ...]) -> bool:  # noqa: N802
        return self._key(key) in self.stage.state

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:  # noqa: N802
        self.stage.calls.append(("put", key[-1]))
        self.stage.state[self._key(key)] = value[0]

    def removeKey(self, key: tuple[Any, ...]) -> None:  # noqa: N802
        self.stage.state.pop(self._key(key), None)

    def keys(self) -> Iterator[tuple[Any, ...]]:
        for bucket, name in list(self.stage.state):
            if bucket == self.stage.group and name.startswith(f"{self.name}/"):
                yield tuple(name.split("/")[1:])


@dataclass
class Stage:
    """One operator, and those that share its hop, with their state, as Spark keeps it."""

    hosted: OperatorConfig
    following: tuple[OperatorConfig, ...] = ()
    state: dict[tuple[int, str], bytes] = field(default_factory=dict)
    timers: set[tuple[int, int]] = field(default_factory=set)
    calls: list[tuple[str, str]] = field(default_factory=list)
    group: int = 0

    def getValueState(self, name: str, schema: str) -> Value:  # noqa: N802
        del schema
        return Value(self, name)

    def getMapState(self, name: str, key: str, value: str) -> Values:  # noqa: N802
        del key, value
        return Values(self, name)

    def registerTimer(self, at: int) -> None:  # noqa: N802
        self.timers.add((self.group, at))

    def deleteTimer(self, at: int) -> None:  # noqa: N802
        self.timers.discard((self.group, at))

    def group_of(self, bucket: int) -> int:
        """Return the group of a bucket; slots are numbered here in place of Spark's keys."""
        return bucket % SLOTS if self.hosted.slots else bucket

    def run(self, packed: Iterable[pa.RecordBatch], now: int, mark: int) -> pa.RecordBatch:
        """Run one batch; ``mark`` is Spark's watermark in milliseconds."""
        runs, rows = GroupProcessor(self.hosted, *self.following), list[dict[str, Any]]()
        runs.init(self)
        for batch in packed:
            rows += batch.to_pylist()
        times = SimpleNamespace(
            getCurrentProcessingTimeInMs=lambda: now, getCurrentWatermarkInMs=lambda: mark
        )
        out: list[pd.DataFrame] = []
        for group in sorted({self.group_of(row["bucket"]) for row in rows}):
            self.group = group
            given = pd.DataFrame(
                [
                    {**row, "now": now * 1000}
                    for row in rows
                    if self.group_of(row["bucket"]) == group
                ]
            )
            out += runs.handleInputRows((group,), iter([given]), times)
        for group, at in sorted(self.timers):
            if self.hosted.has_watermark and at <= mark and (group, at) in self.timers:
                self.group = group
                fired = SimpleNamespace(getExpiryTimeInMs=lambda at=at: at)
                out += runs.handleExpiredTimer(
                    key=(group,), timerValues=times, expiredTimerInfo=fired
                )
                self.timers.discard((group, at))
        found = [one for frame in out for one in frame.to_dict("records")]
        return pa.RecordBatch.from_pylist(found, schema=EMITTED)


@dataclass
class Batches:
    stages: list[Stage]
    number: int = -1
    mark: int = 0

    def batch(
        self, rows: pa.RecordBatch | None = None, output: str = "out"
    ) -> list[dict[str, Any]]:
        """Run a batch; return what its last operator hands out."""
        self.number += 1
        first = self.stages[0].hosted
        packer = FramePacker(
            layout=first.layouts["in"], event_time="t" if first.has_watermark else None
        )
        before = deepcopy([(stage.state, stage.timers) for stage in self.stages])
        given = list(packer([rows] if rows is not None else []))
        latest = [time.value for one in given for time in one.column("event_time") if time.is_valid]
        emitted = pa.RecordBatch.from_pylist([], schema=EMITTED)
        try:
            for at, stage in enumerate(self.stages):
                if at:
                    repack = Repacker(layout=stage.hosted.layouts["in"], output="out")
                    given = list(repack([emitted]))
                emitted = stage.run(given, 1_000 + self.number, self.mark)
        except Exception:
            for stage, (state, timers) in zip(self.stages, before, strict=True):
                stage.state, stage.timers = state, timers
            self.number -= 1
            raise
        self.mark = max([self.mark, *(time // 1000 for time in latest)])
        return [
            row
            for one in emitted.to_pylist()
            if one["kind"] == ROWS and one["output"] == output
            for made in read_ipc(one["payload"])
            for row in made.to_pylist()
        ]


def batches(
    monkeypatch: pytest.MonkeyPatch, *makes: Callable[[], Operator], **more: Any
) -> Batches:
    made: list[Stage] = []
    for at, make in enumerate(makes):
        fields: dict[str, Any] = {
            "make": make,
            "name": f"op{at}",
            "buckets": 2,
            "order_by": None,
            "limits": Limits(),
            "layouts": {"in": Layout(port="in", buckets=2, key=(("k", pa.int64()),))},
            "schemas": {"out": pa.schema([("k", pa.int64()), ("t", pa.timestamp("us", "UTC"))])},
            "has_watermark": not at,
            "watermark_operators": frozenset({f"op{at - 1}"}) if at else frozenset(),
            **more,
        }
        made.append(Stage(OperatorConfig(**fields)))
    chain = Batches(made)
    properties: dict[str, Callable[[], object]] = {
        "sql.streaming.queryId": lambda: "q",
        "streaming.sql.batchId": lambda: chain.number,
    }
    monkeypatch.setattr(processor, "_require_property", lambda name: str(properties[name]()))
    return chain
