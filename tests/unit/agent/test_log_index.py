import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pe_agent.log import frames, index, segments
from pe_agent.log.errors import LogCorrupt
from pe_agent.log.frames import Kind
from pe_agent.log.recovery import Recovery
from pe_agent.log.segments import HEADER_BYTES
from support.agents.logs import body, contents, fill, flip, frames_of, opened

FIRST = "0000000001.segment"
FIRST_INDEX = "0000000001.index"
SECOND = "0000000002.segment"
FRAME = frames.HEADER_BYTES + len(b'{"n": 0}') + 40


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A closed log of three segments with two frames each."""
    with opened(tmp_path / "log", segment_bytes=2 * FRAME) as log:
        fill(log, 6)
    return tmp_path / "log"


@pytest.fixture
def growing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log killed with one segment of eleven safe frames, indexed four by four."""
    monkeypatch.setattr(index, "RUN_FRAMES", 4)
    with opened(tmp_path / "live") as log:
        for _ in range(11):
            fill(log, 1)
            log.sync()
        log.flush()
        shutil.copytree(tmp_path / "live", tmp_path / "log")
    return tmp_path / "log"


def reopened(directory: Path) -> tuple[list[bytes], Recovery]:
    with opened(directory) as log:
        assert list(log.recovered_frames(set(Kind))) == list(frames_of(log))
        return contents(log), log.recovered


