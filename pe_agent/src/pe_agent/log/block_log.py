"""Interface of the log under a stream: what writing, reading and retention need of it."""

from collections.abc import Callable, Iterator
from typing import Protocol

from pe_agent.log.frames import Address, Payload
from pe_agent.log.segments import SegmentInfo


class BlockLog(Protocol):
    """Append-only frames in numbered segments; thread-safe. Errors are `LogError`."""

    def append(self, kind: int, meta: bytes, payload: Payload = b"") -> Address:
        """Append a frame; it is safe only after `sync`. Its address never changes."""

    def sync(self, upto: Address | None = None) -> None:
        """Wait until the frames up to `upto` (default: all) are safe."""

    def read(self, address: Address) -> memoryview:
        """Return a frame's verified payload."""

    def verify(self, number: int) -> Iterator[int]:
        """Read a segment with its payloads; yield the length of each valid frame in bytes."""

    def segments(self) -> list[SegmentInfo]:
        """Return the segments, oldest first; the last one grows."""

    def drop(self, keep: Callable[[int], bool]) -> list[SegmentInfo]:
        """Remove the segments for which `keep` is false, never the last one; return them."""
