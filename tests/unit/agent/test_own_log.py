"""What an agent writes about itself does not grow without end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pe_agent.agent.reports.log_file import ProcessLog
from pe_agent.agent.reports.log_limiter import INTERVAL_SECONDS, RateLimitedLog


@pytest.fixture
def fds(tmp_path: Path) -> Iterator[list[int]]:
    """Two descriptors of agent.log, as output and errors of a process."""
    found = [os.open(tmp_path / "agent.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)]
    found.append(os.dup(found[0]))
    yield found
    for fd in found:
        os.close(fd)


def test_a_full_log_makes_place_for_a_new_one_and_one_is_kept(
    tmp_path: Path, fds: list[int]
) -> None:
    log = ProcessLog(tmp_path, max_bytes=100, descriptors=fds)
    for number in range(40):
        os.write(fds[number % 2], f"line {number:04}\n".encode())
        log.rotate_if_full()
    files = {path.name: path.read_text().splitlines() for path in tmp_path.iterdir()}
    assert set(files) == {"agent.log", "agent.log.1"}
    lines = [*files["agent.log.1"], *files["agent.log"]]
    assert lines == [f"line {n:04}" for n in range(40 - len(lines), 40)]
    assert all(sum(map(len, of)) <= 110 for of in files.values())


def test_output_that_goes_elsewhere_is_left_alone(tmp_path: Path, fds: list[int]) -> None:
    (tmp_path / "agent.log").rename(tmp_path / "elsewhere")
    os.write(fds[0], b"x" * 200)
    ProcessLog(tmp_path, max_bytes=100, descriptors=fds).rotate_if_full()
    (tmp_path / "agent.log").write_text("of another")
    ProcessLog(tmp_path, max_bytes=1, descriptors=fds).rotate_if_full()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["agent.log", "elsewhere"]


def test_of_one_kind_there_is_a_line_a_minute_that_counts_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [100.0]
    sparse = RateLimitedLog(clock=lambda: now[0])
    for _ in range(1_500):
        sparse.warning("junk came")
        now[0] += INTERVAL_SECONDS / 1_000
    assert [r.getMessage() for r in caplog.records] == [
        "junk came",
        "junk came (999 more since the last one)",
    ]
