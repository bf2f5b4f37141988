"""The examples of side inputs, as they are, in the session of the tests."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[3] / "examples" / "05-side-inputs"
FIRST = {"1": "United", "2": None, "3": "United"}
RESULTS: dict[str, Any] = {
    "static_join": {"spark": {**FIRST, "4": None}, "side input": {**FIRST, "4": "JetBlue"}},
    "changing_join": {"spark": [1.0, 2.0], "side input": [1.0, 1.0]},
    "changing_filter": {"spark": [4, 6], "side input": [2, 4, 6]},
    "word_length": {"spark": ["stream", "the"], "side input": ["side", "stream"]},
    "window_join": {
        "spark": {("JFK", 0): (4, 30.0), ("JFK", 10): (2, 30.0)},
        "side input": {("JFK", 0): (2, 30.0), ("JFK", 10): (1, 30.0), ("LGA", 0): (1, None)},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if name in ("window_join", "word_length") else ())
        for name in RESULTS
    ],
)
def test_an_example_shows_what_it_says(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    module = importlib.import_module(name)
    try:
        assert module.run(spark, tmp_path) == RESULTS[name]
    finally:
        for loaded in (name, "both", "feeding"):
            sys.modules.pop(loaded, None)
