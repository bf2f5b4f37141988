"""The state of an operator in Spark's store, by group: one value, and large blobs by name.

A group is a slot with many buckets, or one bucket in a checkpoint of an earlier release. Its value
is read and written once in a micro-batch. It holds what the runtime keeps for its buckets, the
runner's own blobs and, in a slot, the small blobs of operators. A window neither reads nor writes
large blobs that it does not touch.

The value of a bucket is a head in JSON, then the blobs that the head names. The value of a slot is
a head with its buckets, then their values. If several operators share a hop, the value is a head
with their names, then the value of a slot for each. Their large blobs have the names as prefixes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pe_agent.aligned.runtime.idleness import InputTimes
from pe_agent.aligned.runtime.progress_messages import (
    LatestEventTime,
    ProgressMessage,
    WatermarkHold,
    WatermarkUpdate,
)
from streambroker_core.control.operators.operator import Changes, StateError
from streambroker_core.control.runtime import runner_state
from streambroker_core.wire.encoding.canonical import canonical

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import MapState

VERSION = 1
SMALL_BYTES, SMALL_BYTES_OF_BUCKET = 1 << 10, 4 << 10
"""Size up to which a blob is kept in the value of its slot, and all small ones of a bucket."""
_LENGTH = struct.Struct("<I")


@dataclass(slots=True)
class BucketState:
    """State that the runtime keeps for a bucket; times are in microseconds.

    Attributes:
        wake_at: event time at which the bucket needs a window; None for never.
        held_at: earliest event time that waits in it; None for nothing.
        last_watermark: the watermark of its last window; it never goes back.
        watermarks: watermarks of the operators before this one, by name.
        holds: earliest event times that their buckets hold back, by operator and bucket.
        blobs: the runner's own blobs by name, and in a slot the small ones of the operator.
        large: names of the operator's other blobs; not kept in a group of one bucket.
        input_times: times of inputs, if any of them may be idle.
    """

    wake_at: int | None = None
    held_at: int | None = None
    last_watermark: int | None = None
    watermarks: dict[str, int] = field(default_factory=dict)
    holds: dict[str, int] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    input_times: InputTimes = field(default_factory=dict)
    large: set[str] = field(default_factory=set)

    def apply_progress(self, message: ProgressMessage, now: int) -> None:
        """Apply a progress message of an operator before this one, or of an input."""
        if isinstance(message, WatermarkUpdate):
            self.watermarks[message.operator] = max(
                message.watermark, self.watermarks.get(message.operator, 0)
            )
        elif isinstance(message, WatermarkHold):
            name = f"{message.operator}.{message.bucket}"
            if message.at is None:
                self.holds.pop(name, None)
            else:
                self.holds[name] = message.at
        elif isinstance(message, LatestEventTime):
            before = self.input_times.get(message.port, [None])[0]
            self.input_times[message.port] = [
                message.at if before is None else max(before, message.at),
                now,
            ]

    def window_watermark(
        self, spark_watermark: int | None, watermark_operators: frozenset[str]
    ) -> int | None:
        """Return the watermark of a window.

        The time is that of ``watermark_operators`` if there are any, else Spark's watermark.
        """
        times = [self.watermarks[name] for name in watermark_operators if name in self.watermarks]
        now = spark_watermark
        if watermark_operators:
            now = min(times) if len(times) == len(watermark_operators) else None
        if now is not None and self.holds:
            now = min(now, min(self.holds.values()) - 1)
        if now is None or self.last_watermark is None:
            return self.last_watermark if now is None else now
        return max(now, self.last_watermark)

    def write(self) -> bytes:
        """Return the state as bytes."""
        names = sorted(self.blobs)
        head = canonical(
            {
                "v": VERSION,
                "wake": self.wake_at,
                "held": self.held_at,
                "floor": self.last_watermark,
                "ticks": self.watermarks,
                "holds": self.holds,
                **({"seen": self.input_times} if self.input_times else {}),
                **({"large": sorted(self.large)} if self.large else {}),
                "blobs": [[name, len(self.blobs[name])] for name in names],
            }
        )
        return b"".join([_LENGTH.pack(len(head)), head, *(self.blobs[name] for name in names)])


def read_bucket_state(data: bytes | None, operator: str) -> BucketState:
    """Read a bucket's state, empty without data; raise StateError if it is damaged or newer."""
    if data is None:
        return BucketState()
    head, at = _read_head(data, operator)
    try:
        own = BucketState(head["wake"], head["held"], head["floor"], head["ticks"], head["holds"])
        own.input_times, own.large = head.get("seen", {}), set(head.get("large", ()))
        for name, length in head["blobs"]:
            own.blobs[name] = data[at : at + length]
            at += length
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(operator, repr(error)) from error
    if at != len(data):
        raise _damaged(operator, "it has another length")
    return own


