import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pe_agent.log import frames
from pe_agent.log.log import StreamLog
from pe_agent.log.scrub import Scrub
from pe_agent.log.segments import HEADER_BYTES
from support.agents.logs import body, fill, flip, opened
from support.processes.waiting import until

FRAME = frames.HEADER_BYTES + len(b'{"n": 0}') + 40
SECONDS = 20.0


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A closed log of three segments with two frames each, the first two indexed."""
    with opened(tmp_path, segment_bytes=2 * FRAME) as log:
        fill(log, 6)
    return tmp_path


def done(scrub: Scrub) -> Callable[[], bool]:
    return lambda: not scrub.waiting


def test_what_recovery_did_not_look_at_is_verified(three: Path) -> None:
    scrub = Scrub()
    with opened(three) as log:
        scrub.add(log)
        until(done(scrub), SECONDS, "the scrub")
        assert scrub.verified_bytes == 6 * FRAME
        assert not log.damaged
    scrub.close()


def test_a_log_that_recovery_has_read_whole_is_not_read_again(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        fill(log, 6)
    scrub = Scrub()
    with opened(tmp_path) as log:
        scrub.add(log)
        assert done(scrub)()
    scrub.close()


@pytest.mark.parametrize("at", [9, FRAME - 1, FRAME + 9])
def test_damage_is_noted_and_said_and_the_rest_is_verified(
    three: Path, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    flip(three / "0000000001.segment", HEADER_BYTES + at)
    scrub = Scrub()
    with opened(three) as log, caplog.at_level(logging.ERROR):
        scrub.add(log)
        until(done(scrub), SECONDS, "the scrub")
        assert list(log.damaged) == [1]
        assert scrub.verified_bytes == (5 if at > FRAME else 4) * FRAME
    scrub.close()
    assert "0000000001.segment: damaged at offset" in caplog.text


def test_a_log_that_is_closed_or_dropped_meanwhile_holds_nothing_up(
    three: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    with opened(other, segment_bytes=2 * FRAME) as log:
        fill(log, 4)
    scrub = Scrub()
    with opened(three) as closed:
        pass
    with opened(other) as log:
        log.drop(lambda number: number != 1)
        scrub.add(closed)
        scrub.add(log)
        until(done(scrub), SECONDS, "the scrub")
        assert scrub.verified_bytes == 2 * FRAME
    scrub.close()


class Turns:
    """A clock by which reading takes no time, and a log of two slices that waits in its pace."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waited: list[float] = []

    def clock(self) -> float:
        return self.now


def rests(
    monkeypatch: pytest.MonkeyPatch, directory: Path, *, seconds_per_frame: float
) -> list[float]:
    """Return how long the scrub rests between slices of two frames of 1 MiB in all."""
    with opened(directory, segment_bytes=8 << 20) as log:
        for n in range(20):
            log.append(4, b"{}", body(n, 1 << 19))
    waited: list[float] = []
    turns = Turns()
    wait_for = threading.Condition.wait_for

    def counted(
        self: threading.Condition, predicate: Callable[[], object], timeout: float | None = None
    ) -> object:
        if threading.current_thread().name == "log scrub" and timeout is not None:
            waited.append(timeout)
            return predicate()
        return wait_for(self, predicate, timeout)

    verify = StreamLog.verify

    def slow(self: StreamLog, number: int) -> object:
        for length in verify(self, number):
            turns.now += seconds_per_frame
            yield length

    monkeypatch.setattr(threading.Condition, "wait_for", counted)
    monkeypatch.setattr(StreamLog, "verify", slow)
    scrub = Scrub(bytes_per_second=1 << 20, share=0.1, clock=turns.clock)
    with opened(directory, segment_bytes=8 << 20) as log:
        scrub.add(log)
        until(done(scrub), SECONDS, "the scrub")
    scrub.close()
    return [seconds for seconds in waited if seconds]


def test_the_scrub_keeps_to_its_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = rests(monkeypatch, tmp_path, seconds_per_frame=0)
    assert sum(waited) == pytest.approx(10, rel=0.01)
    assert max(waited) < 1.1


def test_the_scrub_keeps_to_its_share_of_a_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = rests(monkeypatch, tmp_path, seconds_per_frame=1.0)
    assert sum(waited) == pytest.approx(20 * 9, rel=0.01)
