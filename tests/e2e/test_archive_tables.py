"""The programs of docs/how-to/archive.md, killed between the table's commit and Spark's."""

from __future__ import annotations

import signal
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import streambroker as sb
from pe_agent.spark.local_session import ensure_java, ensure_spark_home
from support.processes import pages
from support.processes.jobs import Broker, Child, end_agent
from support.processes.waiting import until
from support.spark.checkpoints import committed
from support.spark.feeds import row

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
SECONDS = 240.0
"""How long a step may take on a busy machine."""
ROWS = 100
SCHEMA = pa.schema([("line", pa.int64()), ("price", pa.float64()), ("name", pa.string())])
FORMATS = {
    "Delta": ("write_deltalake(", ("deltalake", "write_deltalake"), "to_pyarrow_dataset()"),
    "Iceberg": ("table.append(", ("pyiceberg.table:Table", "append"), "load_table("),
}
"""Words of the program, the function whose return kills it, and words of the query."""


def published(batch: int) -> pa.Table:
    """Return the rows of an epoch."""
    rows = [row(line) for line in range(batch * ROWS, (batch + 1) * ROWS)]
    return pa.table([list(column) for column in zip(*rows, strict=True)], schema=SCHEMA)


class Archive:
    """The program of one format, and the query on its table."""

    def __init__(self, folder: Path, broker: str, format_: str) -> None:
        self._folder, self._data = folder, folder / "data"
        self._data.mkdir()
        self._places = {"/data": str(self._data), "http://127.0.0.1:8470": broker}
        words, self._kills, self._query = FORMATS[format_]
        self._program = folder / "archive.py"
        self._program.write_text(pages.code("archive", words, self._places))

    def run(self) -> Child:
        """Start the program; it is killed when it has appended for the first time."""
        mark = str(self._folder / "killed")
        command = ["-m", "support.processes.killed", mark, *self._kills, str(self._program)]
        return Child(command, self._folder / "archive.out", "")

    def committed(self) -> int:
        return committed(self._data / "archive-checkpoint")

    def query(self) -> dict[str, Any]:
        """Run the query of the page; return its variables."""
        variables: dict[str, Any] = {}
        exec(pages.code("archive", self._query, self._places), variables)
        return variables

    def end(self) -> None:
        end_agent(self._data / "agent")


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    monkeypatch.setenv("STREAMBROKER_URL", broker.url)
    monkeypatch.setenv("STREAMBROKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("JAVA_HOME", str(ensure_java()))
    monkeypatch.setenv("SPARK_HOME", str(ensure_spark_home()))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", pages.submit_arguments())
    yield broker
    broker.end()


@pytest.fixture(params=FORMATS)
def archive(tmp_path: Path, broker: Broker, request: pytest.FixtureRequest) -> Iterator[Archive]:
    archive = Archive(tmp_path, broker.url, request.param)
    yield archive
    archive.end()


def test_a_batch_repeated_after_a_kill_is_in_the_archive_once(archive: Archive) -> None:
    with sb.writer("trades", SCHEMA, job="feed", properties={"kind": "trade"}, linger=0) as feed:
        feed.publish(0, published(0))
        killed = archive.run()
        assert killed.process.wait(SECONDS) == -signal.SIGKILL, killed.said()[-3000:]
        assert archive.committed() == -1
        assert totals(archive) == expected(1)
        feed.publish(1, published(1))
        again = archive.run()
        try:
            until(lambda: again.process.poll() or archive.committed() > 0, SECONDS, "a commit")
            assert totals(archive) == expected(2)
        finally:
            again.end()


def totals(archive: Archive) -> list[tuple[str, int, float]]:
    """Return what the query of the page finds: name, number of rows, sum of prices."""
    found: list[tuple[str, int, float]] = archive.query()["totals"].fetchall()
    return found


def expected(batches: int) -> list[tuple[str, int, float]]:
    count, prices = Counter[str](), defaultdict[str, float](float)
    for _, price, name in map(row, range(batches * ROWS)):
        count[name] += 1
        prices[name] += price
    return [(name, count[name], prices[name]) for name in sorted(count)]
