"""Imports that an export has revoked: they read nothing more, not even what was planned."""

from __future__ import annotations

import pytest

from streambroker_core.ledger.losses import DataLossError
from streambroker_core.ledger.routes import NotRoutedError, RevokedError
from support.core.ledgers import IMPORT, ask, ledger, planned, put, retained

JOB, NAMESPACE = "default/alerts", "default"


@pytest.mark.parametrize("named", [IMPORT, JOB, NAMESPACE])
def test_a_revoked_import_loses_its_plan_and_is_informed(named: str) -> None:
    made = ledger(max_bytes=100)
    put(made, "A", 3)
    made.planner.plan(ask(), 0)
    made.retention.sweep(0)
    assert retained(made) == [0, 1, 2]
    made.set_routes({IMPORT: "wait"}, [named])
    assert not made.planner.is_planned("r", "A", 0, 0)
    for call in (
        lambda: made.planner.plan(ask({"A": 0}, has_opened=True), 0),
        lambda: made.planner.register_plan(ask(), {"A": (0, 1)}, 0),
        lambda: made.planner.plan(ask(reader="new"), 0),
    ):
        with pytest.raises(RevokedError, match=f"revoked {named}:"):
            call()
    assert made.retention.blocking_readers(0) == []
    made.retention.sweep(0)
    assert retained(made) == [2]


@pytest.mark.parametrize("named", ["default/alert", "defaul", f"{IMPORT}s", "lab", "lab/alerts"])
def test_a_name_that_is_a_part_of_another_revokes_nothing(named: str) -> None:
    made = ledger()
    put(made, "A", 1)
    made.set_routes({IMPORT: "wait"}, [named])
    assert planned(made.planner.plan(ask(), 0)) == {"A": (0, 1)}


def test_what_is_left_is_read_on_when_it_is_taken_back() -> None:
    made = ledger()
    put(made, "A", 3)
    made.planner.plan(ask(), 0)
    made.set_routes({IMPORT: "wait"}, [JOB])
    made.set_routes({})
    assert made.planner.plan(ask({"A": 1}, has_opened=True), 0).routed is False
    with pytest.raises(NotRoutedError):
        made.planner.register_plan(ask(), {"A": (1, 2)}, 0)
    made.set_routes({IMPORT: "wait"})
    made.planner.register_plan(ask(), {"A": (1, 2)}, 0)
    assert planned(made.planner.plan(ask({"A": 1}, has_opened=True), 0)) == {"A": (1, 3)}


def test_a_plan_that_was_removed_meanwhile_is_a_loss_when_it_is_taken_back() -> None:
    made = ledger(max_bytes=100)
    put(made, "A", 3)
    made.planner.plan(ask(), 0)
    made.set_routes({IMPORT: "wait"}, [JOB])
    made.retention.sweep(0)
    made.set_routes({IMPORT: "wait"})
    with pytest.raises(DataLossError):
        made.planner.register_plan(ask(), {"A": (0, 3)}, 0)
