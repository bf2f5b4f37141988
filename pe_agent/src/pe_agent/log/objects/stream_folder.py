"""Objects of one stream in a bucket, as its owner writes and deletes them."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence

from pe_agent.log import index, segments
from pe_agent.log.log_writer import SyncedSegment
from pe_agent.log.objects.bucket import Bucket
from pe_agent.log.objects.chain import Chain
from pe_agent.log.objects.direct import FOLDER
from pe_agent.log.objects.pieces import Piece, index_key, index_of, segment_key

PART_BYTES = 8 << 20
"""Most bytes of one part. A frame may lie in several."""


class StreamFolder:
    """What an owner has written of a stream, and what it inherited. For one thread.

    Only `inherited` may be called by others.
    """

    def __init__(self, bucket: Bucket, owner: int, inherited: Sequence[Piece]) -> None:
        self._bucket = bucket
        self._owner = owner
        self._chain = Chain(bucket, "parts", owner)
        self._lock = threading.Lock()
        self._inherited = list(inherited)
        self._parts: dict[int, list[int]] = {}
        """Numbers of own parts, by segment."""
        self._obsolete: list[int] = []
        """Own links that are not needed: their segment is uploaded as a whole, or dropped."""
        self._last_try: tuple[tuple[int, int], int] = (0, 0), 0
        """Segment and start of the part that was last begun, and its bytes."""

    @property
    def url(self) -> str:
        """URL of the folder."""
        return self._bucket.url

    def inherited(self) -> list[Piece]:
        """Return the pieces of earlier owners that are still needed."""
        with self._lock:
            return list(self._inherited)

    def first_in_parts(self) -> int | None:
        """Return the first segment of which there are parts, None without any."""
        numbers = [*self._parts, *(one.segment for one in self.inherited() if not one.is_whole)]
        return min(numbers, default=None)

    def is_in_parts(self, number: int) -> bool:
        """Return whether there are parts of a segment."""
        return bool(self._parts.get(number)) or any(
            one.segment == number and not one.is_whole for one in self.inherited()
        )

    def put_parts(self, segment: SyncedSegment, start: int) -> Iterator[int]:
        """Write what follows ``start`` as parts; yield the offset behind each.

        Raises:
            FileNotFoundError: the segment was dropped.
            Superseded: another agent has taken over.
            BucketError: the store is unavailable; call again with the last offset.
        """
        with segment.path.open("rb") as file:
            sequence = segments.read_header(file.fileno(), segment.path).sequence
            while start < segment.end:
                if self._last_try[0] != (segment.number, start):
                    size = min(PART_BYTES, segment.end - start)
                    self._last_try = (segment.number, start), size
                # The same bytes again, if the last try failed.
                body = os.pread(file.fileno(), self._last_try[1], start)
                head = {"segment": segment.number, "start": start, "sequence": sequence}
                part = self._chain.append(head, body)
                self._parts.setdefault(segment.number, []).append(part)
                start += len(body)
                yield start

    def put_whole(self, segment: SyncedSegment) -> None:
        """Write a full segment of which there are no parts; raises as `put_parts` does."""
        self._put_segment(segment)
        # Only a link of the chain shows that no later owner has taken over.
        self._obsolete.append(self._chain.append({"whole": segment.number}))

    def merge(self, segment: SyncedSegment) -> None:
        """Write a full segment in place of its parts; raises as `put_parts` does."""
        try:
            self._put_segment(segment)
        except FileNotFoundError:
            return  # dropped meanwhile; `delete` follows
        # Before the parts go: only this shows that no later owner has inherited them.
        self._obsolete.append(self._chain.append({"whole": segment.number}))
        self._delete_parts(segment.number)

    def _put_segment(self, segment: SyncedSegment) -> None:
        """Write a segment after its index, so that a segment never lacks one."""
        with segment.path.open("rb") as file:
            data = file.read(segment.end)
        with contextlib.suppress(FileNotFoundError):
            entries = index.index_path(segment.path).read_bytes()
            self._bucket.put(index_key(segment.number, self._owner), entries)
        self._bucket.put(segment_key(segment.number, self._owner), data)

    def delete(self, number: int) -> None:
        """Delete a segment that the log has dropped."""
        self._delete_parts(number)
        keys = (index_key(number, self._owner), segment_key(number, self._owner))
        self._bucket.delete(keys)

    def _delete_parts(self, number: int) -> None:
        """Delete what is inherited of a segment; own parts become obsolete."""
        old = [one for one in self.inherited() if one.segment == number]
        keys = [one.key for one in old]
        keys += [index_of(one.key) for one in old if one.is_whole]
        self._bucket.delete(keys)
        with self._lock:
            self._inherited = [one for one in self._inherited if one.segment != number]
        self._obsolete += self._parts.pop(number, ())

    def delete_obsolete(self) -> None:
        """Delete obsolete links, but for the chain's last, by which a later owner finds its end."""
        last = self._chain.next - 1
        self._chain.delete(one for one in self._obsolete if one != last)
        self._obsolete = [one for one in self._obsolete if one == last]

    def delete_all(self) -> None:
        """Delete everything, but for the last link of each owner: they fence its writer."""
        self._chain.append({"removed": True})
        parts = sorted(self._bucket.list("parts"))
        last = {key.partition("/")[0]: key for key in parts}  # of each owner
        self._bucket.delete(f"parts/{key}" for key in parts if key not in last.values())
        for folder in ("segments", FOLDER):
            self._bucket.delete(f"{folder}/{key}" for key in self._bucket.list(folder))
