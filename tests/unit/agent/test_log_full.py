import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pe_agent.log.commit import Committer
from pe_agent.log.errors import LogFailed, LogFull
from pe_agent.log.frames import Kind
from pe_agent.log.log import StreamLog
from support.agents.logs import body, contents, fill, frames_of, opened, size_of

WAIT_S = 20.0
LIMITED = """
import json, resource, signal, sys
from pathlib import Path
from pe_agent.log.commit import Committer
from pe_agent.log.errors import LogFull
from pe_agent.log.frames import Kind
from pe_agent.log.log import StreamLog

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 10_000_000))
log = StreamLog.open(Path(sys.argv[1]), committer=Committer())
refused = None
for n in range(9):
    try:
        log.append(Kind.NOTE, b"%d" % n, bytes([65 + n]) * 70_000)
    except LogFull as error:
        refused = refused or [n, str(error), error.needed, error.free]
log.append(Kind.NOTE, b"small", b"fits")
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000_000, 10_000_000))
log.append(Kind.NOTE, b"later", bytes(70_000))
log.sync()
print(json.dumps(refused))
"""


class Writes:
    """Stands in for os.pwritev: writes `left` bytes, then fails."""

    def __init__(self, left: int, number: int) -> None:
        self.left: int | None = left
        self._number = number
        self._write = os.pwritev

    def __call__(self, fd: int, parts: list[memoryview], offset: int) -> int:
        if self.left is None:
            return self._write(fd, parts, offset)
        if not self.left:
            raise OSError(self._number, os.strerror(self._number))
        data = b"".join(parts)[: self.left]
        self.left -= len(data)
        return os.pwrite(fd, data, offset)


class Syncs:
    """Stands in for os.fdatasync: fails while `broken`."""

    def __init__(self) -> None:
        self.broken = True
        self.calls = 0
        self.go = threading.Event()
        self._sync: Callable[[int], None] = os.fdatasync

    def __call__(self, fd: int) -> None:
        self.calls += 1
        assert self.go.wait(WAIT_S)
        if self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._sync(fd)


