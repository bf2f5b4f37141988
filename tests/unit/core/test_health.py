"""The health of ports: the worst problem is the reason, and a report carries it unchanged."""

from __future__ import annotations

import pytest

from streambroker_core.errors import ManifestError
from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.reports.health import (
    HEALTHY,
    MAX_MESSAGE,
    Health,
    HealthState,
    merge_problems,
    read_health,
    write_health,
)

LOST = HealthState(reason="RowsLost", message="Rows are lost.")
FAILED = HealthState(reason="DataLoss", message="It failed.")


def test_a_port_without_a_problem_is_as_expected() -> None:
    assert merge_problems([]) == HEALTHY
    assert HEALTHY.is_healthy
    assert not FAILED.is_healthy


def test_the_worst_problem_is_the_reason_and_the_message_names_the_others() -> None:
    merged = merge_problems([LOST, FAILED, LOST])
    assert merged == HealthState(reason="DataLoss", message="It failed. There is also RowsLost.")


def test_a_long_message_is_cut_and_still_names_the_others() -> None:
    long = HealthState(reason="DataLoss", message="e" * 2 * MAX_MESSAGE)
    message = merge_problems([long, LOST]).message
    assert len(message) == MAX_MESSAGE
    assert message.endswith("e… There is also RowsLost.")


def test_a_report_carries_the_ports_that_have_a_problem() -> None:
    health = Health(problems={("Export", "trades"): FAILED, ("Import", "trades"): LOST})
    read = read_health(Fields({"health": write_health(health)}))
    assert read == health
    assert read.find("Import", "trades") == LOST
    assert read.find("Import", "quotes") == HEALTHY


def test_a_report_of_an_earlier_release_says_nothing_of_any_port() -> None:
    assert read_health(Fields({"exports": {}})).find("Export", "trades") is None


@pytest.mark.parametrize("reason", ["", "two words", "a/b", "x" * 65, 5])
def test_a_reason_that_no_condition_may_have_is_refused(reason: object) -> None:
    report = Fields({"health": {"imports": {"trades": {"reason": reason, "message": "m"}}}})
    with pytest.raises(ManifestError, match=r"health\.imports\.trades\.reason"):
        read_health(report)


@pytest.mark.parametrize("code", ["", "two words", "a/b", "x" * 65])
def test_a_code_of_another_agent_that_is_no_reason_does_not_spoil_the_report(code: str) -> None:
    health = Health(problems={("Import", "trades"): HealthState(reason=code, message="m")})
    read = read_health(Fields({"health": write_health(health)}))
    assert read.find("Import", "trades") == HealthState(reason="Refused", message="m")
