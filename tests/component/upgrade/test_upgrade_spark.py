"""Queries, agents and a broker of the last release are killed; those of this one go on."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pe_agent.transport.agent_client import AgentClient
from support.processes.jobs import Broker, Child, end_agent
from support.processes.releases import Release
from support.processes.waiting import until

SECONDS = 240.0
"""At most without a window that ends."""
JOBS = ("feed", "alerts")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = pa.schema(
    [
        ("id", pa.int64()),
        ("t", pa.timestamp("us", "UTC")),
        ("user", pa.string()),
        ("n", pa.string()),
        ("currency", pa.string()),
    ]
)


class Upgraded:
    """A broker, and a driver with two jobs and their agents, on one folder.

    Args:
        folder: for all files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broker: Broker | None = None
        self.driver: Child | None = None
        for name in ("in", "rates", "names", "out"):
            (folder / name).mkdir()

    # -- processes ---------------------------------------------------------------------------

    def start(self, sources: str = "") -> list[str]:
        """Start the broker and the driver; return where the driver's modules come from.

        Args:
            sources: where both look for modules first, and so do agents and workers.
        """
        port = int(self.broker.url.rpartition(":")[2]) if self.broker else 0
        self.broker = Broker(self.folder, port, sources=sources)
        command = ["-m", "support.driver", "upgrade"]
        self.driver = Child(
            [*command, str(self.folder), self.broker.url],
            self.folder / "driver.out",
            "driver ready",
            sources=sources,
        )
        files: list[str] = json.loads(self.driver.await_ready().removeprefix("driver ready "))
        return files

    def kill(self) -> None:
        """Kill all at once, as a crash does."""
        for child in (self.driver, self.broker):
            if child is not None:
                child.end()
        for job in JOBS:
            home = self.folder / f"home-{job}"
            end_agent(home)
            until(lambda home=home: is_free(home), SECONDS, f"{home} is free")  # type: ignore[misc]

    def await_that(self, fact: Any, what: str) -> None:
        """Wait for a fact while the driver lives."""

        def found() -> bool:
            assert self.driver is not None
            assert self.driver.process.poll() is None, self.driver.said()[-5000:]
            return bool(fact())

        until(found, SECONDS, what, pause_s=0.05, progress=self.written)

    # -- what goes in ------------------------------------------------------------------------

    def put(self, folder: str, rows: list[dict[str, Any]], schema: pa.Schema | None = None) -> None:
        """Put a file of rows there, whole, for a query that takes the oldest file first."""
        number = len(list((self.folder / folder).iterdir()))
        hidden = self.folder / f".{folder}"
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), hidden)
        os.utime(hidden, (number + 1, number + 1))
        hidden.rename(self.folder / folder / f"{number:03}.parquet")

    def feed(self, *rows: tuple[int, int, str, str, str]) -> None:
        """Let the exporting job see rows, given as in ``ROWS`` with seconds for a time."""
        names = ROWS.names
        given = [dict(zip(names, row, strict=True)) for row in rows]
        for row in given:
            row["t"] = BEGIN + timedelta(seconds=row["t"])
        self.put("in", given, ROWS)

    # -- what comes out ----------------------------------------------------------------------

    def windows(self, query: str) -> dict[int, list[list[Any]]]:
        """Return the rows of windows; one that was given twice has to be the same again."""
        found: dict[int, list[list[Any]]] = {}
        for path in (self.folder / "out").glob(f"{query}-*.json"):
            window = int(path.stem.split("-")[1])
            rows = json.loads(path.read_text())
            assert found.setdefault(window, rows) == rows, f"window {window} comes again changed"
        return found

    def rows(self) -> list[list[Any]]:
        """Return all rows that came out, by id, with the number of their table's version alone."""
        rows = [row for some in self.windows("rows").values() for row in some]
        return sorted([*row[:-1], row[-1].partition("-")[0]] for row in rows)

    def matches(self) -> list[list[Any]]:
        """Return all matches: rule, version, and the ids of their rows."""
        found = []
        for _, some in sorted(self.windows("matches").items()):
            for rule, version, events in some:
                taken = [event["id"] for each in json.loads(events).values() for event in each]
                found.append([rule, version, taken])
        return found

    def written(self) -> int:
        """Return how many files queries have written down."""
        patterns = ("out/*.json", "ck-*/offsets/[0-9]*", "ck-*/commits/[0-9]*")
        return sum(len(list(self.folder.glob(one))) for one in patterns)

    def committed(self, query: str) -> int:
        """Return the last window that is committed in a query's checkpoint; -1 for none."""
        names = [path.name for path in (self.folder / f"ck-{query}" / "commits").glob("[0-9]*")]
        return max(map(int, names), default=-1)

    def planned(self, query: str) -> int:
        """Return the last window that is planned in a query's checkpoint."""
        names = [path.name for path in (self.folder / f"ck-{query}" / "offsets").glob("[0-9]*")]
        return max(map(int, names))

    def streams(self) -> dict[str, int]:
        """Return the next epoch of each stream of the export, as its agent reports it."""
        address = json.loads((self.folder / "home-feed" / "agent.json").read_text())
        status = AgentClient(address["location"], address["token"]).call("status")
        streams = status["exports"]["default/feed/0/counted"]["streams"]
        return {name: one["next"] for name, one in streams.items()}


