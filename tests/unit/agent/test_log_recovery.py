import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pe_agent.log import frames, index, segments
from pe_agent.log import recovery as recovering
from pe_agent.log.commit import Committer
from pe_agent.log.errors import LogCorrupt, LogVersionUnknown
from pe_agent.log.frames import Kind
from pe_agent.log.log import StreamLog
from pe_agent.log.recovery import Recovery
from pe_agent.log.segments import HEADER_BYTES, TORN_SUFFIX
from support.agents.exports import killed_in
from support.agents.logs import body, contents, fill, flip, frames_of, opened, size_of, snapshot

FIRST = "0000000001.segment"
SECOND = "0000000002.segment"


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A log killed with three synced frames and a fourth that is not synced."""
    with opened(tmp_path / "live") as log:
        fill(log, 3)
        log.sync()
        log.append(Kind.NOTE, b'{"n": 3}', body(3))
        shutil.copytree(tmp_path / "live", tmp_path / "stopped")
    return tmp_path / "stopped"


def frame_bytes(payload: int = 40) -> int:
    return frames.HEADER_BYTES + len(b'{"n": 0}') + payload


def reopened(directory: Path) -> tuple[list[bytes], Recovery]:
    with opened(directory) as log:
        return contents(log), log.recovered


def test_an_undamaged_log_is_opened_whole(stopped: Path) -> None:
    held, recovery = reopened(stopped)

    assert held == [body(n) for n in range(4)]
    assert (recovery.frames, recovery.bytes) == (4, 4 * frame_bytes())
    assert (recovery.cut_bytes, recovery.cut_segment, recovery.lost_bytes) == (0, None, 0)
    assert recovery.seconds > 0


def test_a_missing_directory_is_created(tmp_path: Path) -> None:
    held, recovery = reopened(tmp_path / "a" / "b")

    assert held == []
    assert recovery.frames == 0


def test_a_last_frame_truncated_anywhere_is_cut(stopped: Path, tmp_path: Path) -> None:
    start = HEADER_BYTES + 3 * frame_bytes()
    for kept in range(frame_bytes()):
        directory = tmp_path / f"at-{kept}"
        shutil.copytree(stopped, directory)
        os.truncate(directory / FIRST, start + kept)
        torn = (directory / FIRST).read_bytes()[start:].rstrip(b"\0")

        held, recovery = reopened(directory)

        assert held == [body(n) for n in range(3)], kept
        assert recovery.cut_bytes == len(torn)
        assert recovery.cut_segment == (1 if kept else None)
        assert recovery.lost_bytes == 0


def test_a_last_frame_with_zeros_from_anywhere_is_cut(stopped: Path, tmp_path: Path) -> None:
    start = HEADER_BYTES + 3 * frame_bytes()
    for kept in range(0, frame_bytes(), 5):
        directory = tmp_path / f"at-{kept}"
        shutil.copytree(stopped, directory)
        os.truncate(directory / FIRST, start + kept)
        os.truncate(directory / FIRST, 1 << 20)

        assert reopened(directory)[0] == [body(n) for n in range(3)], kept


def test_a_bit_flipped_anywhere_in_the_last_frame_cuts_it(stopped: Path, tmp_path: Path) -> None:
    start = HEADER_BYTES + 3 * frame_bytes()
    for at in range(frame_bytes()):
        directory = tmp_path / f"at-{at}"
        shutil.copytree(stopped, directory)
        flip(directory / FIRST, start + at, bit=at % 8)

        held, recovery = reopened(directory)

        assert held == [body(n) for n in range(3)], at
        assert recovery.cut_bytes == frame_bytes()


def test_the_cut_bytes_are_kept_for_inspection(stopped: Path) -> None:
    flip(stopped / FIRST, HEADER_BYTES + 3 * frame_bytes() + 60)
    torn = (stopped / FIRST).read_bytes()[HEADER_BYTES + 3 * frame_bytes() :].rstrip(b"\0")

    reopened(stopped)

    assert (stopped / (FIRST + TORN_SUFFIX)).read_bytes() == torn


def test_at_most_four_torn_tails_are_kept_the_newest(stopped: Path) -> None:
    for number in range(6):
        old = stopped / f"000000009{number}.segment{TORN_SUFFIX}"
        old.write_bytes(b"old")
        os.utime(old, ns=(number, number))
    flip(stopped / FIRST, HEADER_BYTES + 3 * frame_bytes() + 60)

    reopened(stopped)

    assert sorted(path.name[:10] for path in stopped.glob("*.torn")) == [
        "0000000001",
        "0000000093",
        "0000000094",
        "0000000095",
    ]


def test_a_log_goes_on_after_a_cut(stopped: Path) -> None:
    os.truncate(stopped / FIRST, HEADER_BYTES + 3 * frame_bytes() + 70)
    with opened(stopped) as log:
        log.append(Kind.NOTE, b"{}", b"after")

    held, recovery = reopened(stopped)

    assert held == [*(body(n) for n in range(3)), b"after"]
    assert recovery.cut_bytes == 0


def test_what_recovery_found_is_safe_before_it_is_used(
    stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(os, "fdatasync", calls.append)
    committer = Committer()
    log = StreamLog.open(stopped, committer=committer)

    assert len(calls) == 1
    log.close()
    committer.close()


def test_a_cut_leaves_neither_stale_bytes_nor_a_stale_mark(stopped: Path) -> None:
    flip(stopped / FIRST, HEADER_BYTES + 2 * frame_bytes())
    os.truncate(stopped / FIRST, HEADER_BYTES + 3 * frame_bytes())
    with opened(stopped) as log:
        end = HEADER_BYTES + size_of(log)
        with (stopped / FIRST).open("rb") as file:
            mark = segments.read_header(file.fileno(), stopped / FIRST).mark
        left = (stopped / FIRST).read_bytes()[end:]

    assert mark == end == HEADER_BYTES + 2 * frame_bytes()
    assert not left.strip(b"\0")


def test_a_damaged_mark_counts_nothing_as_lost(stopped: Path) -> None:
    flip(stopped / FIRST, 35)
    os.truncate(stopped / FIRST, HEADER_BYTES + 3 * frame_bytes() + 50)

    held, recovery = reopened(stopped)

    assert held == [body(n) for n in range(3)]
    assert recovery.lost_bytes == 0


def test_a_later_segments_mark_vouches_for_the_segments_before_it(three: Path) -> None:
    flip(three / FIRST, 35)
    flip(three / FIRST, HEADER_BYTES)

    with pytest.raises(LogCorrupt):
        reopened(three)


def test_a_cut_counts_the_segments_behind_it(tmp_path: Path) -> None:
    with opened(tmp_path / "live", segment_bytes=2 * frame_bytes()) as log:
        fill(log, 6)
        shutil.copytree(
            tmp_path / "live", tmp_path / "stopped", ignore=shutil.ignore_patterns("*.index")
        )
    flip(tmp_path / "stopped" / FIRST, HEADER_BYTES + frame_bytes())

    held, recovery = reopened(tmp_path / "stopped")

    assert held == [body(0)]
    assert (recovery.cut_bytes, recovery.cut_segment) == (5 * frame_bytes(), 1)


def test_data_behind_a_blank_is_cut_and_counted(stopped: Path) -> None:
    end = HEADER_BYTES + 4 * frame_bytes()
    with (stopped / FIRST).open("r+b") as file:
        file.seek(end + 5000)
        file.write(b"junk")

    held, recovery = reopened(stopped)

    assert held == [body(n) for n in range(4)]
    assert recovery.cut_bytes == 5004


def test_no_mark_is_written_before_its_frames_are_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks: list[int] = []
    sync = os.fdatasync

    def fdatasync(fd: int) -> None:
        marks.append(segments.read_header(fd, tmp_path / FIRST).mark)
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    with opened(tmp_path) as log:
        for _ in range(3):
            fill(log, 1)
            log.sync()

    assert marks == [HEADER_BYTES + n * frame_bytes() for n in range(3)]


def test_a_synced_tail_the_disk_lost_is_cut_and_counted(
    stopped: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.truncate(stopped / FIRST, HEADER_BYTES + 3 * frame_bytes() - 10)

    held, recovery = reopened(stopped)

    assert held == [body(n) for n in range(2)]
    assert recovery.lost_bytes == frame_bytes()
    assert "lost_bytes" in caplog.text


@pytest.mark.parametrize("at", range(frame_bytes()))
def test_damage_in_the_middle_is_refused_and_nothing_is_changed(stopped: Path, at: int) -> None:
    flip(stopped / FIRST, HEADER_BYTES + frame_bytes() + at, bit=at % 8)
    before = snapshot(stopped)

    with pytest.raises(LogCorrupt, match="restore this file from a copy") as caught:
        reopened(stopped)

    assert caught.value.path == stopped / FIRST
    assert caught.value.offset == HEADER_BYTES + frame_bytes()
    assert snapshot(stopped) == before


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A closed log of three segments with two frames each, as releases without an index left it."""
    with opened(tmp_path, segment_bytes=2 * frame_bytes()) as log:
        fill(log, 6)
    for path in tmp_path.glob("*.index"):
        path.unlink()
    return tmp_path


