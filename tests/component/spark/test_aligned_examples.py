"""The examples of control tuples, as they are, in the session of the tests."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

RESULTS: dict[str, Any] = {
    "batch_ends": {"monday": 66, "tuesday": 300},
    "price_change": {second: 1 if second < 6 else 100 for second in (*range(1, 10),)},
    "new_factor": {0: {1}, 1: {9}, 2: {9}},
    "recording": {2: 10, 3: 10},
    "file_ends": {"f1": ["A", "B", "C"], "f2": ["D"], "f3": ["E", "F"]},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RESULTS)
def test_an_example_comes_to_what_it_says(spark: SparkSession, tmp_path: Path, name: str) -> None:
    assert importlib.import_module(name).run(spark, tmp_path) == RESULTS[name]
