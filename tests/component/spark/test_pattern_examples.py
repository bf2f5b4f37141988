"""The example of patterns, as it is, in the session of the tests."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[3] / "examples" / "04-patterns"


@pytest.mark.slow
def test_rules_of_a_directory_change_while_the_example_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    module = importlib.import_module("changing_rules")
    try:
        assert module.run(spark, tmp_path) == {
            "grows 1": [[10, 30], [10, 40], [20, 35]],
            "grows 2": [[10, 30, 31], [70, 90, 95]],
            "late 1": [[70], [90], [95]],
            "refused": ["broken"],
        }
    finally:
        sys.modules.pop("changing_rules", None)