def _read_head(data: bytes, operator: str) -> tuple[dict[str, Any], int]:
    """Return the head of a value, and where it ends."""
    try:
        (size,) = _LENGTH.unpack_from(data)
        at = _LENGTH.size + size
        head: dict[str, Any] = json.loads(data[_LENGTH.size : at])
        version = head["v"]
    except (KeyError, TypeError, ValueError, struct.error) as error:
        raise _damaged(operator, repr(error)) from error
    if version > VERSION:
        raise StateError(
            f"state of operator {operator} has form {version}, of a newer release; this reads"
            f" {VERSION}. Nothing was overwritten: start that release."
        )
    return head, at


def _damaged(operator: str, why: str) -> StateError:
    return StateError(f"state of operator {operator} is damaged: {why}.")


@dataclass(slots=True)
class _Entry:
    """A bucket of a slot: its state as written, and as read when it is first used."""

    written: bytes
    wake_at: int | None
    state: BucketState | None = None


class GroupState:
    """The states of the buckets of a group."""

    def __init__(
        self, data: bytes | None, operator: str, bucket: int | None, prefix: str = ""
    ) -> None:
        """Read the value of a group.

        Args:
            data: the value; None if the group has none yet.
            operator: name of the operator, for errors.
            bucket: the one bucket of the group; None for a slot.
            prefix: what the names of its large blobs begin with in the map state.

        Raises:
            StateError: the value is damaged, or of a newer release.
        """
        self._before, self._operator, self._bucket = data, operator, bucket
        self._prefix = prefix
        self._entries: dict[int, _Entry] = {}
        if bucket is not None:
            state = read_bucket_state(data, operator)
            self._entries[bucket] = _Entry(data or b"", state.wake_at, state)
        elif data is not None:
            self._read_slot(data)

    def _read_slot(self, data: bytes) -> None:
        head, at = _read_head(data, self._operator)
        if "operators" in head:
            raise _other_hop([self._operator], [name for name, _ in head["operators"]])
        try:
            for bucket, length, wake_at in head["buckets"]:
                self._entries[bucket] = _Entry(data[at : at + length], wake_at)
                at += length
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(self._operator, repr(error)) from error
        if at != len(data):
            raise _damaged(self._operator, "it has another length")

    def bucket(self, number: int) -> BucketState:
        """Return the state of a bucket, to be changed in place; empty if it has none yet."""
        entry = self._entries.get(number)
        if entry is None:
            entry = self._entries[number] = _Entry(b"", None, BucketState())
        if entry.state is None:
            entry.state = read_bucket_state(entry.written, self._operator)
        return entry.state

    def buckets(self) -> list[int]:
        """Return the buckets that have a state."""
        return list(self._entries)

    def due(self, watermark: int | None) -> set[int]:
        """Return the buckets whose time has come."""
        if watermark is None:
            return set()
        wakes = self._wakes().items()
        return {bucket for bucket, wake in wakes if wake is not None and wake <= watermark}

    def wake_at(self) -> int | None:
        """Return the earliest event time at which a bucket needs a window; None for never."""
        return min((wake for wake in self._wakes().values() if wake is not None), default=None)

    def _wakes(self) -> dict[int, int | None]:
        return {
            bucket: entry.wake_at if entry.state is None else entry.state.wake_at
            for bucket, entry in self._entries.items()
        }

    def blobs(self, bucket: int, values: MapState) -> SparkBlobs:
        """Return the blobs of a bucket."""
        number = bucket if self._bucket is None else None
        return SparkBlobs(self.bucket(bucket), values, number, self._prefix)

    def changed(self) -> bytes | None:
        """Return the value of the group; None if it is as it was read."""
        data = self.value()
        return None if data == self._before else data

    def value(self) -> bytes:
        """Return the value of the group."""
        for entry in self._entries.values():
            if entry.state is not None:
                entry.written, entry.wake_at = entry.state.write(), entry.state.wake_at
        if self._bucket is not None:
            return self._entries[self._bucket].written
        entries = sorted(self._entries.items())
        listed = [[bucket, len(one.written), one.wake_at] for bucket, one in entries]
        head = canonical({"v": VERSION, "buckets": listed})
        return b"".join([_LENGTH.pack(len(head)), head, *(one.written for _, one in entries)])


