"""The epochs of a stream: what is asked of them is answered without looking at all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streambroker_core.ledger import epochs
from streambroker_core.ledger.epochs import Epoch, Stream
from streambroker_core.ledger.ledger import Ledger
from streambroker_core.ledger.retention import RetentionLimits
from support.core.counting import lines
from support.core.ledgers import IMPORT, ask, ledger, planned, put, retained

ADD, SKIP, REMOVE = "add", "skip", "remove"


@given(
    st.lists(
        st.tuples(st.sampled_from([ADD, ADD, ADD, SKIP, REMOVE]), st.integers(0, 30)), max_size=60
    )
)
def test_a_stream_answers_as_one_that_looks_at_every_epoch(steps: list[tuple[str, int]]) -> None:
    stream, rows = Stream("s"), {0: 0}
    for kind, number in steps:
        if kind == ADD:
            rows[stream.next + 1] = rows[stream.next] + number
            stream.add(epoch(stream.next, rows=number, bytes_=1))
        elif kind == SKIP:
            rows[stream.next + number] = rows[stream.next] + 7 * (number > 0)
            stream.skip_to(stream.next + number, rows[stream.next + number])
        elif stream.epochs:
            stream.remove(list(stream.epochs)[number % len(stream.epochs)])
        left = sorted(stream.epochs)
        assert left == list(stream.epochs)
        for asked in range(stream.next + 3):
            after = next((n for n in left if n >= asked), max(asked, stream.next))
            assert stream.at_or_after(asked) == after
        whole = stream.next
        while whole - 1 in stream.epochs:
            whole -= 1
        assert stream.complete_from == whole
        assert all(stream.rows_before(n) == total for n, total in rows.items())


@example([(ADD, n) for n in range(20)] + [(REMOVE, 1)] * 18, frozenset())
@given(
    st.lists(st.tuples(st.sampled_from([ADD, REMOVE]), st.integers(0, 30)), max_size=80),
    st.frozensets(st.integers(0, 40), max_size=4),
)
def test_sums_are_exact_at_each_retained_epoch_at_its_end_and_at_places_of_readers(
    steps: list[tuple[str, int]], places: frozenset[int]
) -> None:
    stream, rows, bytes_ = Stream("s"), [0], [0]
    with few_sums():
        for kind, number in steps:
            if kind == ADD:
                rows.append(rows[-1] + number)
                bytes_.append(bytes_[-1] + 2 * number + 1)
                stream.add(epoch(stream.next, rows=number, bytes_=2 * number + 1))
            elif stream.epochs:
                stream.remove(list(stream.epochs)[number % len(stream.epochs)])
            stream.forget_sums(lambda _: places)
            there = [n for n in stream.epochs for n in (n, n + 1)]
            for n in {*there, *(p for p in places if p <= stream.next), stream.next}:
                assert stream.has_sum(n)
                assert stream.rows_before(n) == rows[n]
            assert all(stream.bytes_from(n) == bytes_[-1] - bytes_[n] for n in stream.epochs)
            assert all(stream.rows_before(n) >= total for n, total in enumerate(rows))
            assert len(stream.removed_sums) <= 3 + 2 * (1 + len(places) + len(stream.epochs))


def test_a_sum_that_is_forgotten_counts_no_row_too_much() -> None:
    with few_sums():
        made = ledger(max_bytes=100)
        for _ in range(20):
            put(made, "A", 5, rows=2)
            made.retention.sweep(0)
        stream = made.streams["A"]
        assert stream.rows_between(0, 100) == 200
        assert not stream.has_sum(50)
        assert stream.rows_between(96, 100) == 2 * 4
        assert 2 * 3 <= stream.rows_between(50, 100) <= 2 * 50
        stream.restore_sum(50, 100)
        assert stream.rows_between(50, 100) == 100


def test_a_log_is_as_full_as_its_epochs_are_large_however_many_there_are() -> None:
    with few_sums():
        made = ledger(max_bytes=100 * 100)
        put(made, "A", 1)
        made.planner.plan(ask(), 0)
        for count in range(2, 101):
            assert not made.retention.blocking_readers(0)
            put(made, "A", 1)
            made.retention.sweep(0)
            assert made.retention.lag(made.readers["r"])[:3] == (count, 10 * count, 100 * count)
        assert [h.bytes for h in made.retention.blocking_readers(0)] == [100 * 100]


def test_what_readers_dropped_is_counted_to_the_row_however_long_they_were_away() -> None:
    with few_sums():
        made = ledger(max_bytes=100)
        made.set_routes({IMPORT: "drop"})
        for name in ("r", "s"):
            made.planner.plan(ask(reader=name), 0)
        put(made, "A", 2, rows=3)
        for at, name in enumerate(("r", "s")):
            made.planner.plan(ask({"A": at}, reader=name, budget=100), 0)
        for rows in range(100):
            put(made, "A", 1, rows=rows)
            made.retention.sweep(1000)
        below = 2 * 3 + sum(range(99))
        for position in (1, 2):
            answer = made.planner.plan(
                ask({"A": position}, reader=f"{'rs'[position - 1]}", has_opened=True), 1000
            )
            assert answer.planned[0].dropped == (101 - position, below - 3 * position)
        assert len(made.streams["A"].removed_sums) < 30


@contextmanager
def few_sums() -> Iterator[None]:
    """Let a stream keep three sums of removed epochs, beside those that are needed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(epochs, "TOMBSTONES", 3)
        patch.setattr(epochs, "SLACK", 1)
        yield


