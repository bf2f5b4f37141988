"""Operators that share a hop in a micro-batch: what they emit, and the state that is committed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import pyarrow as pa
import pytest

from pe_agent.aligned.runtime.progress_messages import CLOCK_BUCKET
from pe_agent.aligned.runtime.state_store import BucketState, GroupState, read_groups, split_hop
from streambroker_core.control.operators.keyed_state import KeyedState
from streambroker_core.control.operators.operator import (
    Blobs,
    Changes,
    Operator,
    OperatorError,
    StateError,
)
from support.aligned.batches import Batches, Stage, batches


def rows(*keys: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"k": keys, "t": [0] * len(keys), "_seq": range(len(keys))},
        pa.schema([("k", pa.int64()), ("t", pa.timestamp("us", "UTC")), ("_seq", pa.int64())]),
    )


class Numbering(Operator):
    """Emits each row with how often its key has come; many keys make large blobs."""

    stays_in_bucket = True

    def __init__(self) -> None:
        self._state = KeyedState("keys")

    def restore(self, version: int, blobs: Blobs) -> None:
        self._state = KeyedState("keys", blobs)

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        counts = []
        for key in batch.column("k").to_pylist():
            name = key.to_bytes(8, "big")
            counts.append(int(self._state.get(name) or b"0") + 1)
            self._state.put(name, str(counts[-1]).encode())
        times = pa.array(counts, pa.int64()).cast(pa.timestamp("us", "UTC"))
        self.emit(pa.RecordBatch.from_arrays([batch.column("k"), times], ["k", "t"]))

    def snapshot(self) -> Changes:
        return self._state.changes()


class Odd(Numbering):
    """Emits the odd keys only, so that some windows have nothing for the next operator."""

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        odd = [key % 2 == 1 for key in batch.column("k").to_pylist()]
        super().process(port, batch.filter(pa.array(odd)))


class Moving(Numbering):
    """Adds to the key what a test says, so that rows leave their bucket."""

    step: ClassVar[int] = 0

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        keys = pa.array([key + self.step for key in batch.column("k").to_pylist()], pa.int64())
        super().process(port, pa.RecordBatch.from_arrays([keys, batch.column("t")], ["k", "t"]))


def untimed(monkeypatch: pytest.MonkeyPatch, *makes: Callable[[], Operator]) -> Batches:
    return batches(monkeypatch, *makes, has_watermark=False, watermark_operators=frozenset())


def shared(monkeypatch: pytest.MonkeyPatch, *makes: Callable[[], Operator]) -> Batches:
    chain = untimed(monkeypatch, *makes)
    first, *more = (one.hosted for one in chain.stages)
    following = tuple(replace(one, reads="out") for one in more)
    chain.stages[:] = [Stage(first, following)]
    return chain


Kept = dict[int, tuple[BucketState, dict[str, bytes]]]


def kept(stage: Stage, name: str, *, prefix: str = "") -> Kept:
    """Return the state of an operator by bucket: its own value, and its large blobs."""
    found: Kept = {}
    for (_, variable), data in stage.state.items():
        if variable == "slot":
            group = GroupState(split_hop(data, name).get(name, data), name, None)
            for bucket in set(group.buckets()) - {CLOCK_BUCKET}:
                large = {
                    one.removeprefix(f"blobs/{bucket}/{prefix}"): blob
                    for (_, one), blob in stage.state.items()
                    if one.startswith(f"blobs/{bucket}/{prefix}")
                }
                found[bucket] = (group.bucket(bucket), large)
    return found


def test_a_shared_hop_emits_and_keeps_what_separate_hops_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    makes = (Numbering, Odd, Numbering)
    one, apart = shared(monkeypatch, *makes), untimed(monkeypatch, *makes)
    for given in (range(2_000), [2, 4, 7, 7], [], [2, 4], range(1_999, 2_500)):
        batch = rows(*given) if given else None
        emitted = [one.batch(batch), apart.batch(batch)]
        assert emitted[0] == emitted[1]
    for at in range(3):
        name = f"op{at}"
        found = kept(one.stages[0], name, prefix=f"{name}/")
        assert found == kept(apart.stages[at], name)
        assert [sorted(large) for _, large in found.values()] != [[], []]


def test_a_window_that_fails_behind_the_first_operator_leaves_the_state_of_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chain = shared(monkeypatch, Moving, Numbering)
    chain.batch(rows(1, 2, 3))
    before = dict(chain.stages[0].state)
    monkeypatch.setattr(Moving, "step", 1)
    with pytest.raises(OperatorError, match=r"leaves its bucket for input in .* stays_in_bucket"):
        chain.batch(rows(*range(10)))
    assert chain.stages[0].state == before
    monkeypatch.setattr(Moving, "step", 0)
    assert [row["t"].microsecond for row in chain.batch(rows(2))] == [2]


def test_a_checkpoint_keeps_the_operators_that_share_its_hop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chain = shared(monkeypatch, Numbering, Odd)
    chain.batch(rows(1))
    (data, *_) = chain.stages[0].state.values()
    with pytest.raises(StateError, match="has op0, op1 in one hop, and the query has op0"):
        read_groups(data, ["op0"], None)
    with pytest.raises(StateError, match="has op0, op1 in one hop, and the query has op1, op0"):
        read_groups(data, ["op1", "op0"], None)
    with pytest.raises(StateError, match="damaged"):
        read_groups(data + b"x", ["op0", "op1"], None)
    alone = untimed(monkeypatch, Numbering)
    alone.batch(rows(1))
    (data, *_) = alone.stages[0].state.values()
    with pytest.raises(StateError, match="has one operator in the hop, and the query has op0, op1"):
        read_groups(data, ["op0", "op1"], None)
