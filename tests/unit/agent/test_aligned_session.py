"""What an operator sets in a session: what state needs, and a number of tasks that is bearable."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pe_agent.aligned.runtime import hosting


class Conf(dict[str, str]):
    """Settings of a session, as Spark hands them out."""

    def __missing__(self, name: str) -> str:
        return {hosting.SHUFFLE_PARTITIONS: "200"}[name]

    def get(self, name: str) -> str:  # type: ignore[override]
        return self[name]

    def set(self, name: str, value: str) -> None:
        self[name] = value

    @property
    def getAll(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        return dict(self)


@pytest.mark.parametrize(
    ("master", "given", "expected"),
    [
        ("local[2]", {}, "2"),
        ("local[2]", {hosting.SHUFFLE_PARTITIONS: "16"}, "16"),
        ("local[2]", {hosting.SHUFFLE_PARTITIONS: "17"}, "17"),
        ("spark://host:7077", {}, "200"),
    ],
    ids=["one machine", "set by the user", "many, set by the user", "a cluster"],
)
def test_on_one_machine_an_operator_has_as_many_tasks_as_cores_unless_the_session_says_other(
    caplog: pytest.LogCaptureFixture, master: str, given: dict[str, str], expected: str
) -> None:
    """With Spark's 200 a micro-batch takes minutes on two cores, and each time limit with it."""
    hosting._warn_of_many_tasks.cache_clear()
    conf = Conf({"spark.master": master, **given})
    context = SimpleNamespace(defaultParallelism=2)
    spark: Any = SimpleNamespace(conf=conf, sparkContext=context)
    for _ in range(2):
        hosting.prepare_session(spark)
    assert conf.get(hosting.SHUFFLE_PARTITIONS) == expected
    assert conf[hosting.STATE_PROVIDER] == hosting.ROCKSDB
    warnings = [one for one in caplog.messages if "Set it to 2, one for each core" in one]
    assert len(warnings) == (int(expected) > 16)
