"""Rows go through two real agents and come out filtered, cut, once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.agents import Pair, Publishing, Reading, pair, rows


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Pair]:
    yield from pair(tmp_path)


def test_rows_come_out_in_order_and_once(agents: Pair) -> None:
    query, reader = Publishing(agents.exporter), Reading(agents.importer)
    start = reader.open()
    query.publish(0, rows(0, 5), rows(5, 5))
    end = reader.end(start)
    assert reader.read(start, end) == list(range(10))
    query.publish(1, rows(10, 5))
    later = reader.end(end)
    assert reader.read(end, later) == list(range(10, 15))
    assert reader.next(later)["offset"] is None
