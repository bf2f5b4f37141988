"""The archive of an export in its agent: across restarts, and when the Export is deleted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streambroker_core.ledger.retention import RetentionLimits
from support.agents.exports import Bench, bench, rows

ROWS = 10
GRACE = 60.0
LIMITS: dict[str, Any] = {
    "max_bytes": 4000,
    "max_age": 1.0,
    "grace": GRACE,
    "archive_bytes": 1 << 20,
}


@pytest.fixture
def export(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as made:
        made.limit(**LIMITS)
        made.route()
        yield made


def fill(made: Bench, first: int, count: int) -> None:
    for batch in range(first, first + count):
        made.publish(batch, rows(ROWS * batch, ROWS))


def retained(made: Bench) -> int:
    found: int = made.export.status()["streams"][made.stream]["retained"]
    return found


def test_the_limits_of_an_archive_hold_after_a_restart(export: Bench) -> None:
    export.limit(**LIMITS, archive_age=5.0)
    export.reopen()
    limits = export.export.state.ledger.retention.limits
    assert limits == RetentionLimits(**LIMITS, archive_age=5.0)


@pytest.mark.compatibility(
    "limits in `state.sqlite`",
    "limits without an archive are stored as older releases read them",
)
def test_limits_without_an_archive_are_stored_as_earlier_releases_read_them(export: Bench) -> None:
    export.limit(max_bytes=1000)
    stored = export.store.get("limits/default/feed/0/trades")
    assert json.loads(stored or "") == {"max_bytes": 1000, "grace": 600.0}


def test_an_archive_keeps_what_was_read_and_its_status_says_how_much(export: Bench) -> None:
    export.plan()
    for first in (0, 4):
        fill(export, first, 4)
        export.plan({export.stream: first + 4})
    export.now += 10
    export.export.tick()
    status = export.export.status()
    assert retained(export) == 8
    assert status["held"] == 0
    assert status["unclaimed"] == status["streams"][export.stream]["bytes"] > 4000


def test_a_reader_that_was_away_does_not_block_also_after_a_restart(export: Bench) -> None:
    export.plan()
    export.now += GRACE + 10
    export.export.tick()
    fill(export, 0, 8)
    export.reopen()
    export.plan({}, budget=1)
    assert export.admit(8) == {"admitted": True}
    status = export.export.status()["readers"]["reader"]
    assert (status["archived"], status["congestion"], status["lagRows"]) == (True, 0, 8 * ROWS)


def test_a_deleted_export_has_no_archive(export: Bench) -> None:
    fill(export, 0, 8)
    export.export.withdraw()
    export.now += GRACE + 1
    export.export.tick()
    assert retained(export) <= 1
