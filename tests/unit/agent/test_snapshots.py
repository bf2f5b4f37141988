"""Batch reads at the agent of an export: what they leave behind, and what they are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pe_agent.agent.exports.batch_reads import SchemaMismatchError, plan_batch_read
from pe_agent.agent.exports.reader_plans import RegisteredPlan
from streambroker_core.ledger.plan import PlanRequest
from support.agents.exports import READER, Bench, bench, rows

ROWS = 10
GRACE = 60.0


@pytest.fixture
def export(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as made:
        made.limit(max_bytes=4000, grace=GRACE)
        made.route()
        for batch in range(3):
            made.publish(batch, rows(ROWS * batch, ROWS))
        yield made


def snapshot(made: Bench, columns: list[str] | None = None) -> RegisteredPlan:
    named: dict[str, Any] = {**READER, "start": "earliest", "once": True}
    request = PlanRequest(**{**named, "positions": {}})
    return plan_batch_read(
        made.export, request, "latest", filter_=None, columns=columns, schema=None
    )


def stored_readers(made: Bench) -> int:
    (found,) = made.store.query("SELECT count(*) FROM readers")
    return int(found[0])


def test_a_batch_read_plans_all_epochs_and_is_no_reader_in_the_status(export: Bench) -> None:
    plan = snapshot(export)
    assert plan.ranges == {export.stream: (0, 3)}
    assert list(plan.blocks[export.stream]) == [0, 1, 2]
    status = export.export.status()
    assert (status["readers"], status["held"]) == ({}, 0)


def test_a_batch_read_is_forgotten_after_grace_also_by_the_store(export: Bench) -> None:
    snapshot(export)
    assert stored_readers(export) == 1
    export.now += GRACE + 10
    export.export.tick()
    assert (export.export.state.ledger.readers, stored_readers(export)) == ({}, 0)


def test_a_batch_read_survives_a_restart_and_is_forgotten_afterwards(export: Bench) -> None:
    snapshot(export)
    export.reopen()
    (reader,) = export.export.state.ledger.readers.values()
    assert reader.once
    export.now += GRACE + 10
    export.export.tick()
    assert (export.export.state.ledger.readers, stored_readers(export)) == ({}, 0)


def test_a_batch_read_of_columns_that_an_epoch_lacks_is_refused(export: Bench) -> None:
    with pytest.raises(SchemaMismatchError, match="has no column 'other'"):
        snapshot(export, columns=["other"])
    assert export.export.state.ledger.readers == {}
