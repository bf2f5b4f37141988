import random
import subprocess
import sys
from pathlib import Path

import pe_agent.log
from pe_agent.log import Address
from support.logs import opened

ROUNDS = 15
WRITER = """
import os, sys, threading, types
from pathlib import Path

package = types.ModuleType("pe_agent")  # the log alone: Spark's part starts slowly
package.__path__ = [sys.argv[4]]
sys.modules["pe_agent"] = package
from pe_agent.log import Committer, Kind, StreamLog

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
    for round_ in range(ROUNDS):
        seconds = chance.choice((0.0, 0.005, 0.03, 0.06, 0.1)) * chance.random()
        write_until_killed(directory, acks, round_, seconds)

        promised = acknowledged(acks)
        with opened(directory, segment_bytes=200_000) as log:
            metas = {address: meta for address, _, meta in log.frames()}
            lost = [address for address, word in promised.items() if metas.get(address) != word]
            assert not lost
            for address in promised.keys() - checked:
                payload = bytes(log.read(address))
                assert payload == promised[address] * (len(payload) // len(promised[address]))
            assert len(metas) == log.recovered.frames
            assert log.recovered.lost_bytes == 0
        checked |= promised.keys()

    with opened(directory) as log:
        assert all(log.read(address) for address in promised)
    assert len(promised) > ROUNDS