def test_a_file_size_limit_refuses_frames_and_the_log_stays_usable(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    number, text, wanted, free = json.loads(done.stdout)

    assert number == 4
    assert wanted == 32 + 1 + 70_000
    assert free > 0
    assert "0000000001.segment" in text
    assert "ulimit -f" in text
    with opened(tmp_path) as log:
        metas = [meta.decode() for _, _, meta in frames_of(log)]
        assert metas == ["0", "1", "2", "3", "small", "later"]
        assert contents(log) == [
            *(bytes([65 + n]) * 70_000 for n in range(4)),
            b"fits",
            bytes(70_000),
        ]
        assert log.recovered.cut_bytes == 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("left", [0, 5, 40, 100])
def test_a_partial_write_on_a_full_disk_is_cut_off_again(
    tmp_path: Path, number: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as log:
        fill(log, 2)
        writes = Writes(left, number)
        monkeypatch.setattr(os, "pwritev", writes)
        with pytest.raises(LogFull, match="bytes free") as caught:
            log.append(Kind.NOTE, b"{}", bytes(range(200)))
        assert (caught.value.needed, caught.value.code) == (234, "LogFull")
        assert os.strerror(number) in str(caught.value)
        kept = (tmp_path / "0000000001.segment").read_bytes()
        assert not kept[4096 + size_of(log) :].strip(b"\0")

        writes.left = None
        log.append(Kind.NOTE, b"{}", b"short")
        log.sync()
        assert contents(log) == [body(0), body(1), b"short"]

    with opened(tmp_path) as log:
        assert contents(log) == [body(0), body(1), b"short"]
        assert log.recovered.cut_bytes == 0


def test_a_disk_without_room_for_a_new_segment_refuses_and_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with opened(tmp_path, segment_bytes=200) as log:
        fill(log, 1, size=150)
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(LogFull, match="free space"):
            fill(log, 1, size=150)
        assert [path.name for path in tmp_path.iterdir()] == ["0000000001.segment"]

        monkeypatch.setattr(os, "fsync", real)
        fill(log, 1, size=150)
        assert [(one.number, one.frames) for one in log.segments()] == [(1, 1), (2, 1)]


def test_room_for_the_frame_alone_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.posix_fallocate

    def little(fd: int, offset: int, length: int) -> None:
        if length > 500:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", little)
    with opened(tmp_path) as log:
        fill(log, 3)

        assert contents(log) == [body(n) for n in range(3)]
        assert (tmp_path / "0000000001.segment").stat().st_size == 4096 + size_of(log)


def test_a_file_system_that_cannot_preallocate_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def never(fd: int, offset: int, length: int) -> None:
        calls.append(length)
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", never)
    with opened(tmp_path) as log:
        fill(log, 3)

        assert contents(log) == [body(n) for n in range(3)]
        assert len(calls) == 1


def test_any_other_write_error_fails_the_log_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as log:
        first = fill(log, 1)[0]
        log.sync()
        unsynced = fill(log, 1)[0]
        writes = Writes(30, errno.EIO)
        monkeypatch.setattr(os, "pwritev", writes)
        with pytest.raises(LogFailed, match="Input/output error"):
            fill(log, 1)
        writes.left = None

        with pytest.raises(LogFailed):
            fill(log, 1)
        with pytest.raises(LogFailed):
            log.sync()
        with pytest.raises(LogFailed):
            log.read(unsynced)
        assert bytes(log.read(first)) == body(0)


def test_a_failed_fdatasync_fails_everyone_and_is_never_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = Committer()
    log = StreamLog.open(tmp_path, committer=committer)
    safe = fill(log, 2)
    log.sync()
    syncs = Syncs()
    monkeypatch.setattr(os, "fdatasync", syncs)
    unsafe = fill(log, 2)

    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(log.sync) for _ in range(4)]
        syncs.go.set()
        failures = [one.exception(WAIT_S) for one in waiting]
    syncs.broken = False

    assert all(isinstance(one, LogFailed) for one in failures)
    for use in (log.sync, lambda: log.sync(unsafe[0]), lambda: fill(log, 1)):
        with pytest.raises(LogFailed, match="Input/output error"):
            use()
    with pytest.raises(LogFailed):
        log.read(unsafe[0])
    assert [bytes(log.read(one)) for one in safe] == [body(0), body(1)]
    assert len(list(frames_of(log))) == 2
    log.close()
    assert syncs.calls == 1
    committer.close()


def test_frames_a_failed_fdatasync_left_in_doubt_are_not_recovered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = Committer()
    log = StreamLog.open(tmp_path, committer=committer, segment_bytes=250)
    fill(log, 2)
    log.sync()
    syncs = Syncs()
    syncs.go.set()
    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", syncs)
        fill(log, 5)
        with pytest.raises(LogFailed):
            log.sync()
    log.close()
    committer.close()

    with opened(tmp_path) as log:
        assert contents(log) == [body(0), body(1)]


def test_an_append_under_way_when_an_fdatasync_fails_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = Committer()
    log = StreamLog.open(tmp_path, committer=committer)
    syncs = Syncs()
    syncs.go.set()
    monkeypatch.setattr(os, "fdatasync", syncs)
    fill(log, 1)
    write = os.pwritev

    def failing_meanwhile(fd: int, parts: list[memoryview], offset: int) -> int:
        with pytest.raises(LogFailed), ThreadPoolExecutor(1) as pool:
            pool.submit(log.sync).result(WAIT_S)
        return write(fd, parts, offset)

    monkeypatch.setattr(os, "pwritev", failing_meanwhile)
    with pytest.raises(LogFailed):
        fill(log, 1)
    log.close()
    committer.close()
    monkeypatch.undo()

    with opened(tmp_path) as log:
        assert contents(log) == []


def test_closing_a_log_that_cannot_be_made_safe_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = Committer()
    log = StreamLog.open(tmp_path, committer=committer)
    fill(log, 1)
    syncs = Syncs()
    syncs.go.set()
    monkeypatch.setattr(os, "fdatasync", syncs)

    with pytest.raises(LogFailed):
        log.close()
    log.close()
    committer.close()


def test_a_fault_of_the_flush_itself_reaches_the_waiting_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(fd: int) -> None:
        raise ZeroDivisionError("not an OSError")

    committer = Committer()
    log = StreamLog.open(tmp_path, committer=committer)
    fill(log, 1)
    monkeypatch.setattr(os, "fdatasync", broken)

    with pytest.raises(LogFailed, match="not an OSError"):
        log.sync()
    log.close()
    committer.close()
