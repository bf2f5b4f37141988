"""Rates of readers and jobs, on a clock that is put forward by hand."""

from __future__ import annotations

from streambroker_core.ledger.throttle import MAX_BUCKETS, MAX_DELAY, Throttle

IN, OTHER = "default/alerts/0/in", "default/other/0/in"


def sent_in(
    throttle: Throttle, seconds: float, readers: dict[str, str], size: int
) -> dict[str, int]:
    """Let readers take blocks, each as soon as it may; return the bytes sent until then."""
    at = dict.fromkeys(readers, 0.0)
    sent = dict.fromkeys(readers, 0)
    while min(at.values()) < seconds:
        reader = min(at, key=lambda one: at[one])
        at[reader] += throttle.take(reader, readers[reader], size, at[reader])
        sent[reader] += size if at[reader] < seconds else 0
    return sent


def test_a_reader_gets_its_rate_and_a_burst_of_a_second() -> None:
    throttle = Throttle()
    throttle.set_rates(1_000.0, None)
    assert 100_000 <= sent_in(throttle, 100.0, {"r": IN}, 50)["r"] <= 101_100


def test_a_greedy_reader_takes_nothing_of_another_one() -> None:
    throttle = Throttle()
    throttle.set_rates(1_000.0, None)
    sent = sent_in(throttle, 50.0, {"greedy": IN, "other": OTHER}, 100)
    assert abs(sent["greedy"] - sent["other"]) <= 100


def test_the_readers_of_one_job_share_the_rate_of_the_job() -> None:
    throttle = Throttle()
    throttle.set_rates(None, 1_000.0)
    sent = sent_in(throttle, 100.0, {"a": IN, "b": IN, "c": OTHER}, 50)
    assert 100_000 <= sent["a"] + sent["b"] <= 101_200
    assert 100_000 <= sent["c"] <= 101_100


def test_a_block_larger_than_the_burst_is_sent_and_the_next_one_waits() -> None:
    throttle = Throttle()
    throttle.set_rates(100.0, None)
    assert throttle.take("r", IN, 1_000, 0.0) == 0.0
    assert throttle.take("r", IN, 1, 0.0) == 9.0
    assert throttle.take("r", IN, 10_000_000, 10.0) == 0.0
    assert throttle.take("r", IN, 1, 10.0) == MAX_DELAY


def test_without_a_rate_nothing_is_delayed_or_kept() -> None:
    throttle = Throttle()
    throttle.set_rates(None, None)
    assert not throttle.is_on
    assert throttle.take("r", IN, 1 << 40, 0.0) == 0.0
    throttle.set_rates(1.0, 1.0)
    for number in range(MAX_BUCKETS):
        throttle.take(str(number), IN, 1, 0.0)
    assert len(throttle._due) == MAX_BUCKETS
    throttle.set_rates(None, None)
    assert not throttle._due
