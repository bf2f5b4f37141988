"""Who waits for an agent learns how far it is, and waits on as long as it gets on."""

from __future__ import annotations

from pathlib import Path

import pytest

from pe_agent.agent.state import recovery_progress as progress
from pe_agent.agent.state.recovery_progress import (
    ProgressTimeout,
    RecoveryProgress,
    describe_progress,
    read_progress,
)


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    one = Clock()
    monkeypatch.setattr(progress, "time", one)
    return one


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A data directory with two logs, of 300 and 100 bytes, and one that is kept for another's."""
    for stream, sizes in (
        ("log/trades/a", (100, 200)),
        ("log/trades/b", (100,)),
        ("kept/c", (50,)),
    ):
        folder = tmp_path / stream
        folder.mkdir(parents=True)
        (folder / "0000000001.index").write_bytes(b"x" * 1000)
        for number, size in enumerate(sizes, 1):
            (folder / f"{number:010d}.segment").write_bytes(bytes(size))
    return tmp_path


def test_progress_counts_over_all_logs_and_is_gone_at_the_end(home: Path, clock: Clock) -> None:
    assert read_progress(home) is None
    one = RecoveryProgress(home)
    one("a", 100, 300)
    assert read_progress(home) == {"stream": "a", "done": 100, "total": 450}
    one("a", 200, 300)
    assert read_progress(home) == {"stream": "a", "done": 100, "total": 450}
    clock.now += 1
    one("a", 300, 300)
    clock.now += 1
    one("b", 60, 100)
    progress = read_progress(home)
    assert progress == {"stream": "b", "done": 360, "total": 450}
    assert describe_progress(progress) == "80 % of 0 MiB"
    one.end()
    assert read_progress(home) is None


def test_an_agent_that_gets_on_is_waited_for(home: Path, clock: Clock) -> None:
    patience = ProgressTimeout(home, 10, clock.monotonic)
    one = RecoveryProgress(home)
    for step in range(20):
        clock.now += 9
        one("a", 10 * step, 300)
        assert patience.should_wait()
    clock.now += 9
    assert patience.should_wait()
    clock.now += 1
    assert not patience.should_wait()


def test_what_a_killed_agent_has_left_is_no_progress(home: Path, clock: Clock) -> None:
    RecoveryProgress(home)("a", 100, 300)
    patience = ProgressTimeout(home, 10, clock.monotonic)
    clock.now += 9
    assert patience.should_wait()
    clock.now += 1
    assert not patience.should_wait()
