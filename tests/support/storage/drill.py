"""An exporter's agent is killed and its data directory deleted, at random, under load.

``python -m support.storage.drill RUNS [URL]``. Without a URL it uses the S3 server of the tests.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pe_agent.transport.flight_errors import AgentRefusedError, AgentUnreachableError
from streambroker_core.errors import StreambrokerError
from support.agents.agents import Pair, Publishing, Reading, pair, rows
from support.agents.connected import Connected
from support.processes.waiting import until
from support.storage.servers import MISSING, is_built, s3_server

ROWS = 20
"""Rows of a batch."""
RUNS_PER_PAIR = 20
PATIENCE = 60.0


@dataclass
class Load:
    """Publishes batches until it is stopped; a batch that failed is repeated, as Spark does.

    Attributes:
        published: number of batches, all in order.
    """

    agents: Pair | Connected
    published: int = 0
    error: BaseException | None = None
    _stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def await_more(self, batches: int) -> None:
        """Wait until so many more batches are published."""
        wanted = self.published + batches
        until(lambda: self.error or self.published >= wanted, PATIENCE, f"{batches} more batches")

    def _run(self) -> None:
        try:
            run = 0
            while not self._stop.is_set():
                publisher = Publishing(self.agents.exporter, run=f"run-{run}")
                run += 1
                with contextlib.suppress(AgentUnreachableError, OSError):
                    while not self._stop.is_set():
                        if "admitted" not in publisher.admit(self.published):
                            self._stop.wait(0.05)  # until the reader has made room
                            continue
                        first = self.published * ROWS
                        publisher.publish(self.published, rows(first, ROWS))
                        self.published += 1
        except BaseException as error:
            self.error = error


@dataclass
class Reader:
    """Reads what is published, in order.

    Attributes:
        expected: the row that comes next.
        lost: rows that did not come.
        doubled: rows that came again.
    """

    reading: Reading
    start: dict[str, object]
    expected: int = 0
    lost: int = 0
    doubled: int = 0

    def read_to(self, rows_published: int) -> None:
        """Read until all rows that were published before have come."""
        while self.expected < rows_published:
            end = self.reading.end(self.start, PATIENCE)
            for number in until(partial(self._rows, end), PATIENCE, "rows"):
                self.doubled += number < self.expected
                self.lost += max(0, number - self.expected)
                self.expected = max(self.expected, number + 1)
            self.start = end

    def _rows(self, end: dict[str, object]) -> list[int] | None:
        try:
            return self.reading.read(self.start, end)
        except (AgentUnreachableError, AgentRefusedError):
            return None


def lose_disk(agents: Pair) -> None:
    """Kill the exporter's agent, delete its directory, and start another in an empty one."""
    agents.exporter.kill()
    shutil.rmtree(agents.exporter.home)
    agents.exporter.prepare()
    agents.plumb()
    agents.exporter.start()


def drill(directory: Path, environment: dict[str, str], runs: int, seed: int) -> tuple[int, Reader]:
    """Lose the disk of one exporter ``runs`` times; return the rows published, and its reader."""
    chance = random.Random(seed)
    pause = threading.Event()
    for agents in pair(directory, environment=environment, durability="stored"):
        reading = Reading(agents.importer)
        reader = Reader(reading, reading.open())
        load = Load(agents)
        try:
            for _ in range(runs):
                pause.wait(chance.uniform(0.0, 0.5))
                lose_disk(agents)
                reader.read_to(load.published * ROWS)
        finally:
            load.stop()
        reader.read_to(load.published * ROWS)
        return load.published * ROWS, reader
    raise AssertionError("no agents")


@contextlib.contextmanager
def storage(directory: Path, url: str | None) -> Iterator[dict[str, str]]:
    """Yield the environment of agents that use a bucket."""
    if url is not None:
        yield {"STREAMBROKER_STORAGE": url}
        return
    with s3_server(directory / "s3") as environment:
        yield environment


def main(arguments: list[str]) -> int:
    """Run the drill; return 1 if a row was lost or doubled."""
    runs, url = int(arguments[0]), arguments[1] if len(arguments) > 1 else None
    if url is None and not is_built():
        sys.stderr.write(f"{MISSING}\n")
        return 2
    published = lost = doubled = done = 0
    with tempfile.TemporaryDirectory() as place, storage(Path(place), url) as environment:
        while done < runs:
            some = min(RUNS_PER_PAIR, runs - done)
            where = Path(place) / str(done)
            bucket = {"STREAMBROKER_STORAGE": f"{environment['STREAMBROKER_STORAGE']}/{done}"}
            try:
                rows_published, reader = drill(where, {**environment, **bucket}, some, seed=done)
            except StreambrokerError as error:
                sys.stderr.write(f"after {done} runs: {error.code}: {error}\n")
                return 1
            done += some
            published += rows_published
            lost, doubled = lost + reader.lost, doubled + reader.doubled
            sys.stdout.write(f"{done} of {runs} runs, {published} rows\n")
            sys.stdout.flush()
    sys.stdout.write(
        f"{runs} runs: {published} rows published, {lost} lost, {doubled} doubled under stored\n"
    )
    return 1 if lost or doubled else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
