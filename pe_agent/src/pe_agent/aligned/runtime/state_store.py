"""The state of one bucket in Spark's store: the runner's own blobs in one value, others by name.

A window neither reads nor writes blobs that it does not touch. The one value is read in each
window, so the runner needs one call per bucket. Its format is a head in JSON, then the blobs that
the head names.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
        blobs: the runner's own blobs, by name.
        input_times: times of inputs, if any of them may be idle.
    """

    wake_at: int | None = None
    held_at: int | None = None
    last_watermark: int | None = None
    watermarks: dict[str, int] = field(default_factory=dict)
    holds: dict[str, int] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    input_times: InputTimes = field(default_factory=dict)

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
                "blobs": [[name, len(self.blobs[name])] for name in names],
            }
        )
        return b"".join([_LENGTH.pack(len(head)), head, *(self.blobs[name] for name in names)])


def read_bucket_state(data: bytes | None, operator: str) -> BucketState:
    """Read a bucket's state, empty without data; raise StateError if it is damaged or newer."""
    if data is None:
        return BucketState()
    try:
        (size,) = _LENGTH.unpack_from(data)
        at = _LENGTH.size + size
        head = json.loads(data[_LENGTH.size : at])
        if head["v"] > VERSION:
            raise StateError(
                f"state of operator {operator} has form {head['v']}, of a newer release; this"
                f" reads {VERSION}. Nothing was overwritten: start that release."
            )
        own = BucketState(head["wake"], head["held"], head["floor"], head["ticks"], head["holds"])
        own.input_times = head.get("seen", {})
        for name, length in head["blobs"]:
            own.blobs[name] = data[at : at + length]
            at += length
    except (KeyError, TypeError, ValueError, struct.error) as error:
        raise StateError(f"state of operator {operator} is damaged: {error!r}.") from error
    if at != len(data):
        raise StateError(f"state of operator {operator} is damaged: it has another length.")
    return own


class SparkBlobs(Mapping[str, bytes]):
    """The blobs of a bucket, as an operator's runner reads them."""

    def __init__(self, state: BucketState, values: MapState) -> None:
        self._state, self._values = state, values

    def __getitem__(self, name: str) -> bytes:
        if name.startswith(runner_state.RUNNER_PREFIX):
            return self._state.blobs[name]
        value = self._values.getValue((name,))
        if value is None:
            raise KeyError(name)
        return bytes(value[0])

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        if name.startswith(runner_state.RUNNER_PREFIX):
            return name in self._state.blobs
        return bool(self._values.containsKey((name,)))

    def __iter__(self) -> Iterator[str]:
        yield from self._state.blobs
        yield from sorted(str(key[0]) for key in self._values.keys())  # noqa: SIM118 - no mapping

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def apply(self, changes: Changes) -> None:
        """Write the changes of a window; None removes a blob."""
        for name, blob in changes.items():
            if name.startswith(runner_state.RUNNER_PREFIX):
                if blob is None:
                    self._state.blobs.pop(name, None)
                else:
                    self._state.blobs[name] = bytes(blob)
            elif blob is None:
                self._values.removeKey((name,))
            else:
                self._values.updateValue((name,), (bytes(blob),))
