"""Uploads of one stream's log to object storage.

Synced bytes of the growing segment become parts of a chain, in order. When a segment is full, it
is uploaded as it is, with its index, and its parts are deleted. A full segment of which no part was
uploaded becomes one object at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from pe_agent.log import segments
from pe_agent.log.errors import Superseded
from pe_agent.log.log import UploadStatus
from pe_agent.log.log_writer import SyncedSegment
from pe_agent.log.objects.bucket import Bucket, BucketError
from pe_agent.log.objects.pieces import Piece, Recorded
from pe_agent.log.objects.stream_folder import StreamFolder
from pe_agent.log.segments import SegmentInfo

Position = tuple[int, int]
"""Segment number and offset; ordered like the frames."""
_MARKS_PER_AGE = 16
"""The age of what waits is exact to this part of it."""

log = logging.getLogger("pe_agent")


class UploadSource(Protocol):
    """Log as the uploader sees it."""

    def synced_segments(self, since: int) -> list[SyncedSegment]:
        """Return the segments from number ``since`` on, oldest first."""

    def segments(self) -> list[SegmentInfo]:
        """Return all segments, oldest first."""

    def fail(self, error: Exception) -> None:
        """Refuse further frames."""


class LogUploader:
    """Uploads one log. Thread-safe.

    Attributes:
        uploaded: position up to which the bucket has all frames.
        error: why the last upload failed; None after one that succeeded.
        superseded: another agent has taken over the stream.
        is_required: `wait` waits for the bucket, as ``durability: stored`` demands.
    """

    def __init__(
        self,
        bucket: Bucket,
        owner: int,
        source: UploadSource,
        *,
        uploaded: Position = (0, 0),
        inherited: Sequence[Piece] = (),
        request: Callable[[LogUploader], bool],
        before: Callable[[], None] = lambda: None,
    ) -> None:
        """Upload what is behind ``uploaded``.

        Args:
            bucket: folder of the stream.
            owner: number of this agent's ownership.
            source: the log.
            uploaded: end of what the bucket has.
            inherited: what earlier owners left there.
            request: has `flush` called soon, by another thread; returns False, and does nothing,
                while uploads have not begun.
            before: writes a snapshot. Called before the first part, before objects are deleted, and
                where a segment was removed before all of it was uploaded; may raise what `flush`
                handles.
        """
        self.uploaded = uploaded
        self.error: str | None = None
        self.superseded = False
        self.is_required = False
        self._flushing = threading.Lock()
        self._folder = StreamFolder(bucket, owner, inherited)
        self._source = source
        self._request = request
        self._before = before
        self._has_snapshot = False
        """Whether a snapshot has all that readers of the next part need."""
        self._begun: SyncedSegment | None = None
        """The segment that was uploaded last, or in part."""
        self._deferred: int | None = 0
        """The last segment that was left to a later upload; None once there may be none."""
        self._dropped: list[int] = []
        self._changed = threading.Condition()
        self._closed = self._removed = False
        self._marks: deque[tuple[Position, float]] = deque()
        """Ends of what was synced at some times, oldest first, that are not uploaded."""

    # -- for any thread ----------------------------------------------------------------------

    def require_snapshot(self) -> None:
        """Have a snapshot written before the next part: its rows need what the store has now."""
        self._has_snapshot = False

    def request(self) -> None:
        """Have what is synced uploaded soon."""
        self._request(self)

    def request_all(self) -> None:
        """Have all that is synced uploaded, also what would be deferred: no further call comes."""
        self._deferred = None
        self._request(self)

    def wait(self, position: Position) -> None:
        """Wait until the bucket has all frames up to a position, if that `is_required`.

        Raises:
            Superseded: another agent has taken over.
            BucketError: the uploader was closed before.
        """
        if not self.is_required or self.uploaded >= position or not self._request(self):
            return
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self.uploaded >= position
                    or not self.is_required
                    or self.superseded
                    or self._closed
                )
            )
            if self.uploaded >= position or not self.is_required:
                return
        if self.superseded:
            raise Superseded(self.error or "")
        raise BucketError(f"{self._folder.url}: the agent stopped before the upload ended")

    def drop(self, numbers: Collection[int]) -> None:
        """Delete segments from the bucket, soon."""
        with self._changed:
            self._dropped += numbers
        self._request(self)

    def remove(self) -> None:
        """Delete all of the stream from the bucket, soon, but for what fences its writers."""
        with self._changed:
            self._removed = True
        self._request(self)

    def record(self) -> Recorded:
        """Return what a snapshot must have of the stream."""
        numbers = [one.number for one in self._source.segments()]
        return Recorded(self._folder.inherited(), numbers)

    def status(self) -> UploadStatus:
        """Return how far the uploads are."""
        number, offset = self.uploaded
        waiting, end = 0, self.uploaded
        for one in self._source.synced_segments(number):
            start = offset if one.number == number else segments.HEADER_BYTES
            waiting += max(0, one.end - start)
            end = one.number, one.end
        seconds = self._waited_for(end if waiting else self.uploaded)
        return UploadStatus(waiting, seconds, self.error, self.superseded)

    def _waited_for(self, end: Position) -> float:
        """Return for how long the first of what is synced up to ``end`` has waited, at least.

        What came between two calls counts from the second one.
        """
        now = time.monotonic()
        with self._changed:
            marks = self._marks
            if end <= self.uploaded:
                marks.clear()
                return 0.0
            while marks and marks[0][0] <= self.uploaded:
                marks.popleft()
            # Sparser, the longer the oldest has waited, so that there are some hundreds at most.
            if not marks or now - marks[-1][1] > (now - marks[0][1]) / _MARKS_PER_AGE:
                marks.append((end, now))
            return now - marks[0][1]

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is uploaded or deleted."""
        return self._closed

    def close(self) -> None:
        """Release waiting callers; nothing more is uploaded."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # -- for the uploading thread --------------------------------------------------------------

    def flush(self) -> None:
        """Upload what is synced, merge full segments, delete dropped ones.

        Errors of the bucket are kept in `error`; the next call continues. A superseded log fails.
        """
        if self.superseded or self._closed:
            return
        try:
            with self._flushing:
                if self._removed:
                    self._before()
                    self._folder.delete_all()
                    self.close()
                else:
                    self._upload_all()
        except Superseded as error:
            self._record(str(error), superseded=True)
            log.error("%s", error)
            self._source.fail(error)
            return
        except BucketError as error:
            if self.error is None:
                log.warning("upload stopped, and is tried again: %s", error)
            self._record(str(error))
            return
        if self.error is not None:
            log.info("%s: uploads continue", self._folder.url)
        self._record(None)

    def fail(self, error: Exception) -> None:
        """Record an unexpected error; the next request tries again."""
        log.error("upload to %s failed", self._folder.url, exc_info=error)
        self._record(repr(error))

    def _record(self, error: str | None, *, superseded: bool = False) -> None:
        with self._changed:
            self.error = error
            self.superseded = self.superseded or superseded
            self._changed.notify_all()

    def _upload_all(self) -> None:
        if not self._has_snapshot:
            # Set first: what is required meanwhile may not be in this snapshot.
            self._has_snapshot = True
            try:
                self._before()
            except BaseException:
                self._has_snapshot = False
                raise
        # Before the segments are listed: frames of these may have been moved into later ones.
        dropped = list(self._dropped)
        first = self._folder.first_in_parts()
        since = self.uploaded[0] if first is None else min(first, self.uploaded[0])
        synced = self._source.synced_segments(since)
        due = [one for one in synced if one.number >= self.uploaded[0]]
        if self._is_filling(due):
            self._deferred = due.pop().number
        for segment in due:
            self._upload(segment)
        for segment in synced:
            if segment.is_full and self._folder.is_in_parts(segment.number):
                self._folder.merge(segment)
        if dropped:
            self._before()
        for number in dropped:
            self._folder.delete(number)
            with self._changed:
                self._dropped.remove(number)
        self._folder.delete_obsolete()

    def _is_filling(self, due: Sequence[SyncedSegment]) -> bool:
        """Return whether to leave the growing segment to the next upload, at most once.

        If the segment before was filled since the last upload, this one will be before the next.
        It is then uploaded once, instead of in parts and again when they are merged.
        """
        if self.is_required or self._deferred is None or len(due) < 2 or due[-1].is_full:
            return False
        return due[-2].number > self.uploaded[0] and due[-1].number != self._deferred

    def _upload(self, segment: SyncedSegment) -> None:
        begun, (number, offset) = self._begun, self.uploaded
        start = offset if number == segment.number else segments.HEADER_BYTES
        is_done = begun is not None and begun.is_full and (begun.number, begun.end) <= self.uploaded
        if segment.number > number and not is_done:
            self._before()  # the segment before may be dropped, with only a part uploaded
        self._begun = segment
        try:
            if segment.is_full and start == segments.HEADER_BYTES:
                self._folder.put_whole(segment)
            else:
                for end in self._folder.put_parts(segment, start):
                    self._advance((segment.number, end))
        except FileNotFoundError:  # dropped meanwhile
            self._before()
        self._advance((segment.number, max(start, segment.end)))

    def _advance(self, position: Position) -> None:
        with self._changed:
            self.uploaded = max(self.uploaded, position)
            self._changed.notify_all()
