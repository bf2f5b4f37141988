"""The restore drill: a live publisher and readers, a snapshot by the command line, a restore."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pe_agent.transport.broker_client import BrokerClient
from pe_agent.transport.flight_errors import AgentRefusedError, AgentUnreachableError
from streambroker_client.errors import BrokerRefusedError
from streambroker_operator.cli import main
from support.agents.agents import AgentProcess, Publishing, error_code, rows
from support.agents.connected import Connected
from support.agents.sources import Run
from support.processes.waiting import until
from support.storage.drill import ROWS, Load

SECONDS = 100.0
OLDER = re.compile("DataLoss: .*older copy")
OTHER = 1_000_000
"""First row of batches whose content differs from what was published after the snapshot."""


@dataclass
class Reader:
    """A query that reads the import, with the rows that have come."""

    run: Run
    rows: list[int] = field(default_factory=list)

    def advance(self) -> None:
        """Read what there is now; an agent that is away is waited for by the next call."""
        with contextlib.suppress(AgentUnreachableError):
            end = self.run.plan()
            if end != self.run.at:
                self.rows += self.run.read(end)

    def read_to(self, count: int) -> None:
        def enough() -> bool:
            self.advance()
            return len(self.rows) >= count

        until(enough, SECONDS, f"{count} rows, of which {len(self.rows)} have come")

    def loss(self) -> str:
        """Return the message with which the query stops."""

        def stops() -> str:
            try:
                self.advance()
            except AgentRefusedError as error:
                return f"{error.code}: {error}"
            return ""

        return str(until(stops, SECONDS, "the query stops"))


def command(agents: Connected, *words: str) -> int:
    return main(["--url", agents.broker.url, "snapshot", *words])


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Connected]:
    made = Connected(tmp_path)
    made.start()
    made.declare(made.exporter, "export", properties={"kind": "trade"})
    made.declare(made.importer, "import", subscription='kind == "trade"', start="earliest")
    until(made.at, SECONDS, "a route")
    yield made
    made.end()


@dataclass
class Drilled:
    """What there was when the disk was lost, and the agent that runs on the restored snapshot.

    Attributes:
        saved: number of batches in the snapshot.
        published: number of batches that were published.
        behind: reads up to the snapshot at most, ``ahead`` has read all that was published.
    """

    agents: Connected
    saved: int
    published: int
    behind: Reader
    ahead: Reader

    def publish(self, batch: int, first: int) -> None:
        publisher = Publishing(self.agents.exporter, run="after the restore")
        assert publisher.publish(batch, rows(first, ROWS))["published"]


@pytest.fixture
def drilled(agents: Connected, capsys: pytest.CaptureFixture[str]) -> Drilled:
    home = agents.exporter.home
    behind, ahead = Reader(Run(agents.importer)), Reader(Run(agents.importer))
    load = Load(agents)
    try:
        for reader in (behind, ahead):
            reader.read_to(3 * ROWS)
        # Acknowledged, as by the query's next batch.
        behind.run.plan()
        before = load.published
        assert command(agents, "create", "feed/0", "nightly") == 0, capsys.readouterr().err
        assert f"in {home}/snapshots/nightly" in capsys.readouterr().out
        load.await_more(6)
    finally:
        load.stop()
    ahead.read_to(load.published * ROWS)

    agents.exporter.kill()
    lost = home.with_name("lost")
    home.rename(lost)
    assert command(agents, "check", str(lost / "snapshots/nightly")) == 0
    assert command(agents, "restore", str(lost / "snapshots/nightly"), str(home)) == 0
    shutil.rmtree(lost)
    agents.exporter.start()
    status = agents.exporter.export_status()
    saved = status["publisher"]["batch"] + 1
    assert before <= saved < load.published
    assert (status["publishedRows"], status["damaged"]) == (saved * ROWS, [])
    return Drilled(agents, saved, load.published, behind, ahead)


def test_rows_up_to_the_snapshot_are_exact_and_a_restored_exporter_goes_on(
    drilled: Drilled,
) -> None:
    """The exporter's checkpoint is of the snapshot, too: it fills its next batches again."""
    drilled.behind.read_to(drilled.saved * ROWS)
    assert drilled.behind.rows == list(range(drilled.saved * ROWS))
    assert OLDER.search(drilled.ahead.loss())
    more = range(drilled.saved, drilled.published + 3)
    for batch in more:
        drilled.publish(batch, OTHER + batch * ROWS)
    wanted = [OTHER + n for n in range(more.start * ROWS, more.stop * ROWS)]
    drilled.behind.read_to((drilled.saved + len(more)) * ROWS)
    assert drilled.behind.rows == [*range(drilled.saved * ROWS), *wanted]
    assert "lost" not in drilled.behind.run.at
    # Its epochs have numbers that the reader had read, with other rows: they are not taken.
    assert OLDER.search(drilled.ahead.loss())
    assert drilled.ahead.rows == list(range(drilled.published * ROWS))


def test_an_exporter_that_is_ahead_of_the_snapshot_has_its_loss_reported(
    drilled: Drilled,
) -> None:
    """The exporter's checkpoint is of today: it goes on behind batches that are in no log."""
    drilled.publish(drilled.published, drilled.published * ROWS)
    gap = f"batches {drilled.saved} to {drilled.published - 1} "
    drilled.behind.read_to(drilled.saved * ROWS)
    assert re.search(f"DataLoss: .*{gap}", drilled.behind.loss())
    assert OLDER.search(drilled.ahead.loss())
    drilled.behind.run.stop()
    lossy = Reader(Run(drilled.agents.importer, at=drilled.behind.run.at, skip_lost=True))
    lossy.read_to(ROWS)
    first = drilled.published * ROWS
    assert lossy.rows == list(range(first, first + ROWS))
    assert [epochs for epochs, _ in lossy.run.at["lost"].values()] == [
        drilled.published - drilled.saved
    ]


def _refused(agents: Connected, name: str) -> str:
    path = f"/job/feed/pe/0/snapshots/{name}"
    with pytest.raises(BrokerRefusedError) as found:
        BrokerClient(agents.broker.url, "default").request("PUT", path, timeout=SECONDS)
    return found.value.code


def test_a_wrong_name_and_an_agent_that_cannot_are_refused_by_their_codes(
    agents: Connected,
) -> None:
    assert _refused(agents, "UPPER") == "SnapshotInvalid"
    folder = agents.exporter.home / "snapshots"
    folder.touch()
    assert _refused(agents, "one") == "SnapshotFailed"
    folder.unlink()
    assert command(agents, "create", "feed/0", "one") == 0
    (folder / "one/manifest.json").write_text("{")
    assert _refused(agents, "one") == "SnapshotInvalid"


def test_an_agent_with_a_bucket_takes_no_snapshot(tmp_path: Path) -> None:
    agent = AgentProcess(
        tmp_path / "feed", "feed",
        environment={"STREAMBROKER_STORAGE": f"file://{tmp_path}/shared"},
    )  # fmt: skip
    agent.prepare()
    agent.start()
    try:
        assert error_code(agent.client.call, "agent.snapshot", name="one") == "SnapshotFailed"
    finally:
        agent.kill()
