"""Find out what a log holds after a stop of any kind, and cut what nobody was promised.

What an index has is taken from it; all behind that is scanned, before anything is changed. A bad
frame is one of three:

- behind the last mark, so never acknowledged: a torn tail. After a loss of
  power whole frames may follow it, because a disk writes in any order. All of
  it is cut.
- before a mark, and whole frames follow: damage in the middle. Refused.
- before a mark, and nothing whole follows: cut like a torn tail, for there is
  nothing else to save, and counted in `Recovery.lost_bytes`.

A file that is shorter than what was safe in it was cut off. What is left of it is kept, and so are
the segments behind it, like those behind a file that was deleted. Which epochs that has cost is
known to the owner of the log.
"""

import contextlib
import itertools
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from pe_agent.log import frames, index, segments
from pe_agent.log.atomic_file import sync_directory
from pe_agent.log.errors import LogCorrupt
from pe_agent.log.segments import Segment

Progress: TypeAlias = Callable[[int, int], None]
"""Called with (bytes done, bytes in all), at most once per 8 MiB and at the end."""
Verify: TypeAlias = Literal["tail", "all"]

MAX_TORN_FILES = 4
_REPORT_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 20
_log = logging.getLogger("pe_agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What opening a log found.

    Attributes:
        frames: frames the log holds.
        bytes: bytes of these frames.
        scanned_bytes: bytes of those that were looked at, for want of an index.
        cut_bytes: bytes of the torn tail that was cut, without preallocated room.
        cut_segment: the segment it was cut from; None if nothing was cut.
        lost_bytes: part of `cut_bytes` that had been safe on disk once and was
            acknowledged; above 0 only if the disk lost what it had confirmed.
        seconds: how long it took.
    """

    frames: int
    bytes: int
    scanned_bytes: int
    cut_bytes: int
    cut_segment: int | None
    lost_bytes: int
    seconds: float


@dataclass(slots=True, kw_only=True)
class _ScannedSegment:
    """One segment as it was found."""

    path: Path
    number: int
    first_sequence: int
    mark: int
    runs: list[index.FrameRun]
    index_bytes: int
    entries: index.Entries
    data_end: int
    damage: str | None
    is_loss_reported: bool = False
    """Frames behind the last one are lost, and a start before this one has reported that."""
    is_truncated: bool = False
    """The file is shorter than what was safe in it."""

    @property
    def end(self) -> int:
        """The offset behind the last good frame."""
        return self.entries.end

    @property
    def sequence(self) -> int:
        """The sequence due next."""
        return self.entries.sequence + len(self.entries)

    @property
    def frames(self) -> int:
        """The good frames."""
        return self.sequence - self.first_sequence


@dataclass(slots=True, kw_only=True)
class RecoveredLog:
    """A directory's segments in order, ready for use, and the sequence due next.

    `runs` are the frames they hold, by segment.
    """

    segments: list[Segment]
    sequence: int
    report: Recovery
    runs: list[tuple[int, list[index.FrameRun | index.Entries]]]


@dataclass(slots=True, kw_only=True)
class _ProgressMeter:
    """Turns bytes read into calls of `progress`."""

    total: int
    progress: Progress | None
    done: int = 0
    _reported: int = field(default=0)

    def advance(self, done: int) -> None:
        self.done = done
        if self.progress and (done - self._reported >= _REPORT_BYTES or done == self.total):
            self._reported = done
            self.progress(done, self.total)


def recover(directory: Path, *, verify: Verify, progress: Progress | None) -> RecoveredLog:
    """Scan a log's directory, cut its torn tail and return what is left.

    Raises:
        LogCorrupt: acknowledged frames in the middle are damaged; nothing changed.
        LogVersionUnknown: a newer release wrote here; nothing changed.
    """
    started = time.perf_counter()
    found = _scan_all(directory, verify, progress)
    _accept_truncated(found)
    cut = _first_damage(found)
    cut_bytes = lost = 0
    if cut is not None:
        cut_bytes, lost = _measure_cut(found, cut)
        _cut(directory, found, cut)
        _log_cut(found[cut], cut_bytes, lost)
        found = found[: cut + 1]
    for one in found[:-1]:
        if one.is_truncated:
            _record_truncation(directory, one)
    _rename_stumps(directory)
    _remove_garbage(directory, found)
    report = Recovery(
        frames=sum(one.frames for one in found),
        bytes=sum(one.end - segments.HEADER_BYTES for one in found),
        scanned_bytes=sum(one.end - one.entries.begin for one in found),
        cut_bytes=cut_bytes,
        cut_segment=found[-1].number if cut is not None else None,
        lost_bytes=lost,
        seconds=time.perf_counter() - started,
    )
    return RecoveredLog(
        segments=[_to_segment(one) for one in found],
        sequence=found[-1].sequence if found else 0,
        report=report,
        runs=[(one.number, [*one.runs, one.entries]) for one in found],
    )


def _accept_truncated(scanned: list[_ScannedSegment]) -> None:
    """Take segments that were cut off for the shorter ones they are, where others follow."""
    for at, one in enumerate(scanned[:-1]):
        if (
            one.is_truncated
            and any(later.frames for later in scanned[at + 1 :])
            and not _has_later_frame(one)
        ):
            one.damage = None


def _record_truncation(directory: Path, segment: _ScannedSegment) -> None:
    """Remove what is left of a frame at the end of a segment, and note that frames are lost."""
    fd = os.open(segment.path, os.O_RDWR | os.O_CLOEXEC)
    try:
        segments.mark_frames_lost(fd, segment.number, segment.first_sequence)
        os.fsync(fd)
    finally:
        os.close(fd)
    _cut(directory, [segment], 0)
    lost = segment.mark - segment.end
    _log.error("segment %s was cut off: %d bytes of its frames are lost", segment.path, lost)


def _rename_stumps(directory: Path) -> None:
    """Rename segments that were cut off within their first page: they say nothing."""
    for path in _find_stumps(directory):
        path.rename(_torn_path(path))
        _log.error("segment %s was cut off: all its frames are lost", path)
    _prune_torn_files(directory)


def _find_stumps(directory: Path) -> list[Path]:
    paths = [segments.segment_path(directory, n) for n in segments.list_numbers(directory)]
    return [path for path in paths if path.stat().st_size < segments.HEADER_BYTES]


def _to_segment(scanned: _ScannedSegment) -> Segment:
    return Segment(
        scanned.path,
        scanned.number,
        unindexed=scanned.entries,
        frames=scanned.frames,
        mark=min(scanned.mark, scanned.end),
        index_bytes=scanned.index_bytes,
    )


def _remove_garbage(directory: Path, scanned: list[_ScannedSegment]) -> None:
    for leftover in directory.glob(f"*{segments.NEW_SUFFIX}"):
        leftover.unlink()
    indices = {index.index_path(one.path) for one in scanned if one.index_bytes}
    for leftover in directory.glob(f"*{index.SUFFIX}"):
        if leftover not in indices:
            leftover.unlink()


def _scan_all(directory: Path, verify: Verify, progress: Progress | None) -> list[_ScannedSegment]:
    stumps = set(_find_stumps(directory))
    paths = [
        segments.segment_path(directory, number) for number in segments.list_numbers(directory)
    ]
    paths = [path for path in paths if path not in stumps]
    meter = _ProgressMeter(total=sum(path.stat().st_size for path in paths), progress=progress)
    found: list[_ScannedSegment] = []
    for path in paths:
        last = path == paths[-1]
        found.append(_scan(path, verify=verify, last=last, meter=meter))
    for one, after in itertools.pairwise(found):
        _check_chain(one, after)
    for one in found:
        if one.end < one.mark and not one.damage:
            one.damage = f"the frames up to {one.mark} were safe and are gone"
    return found


def _scan(path: Path, *, verify: Verify, last: bool, meter: _ProgressMeter) -> _ScannedSegment:
    base = meter.done
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        header = segments.read_header(fd, path)
        window = frames.BufferedFile(fd, os.fstat(fd).st_size)
        entries = index.Entries(segments.HEADER_BYTES, header.sequence)
        runs: list[index.FrameRun] = []
        index_bytes = 0
        if verify != "all":
            entries, runs, index_bytes = _read_index(path, fd, entries, window.size)
        # What is in the index was safe before, whatever the mark says.
        mark = max(header.mark, entries.begin)
        scan = frames.Scan(
            window,
            path,
            start=entries.begin,
            sequence=entries.sequence,
            verify_from=0 if last or verify == "all" else mark,
        )
        for found in scan:
            head = found.header
            entries.add(head.kind, head.length, found.meta, head.crc)
            meter.advance(base + scan.end)
        data_end = window.data_end(scan.end) if last or scan.damage else scan.end
        meter.advance(base + window.size)
    finally:
        os.close(fd)
    if data_end > scan.end and not scan.damage:
        scan.damage = "data behind a blank"
    return _ScannedSegment(
        path=path,
        number=header.number,
        first_sequence=header.sequence,
        mark=mark,
        runs=runs,
        index_bytes=index_bytes,
        entries=entries,
        data_end=data_end,
        damage=scan.damage,
        is_loss_reported=header.is_loss_reported,
        is_truncated=window.size < header.mark,
    )


def _read_index(
    path: Path, fd: int, first: index.Entries, size: int
) -> tuple[index.Entries, list[index.FrameRun], int]:
    """Return what is to be scanned, behind the runs of the index, and the bytes these take."""
    runs, taken = index.read(
        path,
        fd,
        number=int(path.stem),
        begin=first.begin,
        sequence=first.sequence,
        size=size,
    )
    if not runs:
        return first, [], 0
    return index.Entries(runs[-1].end, runs[-1].sequence + runs[-1].frames), runs, taken


def _check_chain(segment: _ScannedSegment, following: _ScannedSegment) -> None:
    """Note as damage of `segment` that frames between it and `following` are missing.

    Dropped segments leave a gap in the numbers, so a gap in the sequence is
    damage only between neighbours.
    """
    neighbours = following.number == segment.number + 1 and not segment.is_loss_reported
    if segment.damage or (
        following.first_sequence == segment.sequence
        if neighbours
        else following.first_sequence >= segment.sequence
    ):
        return
    segment.damage = (
        f"frame {segment.sequence} was due, the next segment begins with {following.first_sequence}"
    )


def _first_damage(scanned: list[_ScannedSegment]) -> int | None:
    return next((at for at, one in enumerate(scanned) if one.damage), None)


def _measure_cut(scanned: list[_ScannedSegment], cut: int) -> tuple[int, int]:
    """Return (bytes to cut, bytes of them that had been acknowledged).

    Raises:
        LogCorrupt: the damage is in the middle.
    """
    bad, later = scanned[cut], scanned[cut + 1 :]
    acknowledged = max(0, bad.mark - bad.end)
    acknowledged += sum(one.mark - segments.HEADER_BYTES for one in later)
    if acknowledged and (any(one.frames for one in later) or _has_later_frame(bad)):
        raise LogCorrupt(bad.path, offset=bad.end, reason=bad.damage or "")
    torn = bad.data_end - bad.end
    torn += sum(one.data_end - segments.HEADER_BYTES for one in later)
    return torn, acknowledged


def _has_later_frame(segment: _ScannedSegment) -> bool:
    """Whether a whole frame follows the damage in the same segment."""
    fd = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        window = frames.BufferedFile(fd, os.fstat(fd).st_size)
        after = frames.find_whole_frame(
            window, segment.path, segment.end, sequence=segment.sequence
        )
        return after is not None
    finally:
        os.close(fd)


def _cut(directory: Path, scanned: list[_ScannedSegment], cut: int) -> None:
    """Cut the log behind the last good frame; an interruption leaves the same to do again."""
    for one in reversed(scanned[cut + 1 :]):
        index.index_path(one.path).unlink(missing_ok=True)
        one.path.rename(_torn_path(one.path))
    bad = scanned[cut]
    with contextlib.suppress(OSError):  # a copy for inspection; the disk may be full
        _save_torn(bad)
    fd = os.open(bad.path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.ftruncate(fd, bad.end)
        segments.write_mark(fd, min(bad.mark, bad.end))
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_directory(directory)
    _prune_torn_files(directory)


def _torn_path(path: Path) -> Path:
    return path.with_name(path.name + segments.TORN_SUFFIX)


def _save_torn(segment: _ScannedSegment) -> None:
    with segment.path.open("rb") as source, _torn_path(segment.path).open("wb") as copy:
        source.seek(segment.end)
        for data in _chunks(source.read, segment.data_end - segment.end):
            copy.write(data)


def _chunks(read: Callable[[int], bytes], count: int) -> Iterator[bytes]:
    while count and (data := read(min(count, _CHUNK_BYTES))):
        count -= len(data)
        yield data


def _prune_torn_files(directory: Path) -> None:
    torn = directory.glob(f"*{segments.TORN_SUFFIX}")
    newest_first = sorted(torn, key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in newest_first[MAX_TORN_FILES:]:
        path.unlink()


def _log_cut(segment: _ScannedSegment, cut_bytes: int, lost: int) -> None:
    _log.log(
        logging.ERROR if lost else logging.WARNING,
        "log tail cut: segment=%s offset=%d cut_bytes=%d lost_bytes=%d reason=%s",
        segment.path,
        segment.end,
        cut_bytes,
        lost,
        segment.damage,
    )
