"""In a pod, the driver's standard error has the lines of its agent's log."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from pe_agent.agent.reports.log_file import LOG_NAME
from pe_agent.job.agent.agent_log import FORWARD_VARIABLE, AgentLogForwarder, is_forwarding


def appended(home: Path, text: str) -> None:
    with (home / LOG_NAME).open("a") as log:
        log.write(text)


def test_lines_written_from_now_on_are_copied_whole_and_once(tmp_path: Path) -> None:
    appended(tmp_path, "of a former run\n")
    shown = io.StringIO()
    lines = AgentLogForwarder(tmp_path, "agent feed/0: ", shown)
    appended(tmp_path, "started\nhalf a ")
    lines.copy()
    assert shown.getvalue() == "agent feed/0: started\n"
    appended(tmp_path, "line\n")
    lines.copy()
    lines.close()
    assert shown.getvalue() == "agent feed/0: started\nagent feed/0: half a line\n"


def test_a_log_that_is_replaced_is_copied_to_its_end_and_then_the_new_one(tmp_path: Path) -> None:
    shown = io.StringIO()
    lines = AgentLogForwarder(tmp_path, "", shown)  # there is no file yet
    appended(tmp_path, "1\n")
    lines.copy()
    appended(tmp_path, "2\n")
    (tmp_path / LOG_NAME).replace(tmp_path / f"{LOG_NAME}.1")
    appended(tmp_path, "3\n")
    lines.close()

    assert shown.getvalue().split() == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("chosen", "in_a_pod", "forwarded"),
    [(None, True, True), (None, False, False), ("forward", False, True), ("file", True, False)],
)
def test_lines_are_forwarded_in_a_pod_unless_the_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None, in_a_pod: bool, forwarded: bool
) -> None:
    for name, value in (
        (FORWARD_VARIABLE, chosen),
        ("KUBERNETES_SERVICE_HOST", "10.96.0.1" if in_a_pod else None),
    ):
        monkeypatch.delenv(name, raising=False)
        if value:
            monkeypatch.setenv(name, value)

    assert is_forwarding() is forwarded
