"""What Spark's Python workers search for cycles behind each task."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from pyspark import TaskContext

from pe_agent.spark import worker as workers
from pe_agent.spark.worker import freeze_modules


@pytest.fixture(autouse=True)
def _thawed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(workers, "_FROZEN", set())
    yield
    gc.unfreeze()


def searched() -> int:
    """Return how many objects a collection looks at."""
    return len(gc.get_objects())


def test_what_tasks_of_a_kind_have_loaded_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: "a task")
    before = searched()
    freeze_modules("read")
    assert searched() < before / 10
    more: list[list[int]] = [[] for _ in range(1_000)]
    freeze_modules("read")
    assert searched() >= len(more)  # tasks of that kind end as always
    freeze_modules("operator")
    assert searched() < len(more)


def test_outside_of_tasks_nothing_changes() -> None:
    freeze_modules("read")
    assert gc.get_freeze_count() == 0
