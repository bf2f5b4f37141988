"""Names wait for their turn: once each, the urgent ones first, failures later and later."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from streambroker_operator.kubernetes.status.work_queue import (
    IDLE,
    LIVE,
    MAX_DELAY_S,
    SETTLE_S,
    URGENT,
    WorkQueue,
    retry_delay_s,
)


def taken(queue: WorkQueue[str], now: float) -> list[str]:
    found = []
    while (name := queue.take(now)) is not None:
        found.append(name)
        queue.done(name, now)
    return found


def test_what_is_offered_often_gets_one_turn() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for now in (0.0, 0.2, 0.4):
        queue.offer("a", now)

    assert taken(queue, SETTLE_S) == ["a"]


def test_a_change_settles_before_its_turn_and_a_refusal_does_not() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.offer("change", 0.0)
    queue.offer("refusal", 0.0, rank=URGENT)

    assert taken(queue, 0.0) == ["refusal"]
    assert taken(queue, SETTLE_S) == ["change"]


def test_the_urgent_go_first() -> None:
    queue: WorkQueue[str] = WorkQueue(settle_s=0.0)
    for name in "abc":
        queue.offer(name, 0.0)
    queue.offer("d", 1.0, rank=URGENT)
    queue.offer("c", 1.0, rank=URGENT)

    assert taken(queue, 1.0) == ["d", "c", "a", "b"]


def test_names_of_a_lower_rank_go_first_whenever_they_were_offered() -> None:
    queue: WorkQueue[str] = WorkQueue(settle_s=0.0)
    for name in ("rest", "raised", "other"):
        queue.offer(name, 0.0)
    queue.offer("live", 1.0, rank=LIVE)
    queue.offer("raised", 1.0, rank=LIVE)
    queue.offer("live", 1.0, rank=IDLE)

    assert taken(queue, 1.0) == ["raised", "live", "rest", "other"]


def test_what_changes_while_it_is_written_gets_another_turn() -> None:
    queue: WorkQueue[str] = WorkQueue(settle_s=0.0)
    queue.offer("a", 0.0)
    assert queue.take(0.0) == "a"

    queue.offer("a", 0.0)

    assert queue.take(0.0) is None
    queue.done("a", 1.0)
    assert queue.take(1.0) == "a"


def test_a_failure_comes_back_later_each_time_and_no_offer_hastens_it() -> None:
    queue: WorkQueue[str] = WorkQueue(settle_s=0.0)
    queue.offer("a", 0.0)
    now, waits = 0.0, []
    for _ in range(3):
        assert queue.take(now) == "a"
        queue.failed("a", now, jitter=1.0)
        queue.offer("a", now, rank=URGENT)
        due = queue.next_at()
        assert due is not None
        assert queue.take(due - 0.01) is None
        waits.append(due - now)
        now = due

    assert waits == [0.5, 1.0, 2.0]


def test_the_server_says_how_long_to_wait_at_least() -> None:
    queue: WorkQueue[str] = WorkQueue(settle_s=0.0)
    queue.offer("a", 0.0)
    queue.take(0.0)
    queue.failed("a", 0.0, jitter=0.0, after_s=7.0)

    assert queue.take(6.9) is None
    assert queue.take(7.0) == "a"


def test_delays_have_an_end() -> None:
    assert retry_delay_s(10_000, 1.0) == MAX_DELAY_S


class Turns(RuleBasedStateMachine):
    """Against a model: a name that was offered gets its turn, one at a time, none is lost."""

    names = st.sampled_from("abcd")

    def __init__(self) -> None:
        super().__init__()
        self.queue: WorkQueue[str] = WorkQueue()
        self.now = 0.0
        self.wanted: set[str] = set()
        self.held: set[str] = set()

    @rule(name=names, rank=st.sampled_from([URGENT, LIVE, IDLE]))
    def offer(self, name: str, rank: int) -> None:
        self.queue.offer(name, self.now, rank=rank)
        self.wanted.add(name)

    @rule(seconds=st.sampled_from([0.1, 1.0, 70.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def take(self) -> None:
        name = self.queue.take(self.now)
        if name is not None:
            assert name in self.wanted
            assert name not in self.held
            self.wanted.discard(name)
            self.held.add(name)

    @precondition(lambda self: self.held)
    @rule(well=st.booleans())
    def end(self, well: bool) -> None:
        name = sorted(self.held)[0]
        self.held.discard(name)
        if well:
            self.queue.done(name, self.now)
        else:
            self.queue.failed(name, self.now, jitter=0.5)
            self.wanted.add(name)

    @rule()
    def clear(self) -> None:
        self.queue.clear()
        self.wanted.clear()

    @invariant()
    def no_entry_waits_longer_than_the_longest_delay(self) -> None:
        waiting = self.wanted - self.held
        assert len(self.queue) == len(waiting)
        due = self.queue.next_at()
        assert (due is None) == (not waiting)
        if due is not None:
            assert due <= self.now + MAX_DELAY_S


TestTurns = Turns.TestCase


def test_what_changes_all_the_time_is_written_less_and_less_often() -> None:
    queue: WorkQueue[str] = WorkQueue(1.0)
    written, now = [], 0.0
    while now < 60.0:
        queue.offer("a", now)
        if queue.take(now) is not None:
            queue.done("a", now, wrote=True)
            written.append(now)
        now += 0.25
    pauses = [later - earlier for earlier, later in pairwise(written)]

    assert written[0] == 1.0
    assert pauses[0] < 2.0
    assert pauses[1:4] == [2.0, 4.0, 8.0]
    assert set(pauses[4:]) == {10.0}


def test_what_was_quiet_for_a_while_or_is_urgent_waits_no_longer_than_anything_else() -> None:
    queue: WorkQueue[str] = WorkQueue(1.0)
    for now in (1.0, 2.0, 4.0, 8.0):
        queue.offer("a", now - 1.0)
        queue.take(now)
        queue.done("a", now, wrote=True)
    queue.offer("a", 9.0, rank=URGENT)
    assert queue.take(9.0) == "a"
    queue.done("a", 9.0, wrote=True)

    queue.offer("a", 40.0)
    assert queue.take(41.0) == "a"
