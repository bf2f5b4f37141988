import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pe_agent.log.commit import Committer, Flushable
from pe_agent.log.errors import AddressGone, FrameTooLarge, LogClosed, LogCorrupt
from pe_agent.log.frames import HEADER_BYTES as FRAME_HEADER
from pe_agent.log.frames import Address, Kind
from pe_agent.log.log import StreamLog
from pe_agent.log.segments import HEADER_BYTES
from support.agents.logs import body, contents, fill, flip, frames_of, opened, size_of

WAIT_S = 20.0


def descriptors_of(directory: Path) -> list[str]:
    """Return the files of a directory this process has open; unlinked ones say so."""
    links = [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]
    return sorted(Path(link).name for link in links if Path(link).parent == directory)


class CountingCommitter(Committer):
    """Tells when a number of flushes was asked for."""

    def __init__(self) -> None:
        super().__init__(threads=1)
        self._counted = threading.Condition()
        self.requests = 0

    def request(self, log: Flushable) -> None:
        super().request(log)
        with self._counted:
            self.requests += 1
            self._counted.notify_all()

    def wait_requests(self, count: int) -> bool:
        with self._counted:
            return self._counted.wait_for(lambda: self.requests >= count, WAIT_S)


class Gate:
    """Stands in for os.fdatasync: counts calls and may hold them."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.entered = threading.Event()
        self.open = threading.Event()
        self._sync: Callable[[int], None] = os.fdatasync

    def __call__(self, fd: int) -> None:
        self.files.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        self.entered.set()
        assert self.open.wait(WAIT_S)
        self._sync(fd)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()
    monkeypatch.setattr(os, "fdatasync", gate)
    return gate


@pytest.fixture
def committer() -> Iterator[CountingCommitter]:
    committer = CountingCommitter()
    yield committer
    committer.close()


def test_what_is_appended_is_read_back_with_kind_and_meta(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        first = log.append(Kind.STAGE_DATA, b'{"a":1}', b"one")
        second = log.append(Kind.MANIFEST, b"", b"")

        assert bytes(log.read(first)) == b"one"
        assert bytes(log.read(second)) == b""
        assert list(frames_of(log)) == [
            (first, Kind.STAGE_DATA, b'{"a":1}'),
            (second, Kind.MANIFEST, b""),
        ]


def test_a_payload_may_be_many_buffers_of_any_type(tmp_path: Path) -> None:
    words = memoryview(bytearray(range(64))).cast("I")
    parts = [b"head", bytearray(b"body"), words, b"", *([b"x"] * 3000)]

    with opened(tmp_path) as log:
        address = log.append(Kind.STAGE_DATA, b"{}", parts)

        assert bytes(log.read(address)) == b"headbody" + bytes(range(64)) + b"x" * 3000


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def seven(fd: int, parts: list[memoryview], offset: int) -> int:
        return os.pwrite(fd, b"".join(parts)[:7], offset)

    monkeypatch.setattr(os, "pwritev", seven)
    with opened(tmp_path) as log:
        addresses = [log.append(Kind.NOTE, b"{}", [body(n, 9), b"", body(n, 5)]) for n in range(4)]

        assert [bytes(log.read(one)) for one in addresses] == [
            body(n, 9) + body(n, 5) for n in range(4)
        ]


def test_a_full_segment_is_followed_by_the_next(tmp_path: Path) -> None:
    frame = FRAME_HEADER + len(b'{"n": 0}') + 100
    with opened(tmp_path, segment_bytes=3 * frame) as log:
        addresses = fill(log, 7, size=100)

        assert [one.segment for one in addresses] == [1, 1, 1, 2, 2, 2, 3]
        assert [(one.number, one.frames) for one in log.segments()] == [(1, 3), (2, 3), (3, 1)]
        assert size_of(log) == 7 * frame
        assert contents(log) == [body(n, 100) for n in range(7)]


def test_a_frame_longer_than_a_segment_gets_one_of_its_own(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=1000) as log:
        log.append(Kind.NOTE, b"{}", bytes(3000))
        log.append(Kind.NOTE, b"{}", bytes(5000))
        fill(log, 2)

        assert [one.frames for one in log.segments()] == [1, 1, 2]


def test_a_full_segment_gives_its_unused_room_back(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=1000) as log:
        fill(log, 1)
        log.append(Kind.NOTE, b"{}", bytes(5000))
        first = log.segments()[0]

        assert (tmp_path / "0000000001.segment").stat().st_size == HEADER_BYTES + first.bytes


def test_frames_beyond_the_format_are_refused_with_their_size(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        with pytest.raises(FrameTooLarge, match="the meta part of 16777217 bytes"):
            log.append(Kind.NOTE, bytes((16 << 20) + 1))
        with pytest.raises(FrameTooLarge, match="the payload of 1073741825 bytes"):
            log.append(Kind.NOTE, b"", [memoryview(bytes(1 << 20))] * 1024 + [b"x"])
        with pytest.raises(ValueError, match="99"):
            log.append(99, b"")

        assert size_of(log) == 0


def test_many_threads_append_and_sync_at_once(tmp_path: Path) -> None:
    def work(worker: int) -> list[tuple[Address, bytes]]:
        done = []
        for step in range(25):
            payload = body(worker * 1000 + step, 300 + worker)
            done.append((log.append(Kind.STAGE_DATA, b"{}", payload), payload))
            log.sync(done[-1][0] if step % 2 else None)
            assert bytes(log.read(done[step // 2][0])) == done[step // 2][1]
        return done

    with opened(tmp_path, segment_bytes=8 << 10) as log, ThreadPoolExecutor(8) as pool:
        done = [pair for pairs in pool.map(work, range(8)) for pair in pairs]

        assert sorted(done) == [
            (address, bytes(log.read(address))) for address, _, _ in frames_of(log)
        ]
        assert len(done) == 200


def test_callers_that_wait_together_share_one_fdatasync(
    tmp_path: Path, gate: Gate, committer: CountingCommitter
) -> None:
    log = StreamLog.open(tmp_path, committer=committer)

    def append_and_sync(number: int) -> None:
        log.sync(log.append(Kind.NOTE, b"{}", body(number)))

    with ThreadPoolExecutor(16) as pool:
        waiting = [pool.submit(append_and_sync, 0)]
        assert gate.entered.wait(WAIT_S)
        waiting += [pool.submit(append_and_sync, n) for n in range(1, 16)]
        assert committer.wait_requests(16)
        assert not any(one.done() for one in waiting)
        gate.open.set()
        for one in waiting:
            one.result(WAIT_S)

    assert len(gate.files) == 2
    assert len(list(frames_of(log))) == 16
    log.close()


def test_two_logs_are_flushed_side_by_side_whatever_one_asks_for(
    tmp_path: Path, gate: Gate
) -> None:
    committer = Committer(threads=2)
    logs = [StreamLog.open(tmp_path / name, committer=committer) for name in "ab"]
    for log in logs:
        log.append(Kind.NOTE, b"{}", b"x")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(logs[0].sync)
        assert gate.entered.wait(WAIT_S)
        gate.entered.clear()
        committer.request(logs[0])
        second = pool.submit(logs[1].sync)
        both_run = gate.entered.wait(WAIT_S)
        gate.open.set()
        first.result(WAIT_S)
        second.result(WAIT_S)

    assert both_run
    for log in logs:
        log.close()
    committer.close()


def test_neither_reads_nor_syncs_wait_for_an_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go = threading.Event(), threading.Event()
    write = os.pwritev

    def slow(fd: int, parts: list[memoryview], offset: int) -> int:
        entered.set()
        assert go.wait(WAIT_S)
        return write(fd, parts, offset)

    with opened(tmp_path) as log, ThreadPoolExecutor(2) as pool:
        first = fill(log, 1)[0]
        monkeypatch.setattr(os, "pwritev", slow)
        appending = pool.submit(fill, log, 1)
        assert entered.wait(WAIT_S)
        syncing = pool.submit(log.sync)
        try:
            syncing.result(WAIT_S / 4)
            assert pool.submit(contents, log).result(WAIT_S / 4) == [body(0)]
            assert pool.submit(log.read, first).result(WAIT_S / 4) == body(0)
            assert not appending.done()
        finally:
            go.set()
        appending.result(WAIT_S)
        assert len(contents(log)) == 2


def test_a_sync_of_what_is_safe_already_returns_without_asking(
    tmp_path: Path, gate: Gate, committer: CountingCommitter
) -> None:
    gate.open.set()
    log = StreamLog.open(tmp_path, committer=committer)
    addresses = fill(log, 3)
    log.sync()
    log.sync()
    log.sync(addresses[1])

    assert len(gate.files) == 1
    assert committer.requests == 1
    log.close()


def test_full_segments_keep_no_descriptor_once_they_are_safe(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=200) as log:
        fill(log, 20, size=100)
        log.sync()
        log.flush()  # so that the indexes are written

        assert descriptors_of(tmp_path) == ["0000000020.segment"]


def test_a_sync_covers_the_full_segments_before_it(tmp_path: Path, gate: Gate) -> None:
    gate.open.set()
    with opened(tmp_path, segment_bytes=200) as log:
        last = fill(log, 5, size=100)[-1]
        log.sync(last)

        assert gate.files == [f"{n:010d}.segment" for n in (1, 2, 3, 4, 5)]


def test_an_fdatasync_starts_by_itself_after_flush_bytes(
    tmp_path: Path, gate: Gate, committer: Committer
) -> None:
    gate.open.set()
    log = StreamLog.open(tmp_path, committer=committer, flush_bytes=1000)
    log.append(Kind.NOTE, b"", bytes(900))
    assert not gate.files
    log.append(Kind.NOTE, b"", bytes(900))

    assert gate.entered.wait(WAIT_S)
    log.close()


def test_a_sync_is_served_after_the_committer_has_ended(tmp_path: Path, gate: Gate) -> None:
    gate.open.set()
    committer = Committer()
    log = StreamLog.open(tmp_path, committer=committer)
    log.append(Kind.NOTE, b"{}", b"x")
    committer.close()
    log.sync()

    assert len(gate.files) == 1
    log.close()


def test_a_damaged_frame_is_named_when_it_is_read(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        address = fill(log, 3)[1]
        log.sync()
        flip(tmp_path / "0000000001.segment", address.offset + address.length - 1)

        with pytest.raises(LogCorrupt, match=r"0000000001\.segment") as caught:
            log.read(address)
        assert caught.value.offset == address.offset


def test_a_damaged_meta_is_named_when_it_is_read_or_verified(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        address = fill(log, 3)[1]
        log.sync()
        flip(tmp_path / "0000000001.segment", address.offset + FRAME_HEADER)

        with pytest.raises(LogCorrupt) as caught:
            log.read(address)
        assert caught.value.offset == address.offset
        assert list(log.verify(1)) == [address.length]
        assert f"offset {address.offset}" in log.damaged[1]


@pytest.mark.parametrize("shift", [(0, 1, -1), (0, 0, -1), (0, 0, 1), (0, 1, 0)])
def test_an_address_that_is_none_is_refused(tmp_path: Path, shift: tuple[int, int, int]) -> None:
    with opened(tmp_path) as log:
        address = fill(log, 3)[1]
        wrong = Address(*(a + b for a, b in zip(address, shift, strict=True)))

        with pytest.raises((LogCorrupt, AddressGone)):
            log.read(wrong)


def test_an_address_behind_the_end_names_no_frame_and_is_not_waited_for(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        last = fill(log, 3)[-1]

        with pytest.raises(AddressGone, match="the log ends before it"):
            log.read(last._replace(offset=last.offset + last.length))
        log.sync(last._replace(offset=1 << 40))


def test_a_dropped_segment_holds_no_room_for_lack_of_a_reader(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=200) as log:
        addresses = fill(log, 3, size=100)
        log.sync()
        log.flush()
        log.read(addresses[0])
        log.drop(lambda number: number != 1)

        assert descriptors_of(tmp_path) == ["0000000003.segment"]


def test_a_segment_dropped_while_it_is_verified_is_read_to_its_end(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=500) as log:
        fill(log, 12, size=100)
        log.sync()
        log.flush()
        first = log.segments()[0]
        reading = log.verify(1)
        lengths = [next(reading)]
        log.drop(lambda _: False)
        lengths += reading

        assert (len(lengths), sum(lengths)) == (first.frames, first.bytes)
        assert descriptors_of(tmp_path).count("0000000001.segment (deleted)") == 0


def test_dropped_segments_are_gone_and_the_rest_stays(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=200) as log:
        addresses = fill(log, 6, size=100)
        log.sync()
        log.read(addresses[1])

        assert log.drop(lambda number: number != 2) == [(2, addresses[1].length, 1)]
        assert log.drop(lambda number: number != 2) == []
        assert [one.number for one in log.drop(lambda number: number > 3)] == [1, 3]
        with pytest.raises(AddressGone, match="dropped"):
            log.read(addresses[1])
        assert contents(log) == [body(n, 100) for n in (3, 4, 5)]

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "0000000004.index",
        "0000000004.segment",
        "0000000005.index",
        "0000000005.segment",
        "0000000006.segment",
    ]


def test_the_active_segment_is_never_dropped(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        fill(log, 1)

        assert log.drop(lambda _: False) == []
        assert contents(log) == [body(0)]


def test_sequences_go_on_after_all_but_an_empty_end_was_dropped(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=200) as log:
        fill(log, 3, size=100)
        log.drop(lambda _: False)

    with opened(tmp_path, segment_bytes=200) as log:
        log.append(Kind.NOTE, b"{}", b"more")

    with opened(tmp_path) as log:
        assert contents(log) == [body(2, 100), b"more"]


def test_many_segments_are_read_with_few_descriptors(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=100) as log:
        addresses = fill(log, 60, size=90)
        log.sync()
        log.flush()
        before = len(list(Path("/proc/self/fd").iterdir()))
        for address in addresses:
            log.read(address)

        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 16


def test_a_closed_log_refuses_by_name_and_leaves_no_descriptor(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with opened(tmp_path, segment_bytes=100) as log:
        address = fill(log, 5, size=90)[0]
        log.read(address)
    uses: list[Callable[[], object]] = [
        lambda: log.append(Kind.NOTE, b""),
        lambda: log.read(address),
        lambda: list(log.verify(1)),
        lambda: log.drop(lambda _: False),
    ]

    for use in uses:
        with pytest.raises(LogClosed):
            use()
    log.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_closed_log_keeps_no_preallocated_room(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        fill(log, 2)
        size = size_of(log)

    assert (tmp_path / "0000000001.segment").stat().st_size == HEADER_BYTES + size