def read_groups(
    data: bytes | None, operators: Sequence[str], bucket: int | None
) -> list[GroupState]:
    """Read the value of a group of a hop, for each of its operators.

    Raises:
        StateError: as for ``GroupState``, or other operators share the hop in the checkpoint.
    """
    if len(operators) == 1:
        return [GroupState(data, operators[0], bucket)]
    parts: Mapping[str, bytes] = {} if data is None else split_hop(data, operators[0])
    if data is not None and list(parts) != list(operators):
        raise _other_hop(operators, list(parts))
    return [GroupState(parts.get(name) or None, name, bucket, f"{name}/") for name in operators]


def write_groups(
    groups: Sequence[GroupState], operators: Sequence[str], before: bytes | None
) -> bytes | None:
    """Return the value of a group of a hop; None if it is as it was read."""
    if len(groups) == 1:
        return groups[0].changed()
    values = [group.value() for group in groups]
    sizes = [[name, len(one)] for name, one in zip(operators, values, strict=True)]
    head = canonical({"v": VERSION, "operators": sizes})
    data = b"".join([_LENGTH.pack(len(head)), head, *values])
    return None if data == before else data


def split_hop(data: bytes, operator: str) -> dict[str, bytes]:
    """Return the values of the operators that share a hop, by name; empty for one operator.

    Raises:
        StateError: the value is damaged, or of a newer release; ``operator`` is named.
    """
    head, at = _read_head(data, operator)
    parts = {}
    for name, length in head.get("operators", ()):
        parts[name] = data[at : at + length]
        at += length
    if parts and at != len(data):
        raise _damaged(operator, "it has another length")
    return parts


def _other_hop(operators: Sequence[str], found: Sequence[str]) -> StateError:
    began = f"{', '.join(found)} in one hop" if found else "one operator in the hop"
    return StateError(
        f"the checkpoint has {began}, and the query has {', '.join(operators)}. Nothing was"
        " overwritten: declare stays_in_bucket in the same operators as when the checkpoint began,"
        " or start a new checkpoint."
    )


class SparkBlobs(Mapping[str, bytes]):
    """The blobs of a bucket, as an operator's runner reads them.

    ``bucket`` is its number in a slot; None in a group of one bucket, whose operator's blobs are
    all in the map state. There names begin with ``prefix``.
    """

    def __init__(
        self, state: BucketState, values: MapState, bucket: int | None, prefix: str = ""
    ) -> None:
        self._state, self._values, self._bucket = state, values, bucket
        self._prefix = prefix

    def __getitem__(self, name: str) -> bytes:
        if name in self._state.blobs:
            return self._state.blobs[name]
        value = None if self._is_absent(name) else self._values.getValue(self._key(name))
        if value is None:
            raise KeyError(name)
        return bytes(value[0])

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        if name in self._state.blobs or self._is_absent(name):
            return name in self._state.blobs
        return self._bucket is not None or bool(self._values.containsKey(self._key(name)))

    def __iter__(self) -> Iterator[str]:
        yield from self._state.blobs
        if self._bucket is not None:
            yield from sorted(self._state.large)
        else:
            yield from sorted(str(key[0]) for key in self._values.keys())  # noqa: SIM118 - no mapping

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def apply(self, changes: Changes) -> None:
        """Write the changes of a window; None removes a blob."""
        for name, blob in changes.items():
            if self._is_small(name, blob):
                if blob is None:
                    self._state.blobs.pop(name, None)
                else:
                    self._state.blobs[name] = bytes(blob)
                if name in self._state.large:
                    self._values.removeKey(self._key(name))
                    self._state.large.remove(name)
            elif blob is None:
                self._values.removeKey(self._key(name))
            else:
                self._state.blobs.pop(name, None)
                self._values.updateValue(self._key(name), (bytes(blob),))
                if self._bucket is not None:
                    self._state.large.add(name)

    def _key(self, name: str) -> tuple[str] | tuple[int, str]:
        return (name,) if self._bucket is None else (self._bucket, self._prefix + name)

    def _is_absent(self, name: str) -> bool:
        """Return whether the map state is known to lack a name."""
        if name.startswith(runner_state.RUNNER_PREFIX):
            return True
        return self._bucket is not None and name not in self._state.large

    def _is_small(self, name: str, blob: bytes | None) -> bool:
        """Return whether a blob belongs into the value of its group."""
        if name.startswith(runner_state.RUNNER_PREFIX):
            return True
        if self._bucket is None:
            return False
        if blob is None:
            return True
        others = sum(
            len(data)
            for one, data in self._state.blobs.items()
            if one != name and not one.startswith(runner_state.RUNNER_PREFIX)
        )
        return len(blob) <= SMALL_BYTES and others + len(blob) <= SMALL_BYTES_OF_BUCKET
