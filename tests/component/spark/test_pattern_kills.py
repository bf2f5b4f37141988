"""A driver that is killed while a rule changes: the change comes whole, and in one window."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.driver.patterns import CALM, SENT, TORN, WINDOW
from support.driver.process import run_driver


@pytest.mark.parametrize("way", [pytest.param(TORN, marks=pytest.mark.long),
                                 pytest.param(SENT, marks=pytest.mark.long),
                                 pytest.param(WINDOW, marks=pytest.mark.long)])  # fmt: skip
def test_a_kill_while_a_rule_changes_changes_nothing(tmp_path: Path, way: str) -> None:
    """D-3 and D-10: no match of A and C, whether the change was half written, sent, or applied."""
    run_driver("patterns", tmp_path, way, killed=True)
    run_driver("patterns", tmp_path, CALM)
    assert json.loads((tmp_path / "out").read_text()) == [["r", 2, "ABC"]]
