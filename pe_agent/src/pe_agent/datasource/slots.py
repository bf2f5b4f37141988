"""Slots: the buckets of an operator in groups, one group for each partition of its state.

Spark calls an operator once for each group of a micro-batch, and reads and writes its state by
group. A slot holds many buckets, so a task has one group for any number of buckets. The slot of a
bucket follows from the number of partitions, which Spark keeps in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

import numpy as np
import pyarrow as pa

from pe_agent.datasource.packer import PACKED_DDL
from pe_agent.spark.worker import task_property
from streambroker_core.control.operators.operator import OperatorError

SLOT = "slot"
PARTITIONS_PROPERTY = "spark.sql.streaming.internal.stateStore.partitions"
"""Property of a task with the number of partitions of the query's state."""
_SEED, _MASK = 42, 0xFFFFFFFF

PackStep = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def packed_ddl(*, slots: bool) -> str:
    """Return the columns of packed rows, with or without their slots."""
    return f"{SLOT} int, {PACKED_DDL}" if slots else PACKED_DDL


@dataclass(frozen=True, kw_only=True)
class PackSteps:
    """Steps that pack the rows of a task, one after the other; with ``slots`` also the slots."""

    steps: tuple[PackStep, ...]
    slots: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the steps in a task."""
        for step in self.steps:
            batches = step(batches)
        yield from add_slots(batches) if self.slots else batches


def add_slots(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield packed rows with their slots as first column.

    Raises:
        OperatorError: called outside of a task of a streaming query.
    """
    keys = np.array(slot_keys(_count_partitions()), np.int32)
    for batch in batches:
        if batch.num_rows:
            buckets = batch.column("bucket").to_numpy()
            slots = pa.array(keys[np.mod(buckets, len(keys))])
            yield pa.RecordBatch.from_arrays(
                [slots, *batch.columns],
                schema=pa.schema([pa.field(SLOT, pa.int32()), *batch.schema]),
            )


@lru_cache(maxsize=8)
def slot_keys(partitions: int) -> tuple[int, ...]:
    """Return a key for each partition, such that Spark's hash of the key is that partition."""
    found: dict[int, int] = {}
    for key in count():
        found.setdefault(spark_hash(key) % partitions, key)
        if len(found) == partitions:
            break
    return tuple(found[partition] for partition in range(partitions))


def spark_hash(key: int) -> int:
    """Return Spark's hash of an integer column, a signed 32-bit Murmur3; `key` is not negative."""
    mixed = key * 0xCC9E2D51 & _MASK
    mixed = _rotate(mixed, 15) * 0x1B873593 & _MASK
    found = (_rotate(_SEED ^ mixed, 13) * 5 + 0xE6546B64) & _MASK
    found ^= 4  # bytes of an integer
    found = (found ^ found >> 16) * 0x85EBCA6B & _MASK
    found = (found ^ found >> 13) * 0xC2B2AE35 & _MASK
    found ^= found >> 16
    return found - (1 << 32) if found >> 31 else found


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _MASK


def _count_partitions() -> int:
    partitions = task_property(PARTITIONS_PROPERTY)
    if partitions is None:
        raise OperatorError(
            f"the task has no {PARTITIONS_PROPERTY}: aligned operators run in streaming queries"
            " only."
        )
    return int(partitions)