def epoch(number: int, *, rows: int, bytes_: int) -> Epoch:
    return Epoch(number=number, rows=rows, bytes=bytes_, published=0.0, query="q", batch=number)


def with_epochs(count: int, **limits: int) -> Ledger:
    made = ledger(max_bytes=limits.get("max_bytes", 10**9))
    put(made, "A", count)
    made.planner.plan(ask({"A": count}), 0)
    return made


@pytest.mark.parametrize("retained", [1_000, 10_000])
def test_a_plan_of_a_reader_that_has_everything_costs_as_much_with_many_epochs(
    retained: int,
) -> None:
    few, many = with_epochs(100), with_epochs(retained)
    cost = lines(lambda: few.planner.plan(ask({"A": 100}, has_opened=True), 1))
    assert lines(lambda: many.planner.plan(ask({"A": retained}, has_opened=True), 1)) == cost
    assert lines(lambda: many.retention.blocking_readers(1)) == lines(
        lambda: few.retention.blocking_readers(1)
    )


@pytest.mark.parametrize("retained", [1_000, 10_000])
def test_a_sweep_of_a_full_log_costs_as_much_with_many_epochs(retained: int) -> None:
    few, many = (with_epochs(n, max_bytes=1) for n in (100, retained))
    for made in (few, many):
        made.planner.plan(ask({"A": 0}, reader="slow"), 0)
    cost = lines(lambda: few.retention.sweep(1))
    assert lines(lambda: many.retention.sweep(1)) == cost
    assert len(many.streams["A"].epochs) == retained


def test_a_sweep_passes_over_a_long_plan_at_once() -> None:
    costs = []
    for count in (100, 10_000):
        made = Ledger(RetentionLimits(max_bytes=1))
        made.set_routes({IMPORT: "drop"})
        put(made, "A", count)
        made.planner.plan(ask(policy="drop", budget=100 * (count - 2)), 0)
        costs.append(lines(lambda made=made: made.retention.sweep(0)))  # type: ignore[misc]
        assert retained(made) == [*range(count - 2), count - 1]
    assert costs[0] == costs[1]


def test_an_epoch_to_many_readers_costs_each_of_them_the_same() -> None:
    costs = []
    for count in (50, 500):
        made = ledger(max_bytes=150)
        for number in range(count):
            made.planner.plan(ask(reader=f"r{number}"), 0)
        put(made, "A", 3)
        for number in range(count):
            made.planner.plan(ask(reader=f"r{number}", budget=100), 0)

        def acknowledge(made: Ledger = made, count: int = count) -> None:
            for number in range(count):
                answer = made.planner.plan(
                    ask({"A": 1}, reader=f"r{number}", budget=100, has_opened=True), 0
                )
                assert planned(answer) == {"A": (1, 2)}
                made.retention.blocking_readers(
                    0
                ) if number == count - 1 else made.retention.held_bytes(0)
                made.retention.sweep(0)

        costs.append(lines(acknowledge))
        assert retained(made) == [1, 2]
    assert costs[1] < 15 * costs[0]


def test_a_reader_that_came_when_nobody_held_anything_claims_until_it_is_away_beyond_grace() -> (
    None
):
    made = ledger(max_bytes=100, grace=10)
    put(made, "A", 1)
    assert made.retention.held_bytes(0) == 0
    made.planner.plan(ask(lease=5), 0)
    put(made, "A", 2)
    assert made.retention.held_bytes(15) == 300
    assert made.retention.held_bytes(15.1) == 0
    made.planner.plan(ask(lease=5), 16)
    assert made.retention.held_bytes(16) == 300
    made.claims.renew("r", 30)
    assert made.retention.held_bytes(40) == 300
    assert made.retention.held_bytes(40.1) == 0