@pytest.mark.parametrize("frame", [0, 1])
def test_a_damaged_header_in_an_older_segment_is_refused(three: Path, frame: int) -> None:
    flip(three / FIRST, HEADER_BYTES + frame * frame_bytes() + 9)

    with pytest.raises(LogCorrupt) as caught:
        reopened(three)

    assert caught.value.path == three / FIRST
    assert caught.value.offset == HEADER_BYTES + frame * frame_bytes()


@pytest.mark.parametrize("left", [0, 1, frame_bytes(), 2 * frame_bytes() - 1])
def test_of_an_older_segment_that_was_cut_off_what_is_left_is_kept(three: Path, left: int) -> None:
    os.truncate(three / SECOND, HEADER_BYTES + left)
    kept = [body(n) for n in (0, 1, *([2] if left >= frame_bytes() else []), 4, 5)]

    for _ in range(2):
        assert reopened(three)[0] == kept
    assert (three / SECOND).stat().st_size == HEADER_BYTES + left // frame_bytes() * frame_bytes()


def test_a_start_that_ends_while_it_takes_in_a_shorter_segment_is_repeated(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.truncate(three / SECOND, HEADER_BYTES + frame_bytes() + 5)
    for name in ("_cut", "_prune_torn_files"):
        with killed_in(monkeypatch, recovering, name):
            reopened(three)

    assert reopened(three)[0] == [body(n) for n in (0, 1, 2, 4, 5)]


def test_an_older_segment_that_lost_frames_and_not_its_size_is_refused(three: Path) -> None:
    os.truncate(three / SECOND, HEADER_BYTES + frame_bytes())
    os.truncate(three / SECOND, HEADER_BYTES + 2 * frame_bytes())

    with pytest.raises(LogCorrupt, match=SECOND):
        reopened(three)


def test_a_blank_frame_in_the_middle_is_refused(three: Path) -> None:
    with (three / SECOND).open("r+b") as file:
        file.seek(HEADER_BYTES)
        file.write(bytes(frame_bytes()))

    with pytest.raises(LogCorrupt, match=SECOND):
        reopened(three)


def test_a_damaged_payload_in_an_older_segment_is_found_on_demand(three: Path) -> None:
    flip(three / FIRST, HEADER_BYTES + frame_bytes() - 1)

    with opened(three) as log:
        address = next(frames_of(log))[0]
        with pytest.raises(LogCorrupt, match="payload"):
            log.read(address)


def test_a_frame_in_the_place_of_another_is_refused(stopped: Path) -> None:
    data = bytearray((stopped / FIRST).read_bytes())
    second = HEADER_BYTES + frame_bytes()
    data[second : second + frame_bytes()] = data[HEADER_BYTES:second]
    (stopped / FIRST).write_bytes(data)

    with pytest.raises(LogCorrupt, match="frame 0 where 1 was due"):
        reopened(stopped)


@pytest.mark.parametrize("shift", range(1, 5))
def test_a_whole_frame_far_behind_damage_is_found(tmp_path: Path, shift: int) -> None:
    size = (1 << 20) - frames.HEADER_BYTES - len(b"{}") + shift - 2
    with opened(tmp_path, segment_bytes=4 << 20) as log:
        log.append(Kind.NOTE, b"{}", bytes(size))
        fill(log, 1)
    flip(tmp_path / FIRST, HEADER_BYTES)

    with pytest.raises(LogCorrupt):
        reopened(tmp_path)


def test_a_segment_under_another_name_is_refused(three: Path) -> None:
    shutil.copy(three / FIRST, three / "0000000004.segment")

    with pytest.raises(LogCorrupt, match="segment 1 under another name"):
        reopened(three)


@pytest.mark.parametrize("at", [0, 4, 8, 20, 30])
def test_a_damaged_segment_header_is_refused(three: Path, at: int) -> None:
    flip(three / SECOND, at)

    with pytest.raises(LogCorrupt, match="header"):
        reopened(three)


def test_a_damaged_mark_reads_as_nothing_marked(three: Path) -> None:
    flip(three / "0000000003.segment", 33)

    assert reopened(three)[0] == [body(n) for n in range(6)]


@pytest.mark.parametrize("name", [FIRST, SECOND, "0000000003.segment"])
def test_a_segment_cut_off_within_its_header_is_set_aside(three: Path, name: str) -> None:
    os.truncate(three / name, 100)
    number = int(name[:10])

    for _ in range(2):
        assert reopened(three)[0] == [body(n) for n in range(6) if n // 2 + 1 != number]
    assert (three / f"{name}.torn").stat().st_size == 100


def test_a_half_created_segment_is_removed(three: Path) -> None:
    (three / "0000000004.segment.new").write_bytes(b"half")

    assert reopened(three)[0] == [body(n) for n in range(6)]
    assert not list(three.glob("*.new"))


@pytest.mark.parametrize("module", [frames, segments])
def test_a_newer_format_is_refused_by_name_and_nothing_is_changed(
    tmp_path: Path, module: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(module, "VERSION", 7)
        with opened(tmp_path) as log:
            fill(log, 2)
    (tmp_path / "0000000004.segment.new").write_bytes(b"half")
    before = snapshot(tmp_path)

    with pytest.raises(LogVersionUnknown, match="version 7, this release reads up to 1"):
        reopened(tmp_path)

    assert snapshot(tmp_path) == before


def test_a_newer_frame_behind_damage_is_refused_by_version(
    stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(frames, "VERSION", 2)
        with opened(stopped) as log:
            fill(log, 1)
    flip(stopped / FIRST, HEADER_BYTES + 3 * frame_bytes())

    with pytest.raises(LogVersionUnknown):
        reopened(stopped)


def test_a_payload_that_holds_frames_is_not_taken_for_them(tmp_path: Path) -> None:
    with opened(tmp_path / "other") as other:
        fill(other, 4)
    copy = (tmp_path / "other" / FIRST).read_bytes()
    with opened(tmp_path / "log") as log:
        fill(log, 5)
        log.append(Kind.STAGE_DATA, b"{}", copy)
    flip(tmp_path / "log" / FIRST, HEADER_BYTES + 5 * frame_bytes())

    assert reopened(tmp_path / "log")[0] == [body(n) for n in range(5)]


def test_progress_ends_at_the_whole(three: Path) -> None:
    reported: list[tuple[int, int]] = []
    committer = Committer()
    log = StreamLog.open(
        three, committer=committer, progress=lambda done, total: reported.append((done, total))
    )
    log.close()
    committer.close()

    size = sum(path.stat().st_size for path in three.glob("*.segment"))
    assert reported[-1] == (size, size)
    assert reported == sorted(reported)


class Disk:
    """What a loss of power leaves: synced pages for sure, any of the others.

    Every fdatasync copies the file as it was when it began. `lose_power` builds
    each file from that copy and a random choice of the pages written since.
    """

    PAGE = 64

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self._directory = directory
        self._chance = chance
        self._safe: dict[str, bytes] = {}
        self._sync: Callable[[int], None] = os.fdatasync

    def fdatasync(self, fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        data = path.read_bytes()
        self._sync(fd)
        self._safe[path.name] = data

    def lose_power(self, target: Path) -> None:
        target.mkdir()
        for path in self._directory.iterdir():
            now = path.read_bytes()
            # An index is never made safe.
            made = now[:HEADER_BYTES] if path.suffix == ".segment" else b""
            safe = self._safe.get(path.name, made)
            (target / path.name).write_bytes(self._mixed(safe, now))

    def _mixed(self, safe: bytes, now: bytes) -> bytes:
        mixed = bytearray(safe[: len(now)].ljust(len(now), b"\0"))
        for start in range(0, len(now), self.PAGE):
            if self._chance.random() < 0.5:
                mixed[start : start + self.PAGE] = now[start : start + self.PAGE]
        return bytes(mixed)


@pytest.mark.parametrize("seed", range(60))
def test_after_a_loss_of_power_every_acknowledged_frame_is_there(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    disk = Disk(tmp_path / "live", chance)
    monkeypatch.setattr(os, "fdatasync", disk.fdatasync)
    monkeypatch.setattr(index, "RUN_FRAMES", 3)
    appended: list[bytes] = []
    acknowledged = 0
    with opened(tmp_path / "live", segment_bytes=1500) as log:
        for step in range(chance.randrange(1, 40)):
            appended.append(body(step, chance.randrange(1, 400)))
            log.append(Kind.NOTE, b"{}", appended[-1])
            if chance.random() < 0.2:
                log.sync()
                acknowledged = len(appended)
        disk.lose_power(tmp_path / "after")
    monkeypatch.undo()

    held, recovery = reopened(tmp_path / "after")

    assert held == appended[: len(held)]
    assert len(held) >= acknowledged
    assert recovery.lost_bytes == 0
    assert reopened(tmp_path / "after")[1].cut_bytes == 0
