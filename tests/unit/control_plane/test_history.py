"""The history of ports is bounded: for each port, in fields and values, and in all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streambroker_core.model import PortKey
from streambroker_operator.runtime import history
from streambroker_operator.runtime.history import MAX_ENTRIES, MAX_VALUE, Change, History
from support.core.resources import export_of, import_of


def all_of(found: History) -> list[Change]:
    return found.find("*", 1_000_000, None)


def test_only_the_fields_that_differ_are_in_an_entry() -> None:
    old = import_of(filter="price > 1", subscription='kind == "a"')
    found = History()
    found.note(1.0, "ann", "changed", old, replace(old, filter=None, generation=2))
    (change,) = all_of(found)

    assert change.fields == {"filter": ("price > 1", None)}
    assert (change.principal, change.generation, change.time) == ("ann", 2, 1.0)
    assert change.port == PortKey("default", "alerts", 0, "trades")


def test_the_last_changes_of_a_port_are_kept_the_newest_first() -> None:
    found = History()
    for number in range(MAX_ENTRIES + 3):
        found.note(float(number), "", "changed", None, export_of())

    times = [change.time for change in all_of(found)]
    assert times == [float(n) for n in range(MAX_ENTRIES + 2, 2, -1)]


def test_the_port_that_has_not_changed_for_longest_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = History()
    found.note(0.0, "", "created", None, export_of("a/x"))
    monkeypatch.setattr(history, "MAX_CHARACTERS", 3 * all_of(found)[0].cost)
    for number, job in enumerate("bacd"):
        found.note(1.0 + number, "", "created", None, export_of(f"{job}/x"))

    assert [change.port.job for change in all_of(found)] == ["d", "c"]


def test_a_long_value_is_cut() -> None:
    found = History()
    found.note(0.0, "", "created", None, import_of(filter="a" * 2_000 + " > 1"))
    (change,) = all_of(found)
    _, new = change.fields["filter"]

    assert new is not None
    assert (len(new), new[-1]) == (MAX_VALUE, "…")
