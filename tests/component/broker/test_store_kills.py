"""The store under kills at every step, a disk that is full, and files that cannot be used."""

from __future__ import annotations

import asyncio
import json
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support.brokers.brokers import EXPORT, IMPORT, BrokerProcess, Rest

X = "/job/feed/pe/0/export/trades"
I = "/job/alerts/pe/0/import/trades"  # noqa: E741
AGENT = {"instance": "0123456789abcdef", "location": "grpc+tcp://h:1", "hint": None}
TESTS = Path(__file__).parents[2]


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory where there is one: a kill loses nothing that a flush would keep."""
    shared = Path("/dev/shm")
    place = Path(tempfile.mkdtemp(dir=shared if shared.is_dir() else None))
    yield place
    shutil.rmtree(place)


def swept(place: Path, *how: str) -> dict[str, int]:
    command = [sys.executable, "-m", "support.brokers.store_kills", str(place), *how]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_a_kill_between_some_steps_leaves_all_of_a_write_or_nothing(memory: Path) -> None:
    kills = swept(memory, "steps", "9")

    assert min(kills.values()) >= 1
    assert kills["change a set at once, by name"] >= 6


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_kill_between_any_two_steps_leaves_all_of_a_write_or_nothing(memory: Path) -> None:
    kills = swept(memory, "steps")

    assert min(kills.values()) >= 5
    assert kills["create an export"] >= 28
    assert kills["change a set at once, by name"] >= 55


@pytest.mark.long
def test_a_kill_in_the_middle_of_any_page_leaves_all_of_a_write_or_nothing(memory: Path) -> None:
    kills = swept(memory, "torn")

    assert all(count >= 8 for name, count in kills.items() if name != "close")


# ---- several brokers -----------------------------------------------------------------


@pytest.mark.parametrize("exists", [False, True])
def test_of_brokers_that_start_at_one_moment_on_one_file_one_runs(
    tmp_path: Path, exists: bool
) -> None:
    db = tmp_path / "broker.db"
    if exists:
        first = BrokerProcess(db)
        first.url()
        first.kill()
    brokers = [BrokerProcess(db) for _ in range(4)]
    lines = [broker.first_line() for broker in brokers]
    running = [broker for broker, line in zip(brokers, lines, strict=True) if line]
    refused = [broker.end() for broker, line in zip(brokers, lines, strict=True) if not line]
    for broker in running:
        broker.process.send_signal(signal.SIGTERM)
    ends = [broker.end() for broker in running]

    assert ends == [(0, "")]
    assert [code for code, _ in refused] == [1, 1, 1]
    assert all("in use by another broker" in errors for _, errors in refused)


# ---- a disk that is full -----------------------------------------------------------


@asynccontextmanager
async def running(db: Path) -> AsyncIterator[tuple[BrokerProcess, Rest]]:
    broker = BrokerProcess(db)
    try:
        async with aiohttp.ClientSession() as session:
            yield broker, Rest(await asyncio.to_thread(broker.url), session)
    finally:
        broker.kill()


def let_files_grow_to(broker: BrokerProcess, size: int) -> None:
    resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


async def everything(rest: Rest) -> list[Any]:
    paths = ("/exports", "/imports", "/pes", "/routes", "/job/alerts/pe/0")
    bodies = [(await rest("GET", path)).body for path in paths]
    for pe in bodies[paths.index("/pes")]["items"]:
        del pe["seen"]  # of this run alone
    points = {"point", "patternsAt"}  # how far is known, which moves where nothing changes
    return [{name: part for name, part in body.items() if name not in points} for body in bodies]


WRITES: list[tuple[str, str, Any]] = [
    ("PUT", "/job/new/pe/0/export/p", EXPORT),
    ("PUT", f"{I}/filter", {"filter": "price > 1.0"}),
    ("PUT", f"{X}/properties", {"kind": "trade", "level": 6}),
    ("DELETE", X, None),
    ("PUT", "/job/feed/pe/0", {**AGENT, "location": "grpc+tcp://h:2"}),
    ("PUT", "/job/new/pe/0", AGENT),
    (
        "POST",
        "/apply",
        {"resources": [], "delete": [{"kind": "Export", "job": "feed", "port": "trades"}]},
    ),
]


@pytest.mark.parametrize("room", [0, 100, 5000])
async def test_a_full_disk_is_said_and_changes_nothing_until_there_is_room(
    tmp_path: Path, room: int
) -> None:
    db = tmp_path / "broker.db"
    async with running(db) as (broker, rest):
        for path, body in ((X, EXPORT), (I, IMPORT), ("/job/feed/pe/0", AGENT)):
            await rest("PUT", path, body)
        before = await everything(rest)
        let_files_grow_to(broker, (tmp_path / "broker.db-wal").stat().st_size + room)
        for method, path, body in WRITES:
            answer = await rest(method, path, body)
            assert (answer.status, answer.code) == (503, "StoreFailed"), path
            assert answer.headers["Retry-After"] == "5"
            assert "Nothing is changed" in answer.body["detail"]
        again = await rest("PUT", "/job/feed/pe/0", AGENT)
        assert again.status == 200, "what writes nothing needs no room"
        assert await everything(rest) == before

        let_files_grow_to(broker, resource.RLIM_INFINITY)
        written = await rest("PUT", f"{I}/filter", {"filter": "price > 1.0"})
        assert (written.status, written.body["generation"]) == (200, 2)
        after = await everything(rest)
    async with running(db) as (_, rest):
        assert await everything(rest) == after


def test_a_disk_that_is_full_from_the_beginning_refuses_the_broker(tmp_path: Path) -> None:
    code, errors = start_after("resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))", tmp_path)

    assert code == 1
    assert "cannot be used as the broker's database" in errors
    assert "Traceback" not in errors


def start_after(statement: str, place: Path) -> tuple[int, str]:
    """Start a broker that has done something to itself, and wait for its end."""
    program = (
        "import os, resource, sys\n"
        "import streambroker_operator.broker\n"
        "from streambroker_operator.cli.app import main\n"
        f"{statement}\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", program, "up", "--db", str(place / "broker.db"), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    return done.returncode, done.stderr


# ---- files that cannot be used -------------------------------------------------------


@pytest.mark.parametrize(("file", "mode"), [("broker.db", 0o444), ("broker.db", 0), ("", 0o555)])
def test_a_file_that_cannot_be_written_refuses_the_broker_and_stays_as_it_is(
    file: str, mode: int
) -> None:
    # Not below pytest's directory: where the tests run as root, the broker becomes somebody else.
    place = Path(tempfile.mkdtemp())
    place.chmod(0o777)
    try:
        first = BrokerProcess(place / "broker.db")
        first.url()
        first.process.send_signal(signal.SIGTERM)
        first.end()
        before = (place / "broker.db").read_bytes()
        (place / "broker.db.lock").chmod(0o666)
        (place / file).chmod(mode)
        code, errors = start_after("os.geteuid() or os.setuid(65534)", place)
        (place / file).chmod(0o777)
        after = (place / "broker.db").read_bytes()
    finally:
        shutil.rmtree(place)

    assert code == 1
    assert "cannot be used as the broker's database" in errors
    assert "Traceback" not in errors
    assert after == before
