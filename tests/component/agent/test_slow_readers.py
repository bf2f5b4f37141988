"""Two importers of one export, one of which stands still: who loses, what, and who is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from support.agents.agents import Publishing, rows
from support.agents.connected import Connected
from support.agents.sources import Run
from support.processes.waiting import until

SECONDS = 30.0
EPOCHS, ROWS = 12, 10
SIZE = 1000
"""Bytes of a row, more or less: two epochs fill the log."""


@pytest.fixture
def connected(tmp_path: Path) -> Iterator[Connected]:
    made = Connected(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.end()


def wide(epoch: int) -> pa.RecordBatch:
    return rows(ROWS * epoch, ROWS).set_column(1, "name", pa.array(["x" * SIZE] * ROWS))


def publish(connected: Connected, epoch: int) -> None:
    """Publish an epoch; whom the export waits for has to be gone in time."""
    publisher = Publishing(connected.exporter)
    until(lambda: publisher.admit(epoch) == {"admitted": True}, SECONDS, f"room for epoch {epoch}")
    publisher.publish(epoch, wide(epoch))


def read_to(run: Run, next_: int) -> list[int]:
    """Return the rows of all batches up to an epoch, acknowledged."""
    found: list[int] = []

    def there() -> bool:
        if (end := run.plan()) != run.at:
            found.extend(run.read(end))
        return [p["next"] for p in run.at["streams"].values()] == [next_]

    until(there, SECONDS, f"{run.source} at epoch {next_}")
    run.plan()
    return found


def of_epochs(*epochs: int) -> list[int]:
    return [n for e in epochs for n in range(ROWS * e, ROWS * (e + 1))]


@pytest.mark.parametrize(
    ("policy", "volunteers"), [("wait", True), ("drop", False)], ids=["volunteers", "all drop"]
)
def test_only_the_reader_that_stands_still_loses_its_oldest_epochs_and_is_informed(
    connected: Connected, policy: str, volunteers: bool
) -> None:
    buffer = {"maxBytes": "25Ki"}
    kind: dict[str, Any] = {"properties": {"kind": "trade"}, "buffer": buffer}
    connected.declare(connected.exporter, "export", congestionPolicy=policy, **kind)
    wanted: dict[str, Any] = {"subscription": 'kind == "trade"', "start": "earliest"}
    connected.declare(connected.importer, "import", "good", **wanted)
    wanted["onCongestion"] = "drop" if volunteers else "inherit"
    connected.declare(connected.importer, "import", "slow", **wanted)
    good, slow = (Run(connected.importer, port, reconnect=SECONDS) for port in ("good", "slow"))
    for run in (good, slow):
        until(lambda r=run: r.plan().get("last"), SECONDS, "the route is open")  # type: ignore[misc]
    publish(connected, 0)
    read, slowly = read_to(good, 1), read_to(slow, 1)
    publish(connected, 1)
    until(lambda: slow.plan() != slow.at, SECONDS, "a plan")
    planned = slow.plan()

    for epoch in range(2, EPOCHS):
        read += read_to(good, epoch)
        publish(connected, epoch)
        if epoch == EPOCHS // 2:
            connected.exporter.restart()
    read += read_to(good, EPOCHS)
    assert read == of_epochs(*range(EPOCHS))
    slowly += slow.read(planned)
    slowly += read_to(slow, EPOCHS)

    first = slowly[2 * ROWS] // ROWS
    assert 2 < first < EPOCHS
    assert slowly == of_epochs(0, 1, *range(first, EPOCHS))
    lost = [first - 2, ROWS * (first - 2)]
    assert list(slow.at["dropped"].values()) == [lost]
    assert good.at["dropped"] == {}
    own = connected.importer.status()["imports"]["readers"]
    at_exporter = connected.exporter.export_status()["readers"]
    for run, dropped, policy_ in (
        (slow, lost, "drop"),
        (good, [0, 0], policy),
    ):
        figures = at_exporter[run.at["reader"]]
        assert (figures["dropped"], figures["policy"]) == (dropped, policy_)
        assert figures["delivered"] + dropped[1] == EPOCHS * ROWS
        assert own[run.at["reader"]]["dropped"] == dropped
        run.stop()
