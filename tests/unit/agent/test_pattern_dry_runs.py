"""Rules that are tried with stored events before they go live."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from streambroker.operators import AlignedError
from streambroker.patterns import Pattern, PatternProcessor, dry_run
from streambroker_core.cep import RunError
from streambroker_core.cep.engine.trace import DryRun
from streambroker_core.cep.pattern.run_limits import RunLimits

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
TIME = pa.timestamp("ms", "UTC")
PATTERN = Pattern.begin("a").where('n == "A"').followed_by("b").where('n == "B"').within("10s")
STAGES = [{"name": "a", "where": 'n == "A"'}, {"name": "b", "join": "next", "where": 'n == "B"'}]
DOCUMENT: dict[str, Any] = {
    "id": "r", "version": 3, "key": "user", "function": "alert", "pattern": {"stages": STAGES},
}  # fmt: skip


def events(text: str, **columns: Any) -> pa.Table:
    """Return letters with the seconds at which they are, ``A1 B3``; of users u and v in turns."""
    given = [(word[0], int(word[1:])) for word in text.split()]
    return pa.table(
        {
            "n": [n for n, _ in given],
            "at": pa.array([BEGIN + timedelta(seconds=t) for _, t in given], TIME),
            "user": ["uv"[place % 2] for place in range(len(given))],
            "place": list(range(len(given))),
            **columns,
        }
    )


def places(run: DryRun) -> list[list[int]]:
    return [[e.row["place"] for es in m.events.values() for e in es] for _, m in run.matches]


def test_events_are_seen_in_the_order_of_their_times() -> None:
    run = dry_run(events("B3 A1 x2 A9 A20 A31"), PATTERN, event_time="at")

    assert places(run) == [[1, 0]]
    assert [each.time for _, each in run.timeouts] == [BEGIN.timestamp() * 1e6 + 19e6,
                                                       BEGIN.timestamp() * 1e6 + 30e6]  # fmt: skip
    assert [str(one) for one in run.left[()]] == ['taken: a 1; waits for `b` (`b`: n == "B")']
    assert [seen.event.row["place"] for seen in run.seen] == [1, 2, 0, 3, 4, 5]


@pytest.mark.parametrize(
    "given",
    [
        lambda table: table.to_batches()[0],
        lambda table: table.to_pylist(),
        lambda table: table.set_column(1, "at", table.column("at").cast(pa.int64())),
    ],
)
def test_events_may_be_a_batch_or_rows_and_times_numbers(given: Callable[[Any], Any]) -> None:
    assert places(dry_run(given(events("A1 B3")), PATTERN, event_time="at")) == [[0, 1]]


def test_the_document_of_a_rule_has_a_key_of_its_own_and_its_function_is_not_called() -> None:
    run = dry_run(events("A1 B2 B3 A4 x5 B6"), DOCUMENT, event_time="at", key="n")

    assert [(key, one.events["b"][0].row["place"]) for key, one in run.matches] == [
        (("u",), 2), (("v",), 5),
    ]  # fmt: skip


def test_a_rule_without_a_key_has_that_of_the_stream() -> None:
    assert places(dry_run(events("A1 B2 B3"), PATTERN, event_time="at", key=["user"])) == [[0, 2]]


def test_what_has_no_time_or_is_before_the_schedule_is_not_seen() -> None:
    at = pa.array([None, BEGIN, BEGIN + timedelta(seconds=5), BEGIN + timedelta(seconds=6)], TIME)
    scheduled = (BEGIN + timedelta(seconds=5)).isoformat()
    rule = {**DOCUMENT, "key": [], "scheduled": scheduled}

    assert places(dry_run(events("A0 A0 A0 B0", at=at), rule, event_time="at")) == [[2, 3]]


def test_events_of_one_time_are_in_the_order_of_a_column() -> None:
    table = events("B1 A1 x1", tie=[2, 1, None])

    assert places(dry_run(table, PATTERN, event_time="at")) == []
    run = dry_run(table, PATTERN, event_time="at", tie_break="tie")
    assert places(run) == [[1, 0]]
    assert [seen.event.row["place"] for seen in run.seen] == [1, 0, 2]


def test_limits_of_the_rule_hold() -> None:
    rule = PatternProcessor(
        id="r", version=1, pattern=PATTERN, limits=RunLimits(runs=1, policy="fail")
    )

    with pytest.raises(RunError, match="at most 1 are allowed"):
        dry_run(events("A1 A2"), rule, event_time="at")


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("the event time when is not a column of the events; they have n, at, user, place.",
     {"event_time": "when"}),
    ("the tie break x is not a column of the events", {"tie_break": "x"}),
    ("the event time n has type string: give timestamps, or microseconds.", {"event_time": "n"}),
    ("the key has 'shop', which refers to shop", {"key": "shop"}),
    (r"the rule is refused \(FieldUnknown\): stage `a` refers to `m`",
     {"rule": Pattern.begin("a").where("m > 1")}),
    (r"the rule is refused \(Invalid\): version is missing", {"rule": {"id": "r"}}),
]  # fmt: skip


@pytest.mark.parametrize(("why", "given"), REFUSED)
def test_what_does_not_fit_is_refused(why: str, given: dict[str, Any]) -> None:
    with pytest.raises(AlignedError, match=why):
        dry_run(events("A1"), **{"rule": PATTERN, "event_time": "at", **given})


@pytest.mark.parametrize("condition", ["at > first(a.at)", "at > 5", 'place > "5"', "n > 5"])
def test_a_condition_that_the_job_refuses_for_its_types_is_refused_where_types_are_known(
    condition: str,
) -> None:
    pattern = Pattern.begin("a").followed_by("b").where(condition)

    for typed in (events("A1 B3"), events("A1 B3").to_batches()[0]):
        with pytest.raises(AlignedError, match=r"refused \(Invalid\): stage `b`: .*expected"):
            dry_run(typed, pattern, event_time="at")
    assert dry_run(events("A1 B3").to_pylist(), pattern, event_time="at").matches == []


def test_the_fields_of_a_struct_have_types() -> None:
    table = events("A1 B3", st=[{"x": 1}, {"x": 2}])

    assert places(dry_run(table, Pattern.begin("a").where("st.x > 1"), event_time="at")) == [[1]]
    with pytest.raises(AlignedError, match="stage `a`"):
        dry_run(table, Pattern.begin("a").where('st.x > "1"'), event_time="at")
