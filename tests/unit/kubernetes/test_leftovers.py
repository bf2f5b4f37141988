"""PEs of jobs that are gone are forgotten, those that may come back are not."""

from __future__ import annotations

from streambroker_operator.kubernetes.replicas.garbage import SILENT_S, PeGarbage
from support.core.resources import pe

A, B = pe("a"), pe("b")


def test_who_is_silent_for_ten_minutes_is_forgotten_once() -> None:
    left = PeGarbage()
    assert left.collect([(A, None)], 0.0) == []
    assert left.collect([(A, None)], SILENT_S - 1) == []
    assert left.collect([(A, None)], SILENT_S) == [A]
    assert left.collect([], SILENT_S + 60) == []


def test_who_says_something_begins_again() -> None:
    left = PeGarbage()
    left.collect([(A, "10:00"), (B, "10:00")], 0.0)
    assert left.collect([(A, "10:05"), (B, "10:00")], 300.0) == []
    assert left.collect([(A, "10:05"), (B, "10:00")], SILENT_S) == [B]
    assert left.collect([(A, "10:05")], 300.0 + SILENT_S) == [A]


def test_who_has_resources_in_between_begins_again() -> None:
    left = PeGarbage()
    left.collect([(A, None)], 0.0)
    left.collect([], 300.0)
    assert left.collect([(A, None)], SILENT_S) == []
