"""The examples of FLIP-17, as they are, in the session of the tests."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from originals import average_word_length, windowed_singleton
from pyspark.sql import SparkSession


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "after_each_step"),
    [
        (windowed_singleton, [[], [], [51], [31], [], [41]]),
        (average_word_length, [[], ["side", "stream"], [], ["yes"]]),
    ],
    ids=["windowed_singleton", "average_word_length"],
)
def test_a_program_gives_what_the_proposal_says(
    spark: SparkSession, tmp_path: Path, program: ModuleType, after_each_step: list[list[Any]]
) -> None:
    assert program.run(spark, tmp_path) == after_each_step