def is_free(home: Path) -> bool:
    """Whether no agent has a data directory."""
    if not (home / "lock").exists():
        return True
    with (home / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


@pytest.fixture
def upgraded(tmp_path: Path) -> Iterator[Upgraded]:
    made = Upgraded(tmp_path)
    yield made
    made.kill()


@pytest.mark.long
@pytest.mark.compatibility(
    "checkpoints of queries",
    "killed queries of the last release go on to the same results",
)
def test_what_the_last_release_has_left_goes_on_and_comes_to_what_one_run_would_give(
    upgraded: Upgraded, released: Release
) -> None:
    """Row 2 waits for its rate, and user u has half a pattern, when all is killed."""
    one = upgraded
    one.put("names", [{"user": user, "name": f"name of {user}"} for user in "uvx"])
    one.put("rates", [{"currency": "EUR", "rate": 1.0}])
    one.feed((0, 0, "u", "A", "EUR"), (1, 1, "v", "A", "EUR"))
    one.feed((2, 2, "v", "B", "USD"), (3, 3, "v", "C", "EUR"), (4, 9, "x", "-", "EUR"))
    files = one.start(released.search_path)
    assert all(released.has(file) for file in files), files
    one.await_that(lambda: len(one.rows()) == 4, "all rows that need not wait")
    one.await_that(lambda: one.matches() == [["abc", 1, [1, 2, 3]]], "the first match")
    for query in ("rows", "matches"):
        last = max(one.windows(query))
        one.await_that(lambda q=query, w=last: one.committed(q) >= w, f"{query} are committed")
    (one.folder / "hold-rows").touch()
    one.feed((5, 10, "u", "B", "EUR"))
    one.await_that((one.folder / "held-rows").exists, "a window of which nothing is committed")
    assert one.planned("rows") > one.committed("rows")
    before = one.streams()
    one.kill()

    (one.folder / "hold-rows").unlink()
    one.put("rates", [{"currency": "USD", "rate": 2.0}])
    one.feed((6, 20, "u", "C", "EUR"), (7, 21, "v", "A", "USD"), (8, 99, "x", "-", "EUR"))
    files = one.start()
    assert not any(released.has(file) for file in files), files
    one.await_that(lambda: len(one.rows()) >= 9, "all rows")
    one.await_that(lambda: len(one.matches()) >= 2, "the second match")

    names = {user: f"name of {user}" for user in "uvx"}
    assert one.rows() == [
        [0, 1, 1, 1.0, names["u"], "v1"],
        [1, 1, 1, 1.0, names["v"], "v1"],
        [2, 2, 1, 2.0, names["v"], "v1"],
        [3, 3, 1, 1.0, names["v"], "v1"],
        [4, 1, 1, 1.0, names["x"], "v1"],
        [5, 2, 1, 1.0, names["u"], "v1"],
        [6, 3, 11, 1.0, names["u"], "v1"],
        [7, 4, 11, 2.0, names["v"], "v1"],
        [8, 2, 11, 1.0, names["x"], "v1"],
    ]
    assert one.matches() == [["abc", 1, [1, 2, 3]], ["abc", 1, [0, 5, 6]]]
    (stream,) = before
    assert list(one.streams()) == [stream]
    assert one.streams()[stream] > before[stream]
