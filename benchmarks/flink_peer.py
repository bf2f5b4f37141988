"""Flink CEP in one JVM: the peer of the pattern engine.

Run as a program it becomes that JVM, on as many cores as it is told.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import peer_jars
import pyarrow as pa
from pattern_runs import KINDS, Workload
from processes import Child

from pe_agent.spark.local_session import java_home

PROGRAM = "FlinkPatterns"
JVM = ["-Xms2g", "-Xmx2g", "--add-opens=java.base/java.util=ALL-UNNAMED"]
SECONDS = 120.0
Mode: TypeAlias = Literal["plain", "chained", "timeouts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What Flink says of a job.

    Attributes:
        matches: how many.
        seconds: of the clock, from the first event to the end.
        processor: seconds of all its cores meanwhile.
    """

    matches: int
    seconds: float
    processor: float


class Flink(Child):
    """A JVM that runs one job after the other.

    Args:
        place: a directory for what was compiled, and the log.
        cores: on so many it runs, and so many tasks each operator has.

    Raises:
        PeerMissingError: its jars, or a compiler, are not there.
    """

    def __init__(self, place: Path, cores: int) -> None:
        self._cores = cores
        made = compiled(place / "flink")
        super().__init__(
            [sys.executable, "-m", "flink_peer", str(cores), str(made)],
            place / f"flink-{cores}.log",
        )
        try:
            self.line("ready")
        except BaseException:
            self.end()
            raise

    def run(self, workload: Workload, file: Path, mode: Mode = "plain") -> Answer:
        """Run a job over the events of a file.

        Args:
            workload: its pattern is built there anew.
            file: what `write` has written.
            mode: `chained` makes source and matching one task, without the exchange by key that any
                job with a key has, and is only for one task of each; `timeouts` has partial
                matches told whose time is over, as ours always are.
        """
        order = (
            file,
            workload.shape,
            workload.stages,
            workload.window,
            self._cores,
            mode,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, order)) + "\n")
        self.process.stdin.flush()
        matches, seconds, processor = self.line("done ", SECONDS).split()
        return Answer(matches=int(matches), seconds=float(seconds), processor=float(processor))


def write(batch: pa.RecordBatch, file: Path) -> None:
    """Write events as the program reads them."""
    kinds = batch.column("kind").dictionary_encode()
    codes = np.array([KINDS.index(kind) for kind in kinds.dictionary.to_pylist()], np.int8)
    with file.open("wb") as out:
        out.write(np.int64(batch.num_rows).tobytes())
        out.write(batch.column("key").to_numpy().tobytes())
        out.write(codes[kinds.indices.to_numpy()].tobytes())
        out.write(batch.column("price").to_numpy().tobytes())


def compiled(place: Path) -> Path:
    """Compile the program, unless it was; return where its classes are.

    Raises:
        PeerMissingError: its jars, or a compiler, are not there.
    """
    jars = peer_jars.jars("flink")
    home = java_home()
    compiler = None if home is None else home / "bin" / "javac"
    if compiler is None or not compiler.exists():
        raise peer_jars.PeerMissingError(
            "no javac", "install a JDK of Java 17 or 21 and set JAVA_HOME"
        )
    if not (place / f"{PROGRAM}.class").exists():
        source = Path(__file__).with_name(f"{PROGRAM}.java")
        where = ["-cp", os.pathsep.join(jars), "-d", str(place)]
        subprocess.run([str(compiler), "-nowarn", "-Xlint:none", *where, str(source)], check=True)
    return place


def main() -> None:
    """Become Flink's JVM."""
    cores, made = int(sys.argv[1]), sys.argv[2]
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    home = java_home()
    assert home is not None
    java = str(home / "bin" / "java")
    where = os.pathsep.join([made, *peer_jars.jars("flink")])
    os.execv(java, [java, *JVM, "-cp", where, PROGRAM])


if __name__ == "__main__":
    main()