def test_of_full_segments_no_frame_is_looked_at(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    read_at = frames.read_at

    def counted(fd: int, count: int, offset: int) -> bytes:
        reads.append(offset)
        return read_at(fd, count, offset)

    monkeypatch.setattr(frames, "read_at", counted)
    with opened(three) as log:
        assert reads == [HEADER_BYTES]
        assert (log.recovered.frames, log.recovered.bytes) == (6, 6 * FRAME)
        assert log.recovered.scanned_bytes == 2 * FRAME
        assert contents(log) == [body(n) for n in range(6)]


def test_a_growing_segment_is_looked_at_from_its_last_run_on(growing: Path) -> None:
    held, recovery = reopened(growing)

    assert held == [body(0)] * 11
    assert (recovery.frames, recovery.scanned_bytes) == (11, 3 * FRAME)


def test_the_index_goes_on_after_a_restart(growing: Path) -> None:
    with opened(growing) as log:
        fill(log, 1)
        log.sync()

    held, recovery = reopened(growing)

    assert held == [*[body(0)] * 12]
    assert recovery.scanned_bytes == 0


def test_what_was_found_is_what_the_frames_are(three: Path) -> None:
    with opened(three) as log:
        log.append(Kind.MANIFEST, b"manifest")
    with opened(three) as log:
        assert list(log.recovered_frames(set(Kind))) == list(frames_of(log))
        assert [meta for _, _, meta in log.recovered_frames({Kind.MANIFEST})] == [b"manifest"]
        log.forget_recovered()
        assert not list(log.recovered_frames(set(Kind)))


def test_a_segment_without_its_index_is_looked_at_and_gets_it_back(three: Path) -> None:
    before = (three / FIRST_INDEX).read_bytes()
    (three / FIRST_INDEX).unlink()

    held, recovery = reopened(three)

    assert held == [body(n) for n in range(6)]
    assert recovery.scanned_bytes == 4 * FRAME
    assert (three / FIRST_INDEX).read_bytes() == before


def test_an_index_damaged_or_cut_anywhere_costs_a_scan_and_nothing_else(growing: Path) -> None:
    path = growing / FIRST_INDEX
    whole = path.read_bytes()
    first_run = len(whole) // 2
    damages: list[tuple[int, Callable[[int], None]]] = [
        *((at, lambda at: flip(path, at, bit=at % 8)) for at in range(len(whole))),
        *((at, lambda at: os.truncate(path, at)) for at in range(0, len(whole), 7)),
    ]
    for at, damage in damages:
        path.write_bytes(whole)
        damage(at)

        held, recovery = reopened(growing)

        assert held == [body(0)] * 11
        assert recovery.scanned_bytes == (11 if at < first_run else 7) * FRAME
        assert recovery.cut_bytes == 0
        with (growing / FIRST).open("rb") as file:
            _, taken = index.read(
                growing / FIRST,
                file.fileno(),
                number=1,
                begin=HEADER_BYTES,
                sequence=0,
                size=1 << 30,
            )
        assert taken == path.stat().st_size


@pytest.mark.compatibility(
    "index of a segment",
    "a newer index is not used; the segment is scanned",
)
def test_an_index_of_a_newer_release_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(index, "VERSION", 2)
        with opened(tmp_path, segment_bytes=2 * FRAME) as log:
            fill(log, 6)

    held, recovery = reopened(tmp_path)

    assert held == [body(n) for n in range(6)]
    assert recovery.scanned_bytes == 6 * FRAME


def test_an_index_of_other_frames_is_not_used(three: Path, tmp_path: Path) -> None:
    with opened(tmp_path / "other", segment_bytes=2 * FRAME) as log:
        for n in range(6):
            log.append(Kind.NOTE, b'{"n": 0}', body(n + 50))
    shutil.copy(tmp_path / "other" / FIRST_INDEX, three / FIRST_INDEX)
    shutil.copy(three / "0000000002.index", three / "0000000003.index")

    held, recovery = reopened(three)

    assert held == [body(n) for n in range(6)]
    assert recovery.scanned_bytes == 4 * FRAME


@pytest.mark.parametrize("size", [HEADER_BYTES + FRAME, HEADER_BYTES + 2 * FRAME - 5])
def test_a_segment_that_is_shorter_than_its_index_says_is_looked_at(three: Path, size: int) -> None:
    os.truncate(three / SECOND, size)

    assert reopened(three)[0] == [body(n) for n in (0, 1, 2, 4, 5)]


def test_a_damaged_index_is_replaced_whole(three: Path) -> None:
    before = (three / FIRST_INDEX).read_bytes()
    flip(three / FIRST_INDEX, 5)
    with (three / FIRST_INDEX).open("ab") as file:
        file.write(b"left over" * 100)

    reopened(three)

    assert (three / FIRST_INDEX).read_bytes() == before


def test_an_index_is_not_believed_once_its_segment_was_cut(growing: Path) -> None:
    os.truncate(growing / FIRST, HEADER_BYTES + 3 * FRAME)

    _, recovery = reopened(growing)

    assert recovery.lost_bytes == 8 * FRAME
    assert not (growing / FIRST_INDEX).exists()
    with opened(growing) as log:
        assert log.recovered.scanned_bytes == 3 * FRAME
        for n in range(20, 31):
            log.append(Kind.NOTE, b'{"n": 0}', body(n))
        log.sync()
    held, recovery = reopened(growing)
    assert held == [*[body(0)] * 3, *(body(n) for n in range(20, 31))]
    assert recovery.scanned_bytes == 0


def test_what_is_in_an_index_was_safe_whatever_the_mark_says(three: Path) -> None:
    for path in three.glob("*.segment"):
        flip(path, 35)
    (three / FIRST_INDEX).unlink()
    flip(three / FIRST, HEADER_BYTES)

    with pytest.raises(LogCorrupt, match=FIRST):
        reopened(three)


@pytest.mark.parametrize("at", [FRAME - 1, 9])
def test_damage_that_the_index_hides_is_met_by_reads_and_by_verifying(three: Path, at: int) -> None:
    flip(three / FIRST, HEADER_BYTES + at)

    with opened(three) as log:
        address = next(log.recovered_frames({Kind.NOTE}))[0]
        with pytest.raises(LogCorrupt):
            log.read(address)
        assert sum(log.verify(1)) == 0
        assert sum(log.verify(2)) == 2 * FRAME
        assert list(log.damaged) == [1]
        assert FIRST in log.damaged[1]
        log.drop(lambda number: number != 1)
        assert not log.damaged
        assert not list(log.verify(1))


def test_only_frames_that_are_safe_are_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each write of the index a copy of what the last fdatasync left is enough for it."""
    safe: dict[str, int] = {}
    reported: list[tuple[int, int]] = []
    sync, append = os.fdatasync, index.append

    def fdatasync(fd: int) -> None:
        name = Path(f"/proc/self/fd/{fd}").readlink().name
        size = len(Path(f"/proc/self/fd/{fd}").read_bytes().rstrip(b"\0"))
        sync(fd)
        safe[name] = size

    def counted(segment: Path, run: bytes, at: int) -> None:
        append(segment, run, at)
        with segment.open("rb") as file:
            runs, _ = index.read(
                segment,
                file.fileno(),
                number=int(segment.stem),
                begin=HEADER_BYTES,
                sequence=segments.read_header(file.fileno(), segment).sequence,
                size=segment.stat().st_size,
            )
        reported.append((runs[-1].end, safe[segment.name]))

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    monkeypatch.setattr(index, "append", counted)
    monkeypatch.setattr(index, "RUN_FRAMES", 3)
    with opened(tmp_path, segment_bytes=8 * FRAME) as log:
        for n in range(40):
            fill(log, 1)
            if n % 2:
                log.sync()
    assert len(reported) > 5
    assert all(end <= size for end, size in reported)


def test_without_room_for_an_index_the_log_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(segment: Path, _run: bytes, _at: int) -> None:
        raise OSError(errno.ENOSPC, "no room", str(segment))

    with monkeypatch.context() as without:
        without.setattr(index, "append", full)
        with opened(tmp_path, segment_bytes=2 * FRAME) as log:
            fill(log, 6)
            log.sync()
    assert not list(tmp_path.glob("*.index"))

    held, recovery = reopened(tmp_path)

    assert held == [body(n) for n in range(6)]
    assert recovery.scanned_bytes == 6 * FRAME
    assert len(list(tmp_path.glob("*.index"))) == 2


def test_an_index_without_its_segment_is_removed(three: Path) -> None:
    (three / FIRST).unlink()

    assert reopened(three)[0] == [body(n) for n in range(2, 6)]
    assert not (three / FIRST_INDEX).exists()


def test_a_segment_that_is_dropped_while_it_is_indexed_leaves_no_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = index.append

    with opened(tmp_path, segment_bytes=2 * FRAME) as log:

        def late(segment: Path, run: bytes, at: int) -> None:
            log.drop(lambda number: number != int(segment.stem))
            append(segment, run, at)

        monkeypatch.setattr(index, "append", late)
        fill(log, 3)
        log.sync()
        log.flush()
        assert [path.name for path in tmp_path.iterdir()] == [SECOND]


def test_the_index_of_a_log_takes_a_small_part_of_it(tmp_path: Path) -> None:
    meta = b'{"s": "0123456789abcdef", "n": 1000}'
    with opened(tmp_path, segment_bytes=1 << 20) as log:
        for _ in range(400):
            log.append(Kind.STAGE_DATA, meta, bytes(8_000))
    sizes = {s: sum(p.stat().st_size for p in tmp_path.glob(s)) for s in ("*.index", "*.segment")}
    assert 0 < sizes["*.index"] < sizes["*.segment"] / 500
