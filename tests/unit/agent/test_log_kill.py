import itertools
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import pe_agent.log
from pe_agent.log.frames import Address, Kind
from pe_agent.log.segments import HEADER_BYTES
from support.agents.logs import frames_of, opened, size_of

ROUNDS = 15
ALONE = """
import os, signal, sys, threading, types
from pathlib import Path

package = types.ModuleType("pe_agent")  # the log alone: Spark's part starts slowly
package.__path__ = [sys.argv[4]]
sys.modules["pe_agent"] = package
from pe_agent.log import index
from pe_agent.log.commit import Committer
from pe_agent.log.frames import Kind
from pe_agent.log.log import StreamLog

index.RUN_FRAMES = 50
"""
WRITER = (
    ALONE
    + """
directory, acks, round_ = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print("opening", flush=True)
log = StreamLog.open(directory, segment_bytes=200_000, flush_bytes=50_000, committer=Committer())
fd = os.open(acks, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def work(worker):
    for step in range(100_000):
        word = b"%d/%d/%d;" % (round_, worker, step)
        address = log.append(Kind.STAGE_DATA, word, [word, word * (step * 37 % 500)])
        if step % 3 == 0:
            log.sync(address)
            os.write(fd, b"%d %d %d %s\\n" % (*address, word))

for worker in range(3):
    threading.Thread(target=work, args=[worker]).start()
"""
)
CUT_AT_THE_INDEX = (
    ALONE
    + """
directory, moment, nth = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
append, calls = index.append, 0

def cut(segment, run, at):
    global calls
    calls += 1
    if calls < nth:
        return append(segment, run, at)
    if moment == "half":
        append(segment, run[: len(run) // 2], at)
    if moment == "after":
        append(segment, run, at)
    os.kill(os.getpid(), signal.SIGKILL)

index.append = cut
log = StreamLog.open(directory, segment_bytes=10_000, committer=Committer())
for step in range(1_000):
    address = log.append(Kind.STAGE_DATA, b"%d" % step, b"%d;" % step * 20)
    log.sync(address)
    print(*address, flush=True)
"""
)


def write_until_killed(directory: Path, acks: Path, round_: int, seconds: float) -> None:
    """Start a writer and kill -9 it `seconds` after it began to open the log."""
    package = Path(pe_agent.log.__file__).parents[1]
    command = [sys.executable, "-c", WRITER, *map(str, (directory, acks, round_, package))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"opening\n"
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
        else:
            raise AssertionError(f"the writer ended by itself with {code}")


def acknowledged(acks: Path) -> dict[Address, bytes]:
    """Return what the killed writers had been promised."""
    lines = acks.read_bytes().splitlines(keepends=True) if acks.exists() else []
    rows = [line.split() for line in lines if line.endswith(b"\n")]
    return {Address(int(a), int(b), int(c)): word for a, b, c, word in rows}


def test_every_acknowledged_frame_survives_kill_9_at_any_moment(tmp_path: Path) -> None:
    chance = random.Random(1)
    directory, acks = tmp_path / "log", tmp_path / "acks"
    promised: dict[Address, bytes] = {}
    checked: set[Address] = set()
    for round_ in itertools.count():
        if round_ >= ROUNDS and len(promised) > ROUNDS:
            break
        # Where so little is promised that nothing is tested, writers live on for longer.
        longer = 1 + round_ // ROUNDS
        seconds = longer * chance.choice((0.0, 0.005, 0.03, 0.06, 0.1)) * chance.random()
        write_until_killed(directory, acks, round_, seconds)

        promised = acknowledged(acks)
        with opened(directory, segment_bytes=200_000) as log:
            metas = {address: meta for address, _, meta in frames_of(log)}
            lost = [address for address, word in promised.items() if metas.get(address) != word]
            assert not lost
            for address in promised.keys() - checked:
                payload = bytes(log.read(address))
                assert payload == promised[address] * (len(payload) // len(promised[address]))
            assert len(metas) == log.recovered.frames
            assert log.recovered.lost_bytes == 0
            assert log.recovered.scanned_bytes < log.recovered.bytes or len(metas) < 200
            assert {address: meta for address, _, meta in log.recovered_frames(set(Kind))} == metas
        checked |= promised.keys()

    with opened(directory) as log:
        assert all(log.read(address) for address in promised)


@pytest.mark.parametrize("moment", ["before", "half", "after"])
@pytest.mark.parametrize("nth", [1, 2, 3, 4, 5, 6])
def test_a_kill_between_the_end_of_a_segment_and_its_index_costs_a_scan_of_it(
    tmp_path: Path, moment: str, nth: int
) -> None:
    """Some of these runs end a segment, some lie within one that grows."""
    directory = tmp_path / "log"
    package = Path(pe_agent.log.__file__).parents[1]
    command = [sys.executable, "-c", CUT_AT_THE_INDEX, *map(str, (directory, moment, nth, package))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    lines = [line for line in done.stdout.splitlines(keepends=True) if line.endswith("\n")]
    promised = [Address(*map(int, line.split())) for line in lines]

    with opened(directory, segment_bytes=10_000) as log:
        found = {address: meta for address, _, meta in log.recovered_frames(set(Kind))}
        assert list(found) == [address for address, _, _ in frames_of(log)]
        assert [found[address] for address in promised] == [b"%d" % n for n in range(len(promised))]
        assert all(log.read(address) == b"%s;" % found[address] * 20 for address in found)
        scanned, cut = log.recovered.scanned_bytes, log.recovered.cut_bytes
        size = size_of(log)
        tail = log.segments()[-1]
    assert cut == 0
    assert scanned < size or nth == 1
    assert scanned > 0 or moment == "after"
    indexed = {path.stem for path in directory.glob("*.index")}
    assert {path.stem for path in directory.glob("*.segment")} - indexed <= {f"{tail.number:010d}"}

    with opened(directory, segment_bytes=10_000) as log:
        assert log.recovered.scanned_bytes <= min(scanned, tail.bytes)
        assert (
            directory / f"{tail.number:010d}.segment"
        ).stat().st_size == HEADER_BYTES + tail.bytes
