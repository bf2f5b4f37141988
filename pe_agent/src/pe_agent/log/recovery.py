"""Recovery of a log after any kind of stop: scan, then cut what was not acknowledged.

Indexed frames are read from the index. All later frames are scanned before anything is changed. A
bad frame is one of three:

- After the last mark, so never acknowledged: a torn tail, which is cut. After a power loss valid
  frames may follow it, because disks reorder writes; they are cut, too.
- Before a mark, and valid frames follow: damage in the middle. Recovery refuses the log.
- Before a mark, and no valid frame follows: cut like a torn tail and counted in
  `Recovery.lost_bytes`.

A file shorter than its mark was truncated. Its remaining frames and the segments after it are
kept, as are those after a deleted segment. The log's owner determines which epochs are lost.
"""

import contextlib
import itertools
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from pe_agent.log import frames, index, segments
from pe_agent.log.atomic_file import sync_directory
from pe_agent.log.errors import LogCorrupt
from pe_agent.log.segments import Segment

Progress: TypeAlias = Callable[[int, int], None]
"""Called with (bytes done, total bytes), at most once per 8 MiB and at the end."""

MAX_TORN_FILES = 4
_REPORT_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 20
_log = logging.getLogger("pe_agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Report of opening a log.

    Attributes:
        frames: frames in the log.
        bytes: bytes of these frames.
        scanned_bytes: bytes of the frames that were not in an index.
        cut_bytes: bytes of the torn tail, without preallocated space.
        cut_segment: segment whose tail was cut; None if nothing was cut.
        lost_bytes: acknowledged part of `cut_bytes`; above 0 only if the disk lost confirmed data.
        seconds: duration.
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
    """Frames after the last one are lost, and an earlier recovery has reported it."""
    is_truncated: bool = False
    """The file is shorter than its mark."""

    @property
    def end(self) -> int:
        return self.entries.end

    @property
    def sequence(self) -> int:
        """Next expected sequence."""
        return self.entries.sequence + len(self.entries)

    @property
    def frames(self) -> int:
        return self.sequence - self.first_sequence


@dataclass(slots=True, kw_only=True)
class RecoveredLog:
    """Segments in order, ready for use, the next sequence, and `runs`: their frames by segment."""

    segments: list[Segment]
    sequence: int
    report: Recovery
    runs: list[tuple[int, list[index.FrameRun | index.Entries]]]


@dataclass(slots=True, kw_only=True)
class _ProgressMeter:
    total: int
    progress: Progress | None
    done: int = 0
    _reported: int = field(default=0)

    def advance(self, done: int) -> None:
        self.done = done
        if self.progress and (done - self._reported >= _REPORT_BYTES or done == self.total):
            self._reported = done
            self.progress(done, self.total)


def recover(directory: Path, progress: Progress | None) -> RecoveredLog:
    """Scan a log's directory, cut its torn tail and return the rest.

    Raises:
        LogCorrupt: acknowledged frames in the middle are damaged; nothing changed.
        LogVersionUnknown: a newer release wrote this log; nothing changed.
    """
    started = time.perf_counter()
    scanned = _scan_all(directory, progress)
    _accept_truncated(scanned)
    cut = next((at for at, one in enumerate(scanned) if one.damage), None)
    cut_bytes = lost = 0
    if cut is not None:
        cut_bytes, lost = _measure_cut(scanned, cut)
        _cut(directory, scanned, cut)
        _log_cut(scanned[cut], cut_bytes, lost)
        scanned = scanned[: cut + 1]
    for one in scanned[:-1]:
        if one.is_truncated:
            _record_truncation(directory, one)
    _rename_stumps(directory)
    _remove_garbage(directory, scanned)
    report = Recovery(
        frames=sum(one.frames for one in scanned),
        bytes=sum(one.end - segments.HEADER_BYTES for one in scanned),
        scanned_bytes=sum(one.end - one.entries.begin for one in scanned),
        cut_bytes=cut_bytes,
        cut_segment=scanned[-1].number if cut is not None else None,
        lost_bytes=lost,
        seconds=time.perf_counter() - started,
    )
    return RecoveredLog(
        segments=[
            Segment(
                one.path,
                one.number,
                unindexed=one.entries,
                frames=one.frames,
                mark=min(one.mark, one.end),
                index_bytes=one.index_bytes,
            )
            for one in scanned
        ],
        sequence=scanned[-1].sequence if scanned else 0,
        report=report,
        runs=[(one.number, [*one.runs, one.entries]) for one in scanned],
    )


def _accept_truncated(scanned: list[_ScannedSegment]) -> None:
    """Clear the damage of truncated segments that later segments with frames follow."""
    for at, one in enumerate(scanned[:-1]):
        if (
            one.is_truncated
            and any(later.frames for later in scanned[at + 1 :])
            and not _has_later_frame(one)
        ):
            one.damage = None


def _record_truncation(directory: Path, segment: _ScannedSegment) -> None:
    """Cut a partial frame at the end of a segment, and record that frames are lost."""
    with _open(segment.path, os.O_RDWR) as fd:
        segments.mark_frames_lost(fd, segment.number, segment.first_sequence)
        os.fsync(fd)
    _cut(directory, [segment], 0)
    lost = segment.mark - segment.end
    _log.error("segment %s was cut off: %d bytes of its frames are lost", segment.path, lost)


def _rename_stumps(directory: Path) -> None:
    """Rename segments truncated within their header page: they hold no frame."""
    for path in _find_stumps(directory):
        path.rename(_torn_path(path))
        _log.error("segment %s was cut off: all its frames are lost", path)
    _prune_torn_files(directory)


def _find_stumps(directory: Path) -> list[Path]:
    paths = segments.list_paths(directory)
    return [path for path in paths if path.stat().st_size < segments.HEADER_BYTES]


def _remove_garbage(directory: Path, scanned: list[_ScannedSegment]) -> None:
    for path in directory.glob(f"*{segments.NEW_SUFFIX}"):
        path.unlink()
    indices = {index.index_path(one.path) for one in scanned if one.index_bytes}
    for path in directory.glob(f"*{index.SUFFIX}"):
        if path not in indices:
            path.unlink()


def _scan_all(directory: Path, progress: Progress | None) -> list[_ScannedSegment]:
    stumps = set(_find_stumps(directory))
    paths = [path for path in segments.list_paths(directory) if path not in stumps]
    meter = _ProgressMeter(total=sum(path.stat().st_size for path in paths), progress=progress)
    scanned = [_scan(path, last=path == paths[-1], meter=meter) for path in paths]
    remote = segments.list_remote_ends(directory)
    scanned += [_read_remote(path, end) for path, end in remote.items() if path not in paths]
    scanned.sort(key=lambda one: one.number)
    for one, after in itertools.pairwise(scanned):
        _check_chain(one, after)
    for one in scanned:
        if one.end < one.mark and not one.damage:
            one.damage = f"the frames up to {one.mark} were safe and are gone"
    return scanned


def _scan(path: Path, *, last: bool, meter: _ProgressMeter) -> _ScannedSegment:
    base = meter.done
    with _open(path, os.O_RDONLY) as fd:
        header = segments.read_header(fd, path)
        window = frames.BufferedFile(fd, os.fstat(fd).st_size)
        entries = index.Entries(segments.HEADER_BYTES, header.sequence)
        entries, runs, index_bytes = _read_index(path, fd, entries, window.size)
        # Indexed frames were safe before they were indexed, even if the mark is late.
        mark = max(header.mark, entries.begin)
        scan = frames.Scan(
            window,
            path,
            start=entries.begin,
            sequence=entries.sequence,
            verify_from=0 if last else mark,
        )
        for frame in scan:
            head = frame.header
            entries.add(head.kind, head.length, frame.meta, head.crc)
            meter.advance(base + scan.end)
        data_end = window.data_end(scan.end) if last or scan.damage else scan.end
        meter.advance(base + window.size)
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


def _read_remote(path: Path, end: int) -> _ScannedSegment:
    """Return a full segment that is in object storage only, by its index.

    Raises:
        LogCorrupt: its index does not list all its frames.
    """
    number, begin = int(path.stem), segments.HEADER_BYTES
    first = index.first_sequence(path)
    runs, index_bytes = index.read(path, None, number=number, begin=begin, sequence=first, size=end)
    if not runs or runs[-1].end != end:
        raise LogCorrupt(path, offset=end, reason="the index of a segment in storage is not whole")
    entries = index.Entries(end, runs[-1].sequence + runs[-1].frames)
    return _ScannedSegment(
        path=path,
        number=number,
        first_sequence=first,
        mark=end,
        runs=list(runs),
        index_bytes=index_bytes,
        entries=entries,
        data_end=end,
        damage=None,
    )


def _read_index(
    path: Path, fd: int, first: index.Entries, size: int
) -> tuple[index.Entries, list[index.FrameRun], int]:
    """Return the entries still to scan, the indexed runs, and the bytes of these runs."""
    begin, sequence = first.begin, first.sequence
    runs, index_bytes = index.read(
        path, fd, number=int(path.stem), begin=begin, sequence=sequence, size=size
    )
    if not runs:
        return first, [], 0
    return index.Entries(runs[-1].end, runs[-1].sequence + runs[-1].frames), runs, index_bytes


def _check_chain(segment: _ScannedSegment, following: _ScannedSegment) -> None:
    """Record frames missing before `following` as damage; dropped segments leave number gaps."""
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


def _measure_cut(scanned: list[_ScannedSegment], cut: int) -> tuple[int, int]:
    """Return bytes to cut and how many of them were acknowledged; raise on damage in the middle."""
    bad, later = scanned[cut], scanned[cut + 1 :]
    acknowledged = max(0, bad.mark - bad.end)
    acknowledged += sum(one.mark - segments.HEADER_BYTES for one in later)
    if acknowledged and (any(one.frames for one in later) or _has_later_frame(bad)):
        raise LogCorrupt(bad.path, offset=bad.end, reason=bad.damage or "")
    torn = bad.data_end - bad.end
    torn += sum(one.data_end - segments.HEADER_BYTES for one in later)
    return torn, acknowledged


def _has_later_frame(segment: _ScannedSegment) -> bool:
    with _open(segment.path, os.O_RDONLY) as fd:
        window = frames.BufferedFile(fd, os.fstat(fd).st_size)
        path, end = segment.path, segment.end
        return frames.find_whole_frame(window, path, end, sequence=segment.sequence) is not None


@contextlib.contextmanager
def _open(path: Path, flags: int) -> Iterator[int]:
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _cut(directory: Path, scanned: list[_ScannedSegment], cut: int) -> None:
    """Cut the log after the last good frame; safe to repeat after an interruption."""
    for one in reversed(scanned[cut + 1 :]):
        index.index_path(one.path).unlink(missing_ok=True)
        one.path.rename(_torn_path(one.path))
    bad = scanned[cut]
    with contextlib.suppress(OSError):  # a copy for inspection; the disk may be full
        _save_torn(bad)
    with _open(bad.path, os.O_RDWR) as fd:
        os.ftruncate(fd, bad.end)
        segments.write_mark(fd, min(bad.mark, bad.end))
        os.fsync(fd)
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
