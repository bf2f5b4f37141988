"""Never two leaders while clocks drift within bounds, whatever the network does; one in the end."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streambroker_operator.kubernetes.replicas.election import (
    Election,
    LeaseRecord,
    LeaseTiming,
    LeaseWrite,
)

TIMING = LeaseTiming(duration_s=12)
"""As short-lived as a Lease may be."""
TIMEOUT_S = 5.0
DRIFT = 0.09
"""How much faster or slower than real time a clock runs: less than `MARGIN` allows for two."""


@dataclass
class Server:
    """One Lease with versions."""

    record: LeaseRecord | None = None
    version: int = 0

    def write(self, write: LeaseWrite) -> str | None:
        """Return the new version; None for a conflict."""
        known = None if self.record is None else str(self.version)
        if write.version != known:
            return None
        self.version += 1
        self.record = write.record
        return str(self.version)


@dataclass
class Faults:
    """What may happen, by chance, until a time."""

    lost: float = 0.0
    slow: float = 0.0
    until: float = float("inf")


class World:
    """Candidates with clocks of their own, a server, and a network with delays and losses."""

    def __init__(self, seed: int, faults: Faults, candidates: int = 3) -> None:
        self.random = random.Random(seed)
        self.faults = faults
        self.now = 0.0
        self.server = Server()
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.number = itertools.count()
        self.candidates = [Candidate(self, f"c{n}") for n in range(candidates)]

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self.queue, (self.now + seconds, next(self.number), act))

    def run(self, until: float) -> None:
        while self.queue and self.queue[0][0] <= until:
            self.now, _, act = heapq.heappop(self.queue)
            act()
            self.check()
        self.now = until
        self.check()

    def check(self) -> None:
        leaders = [one.name for one in self.candidates if one.leads()]
        assert len(leaders) <= 1, (self.now, leaders)

    def delay(self) -> float:
        if self.now < self.faults.until and self.random.random() < self.faults.slow:
            return self.random.uniform(0.0, 12.0)
        return self.random.uniform(0.0, 0.05)

    def loses(self) -> bool:
        return self.now < self.faults.until and self.random.random() < self.faults.lost


@dataclass
class Candidate:
    """A process that runs an `Election`; after being killed it is another one."""

    world: World
    name: str
    starts: int = 0
    alive: bool = False
    election: Election = field(init=False)
    rate: float = field(init=False)
    offset: float = field(init=False)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.starts += 1
        self.alive = True
        self.rate = self.world.random.uniform(1 - DRIFT, 1 + DRIFT)
        self.offset = self.world.random.uniform(-1e6, 1e6)
        self.election = Election(f"{self.name}-{self.starts}", TIMING)
        self.later(self.world.random.uniform(0, 3), self.turn)

    def clock(self) -> float:
        return self.offset + self.rate * self.world.now

    def leads(self) -> bool:
        return self.alive and self.election.leads(self.clock())

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something after seconds of the own clock, unless the process is another by then."""
        start = self.starts

        def guarded() -> None:
            if self.alive and self.starts == start:
                act()

        self.world.at(seconds / self.rate, guarded)

    def call(self, serve: Callable[[], object], then: Callable[[object], None]) -> None:
        """Make a request; its answer, or a timeout, comes once. A late request is served still."""
        open_ = [True]

        def answered(answer: object) -> None:
            if open_[0]:
                open_[0] = False
                then(answer)

        def served() -> None:
            answer = serve()
            if not self.world.loses():
                start = self.starts
                self.world.at(
                    self.world.delay(),
                    lambda: answered(answer) if self.alive and self.starts == start else None,
                )

        def failed() -> None:
            if open_[0]:
                open_[0] = False
                self.election.on_failed()
                self.pause()

        if not self.world.loses():
            self.world.at(self.world.delay(), served)
        self.later(TIMEOUT_S, failed)

    def turn(self) -> None:
        if self.election.must_read:
            self.call(lambda: (self.world.server.record, self.world.server.version), self.read)
        else:
            self.write()

    def read(self, answer: object) -> None:
        assert isinstance(answer, tuple)
        record, version = answer
        self.election.on_read(record, None if record is None else str(version), self.clock())
        self.write()

    def write(self) -> None:
        sent = self.clock()
        write = self.election.next_write(sent, wall=self.world.random.uniform(0, 1e9))
        if write is None:
            self.pause()
            return
        self.election.on_failed()

        def wrote(version: object) -> None:
            if isinstance(version, str):
                self.election.on_written(write.record, version, sent=sent, now=self.clock())
            self.pause()

        self.call(lambda: self.world.server.write(write), wrote)

    def pause(self) -> None:
        self.later(TIMING.retry_s * self.world.random.uniform(1.0, 1.2), self.turn)

    def kill(self) -> None:
        self.alive = False
        self.world.at(self.world.random.uniform(0, 30), self.begin)

    def release(self) -> None:
        write = self.election.release(0.0)
        self.alive = False
        if write is not None and not self.election.must_read:
            released = write

            def served() -> None:
                self.world.server.write(released)

            self.world.at(self.world.delay(), served)
        self.world.at(self.world.random.uniform(0, 30), self.begin)


@given(
    seed=st.integers(0, 2**32),
    lost=st.sampled_from([0.0, 0.1, 0.5]),
    slow=st.sampled_from([0.0, 0.2, 0.8]),
    ends=st.lists(st.tuples(st.floats(0, 300), st.integers(0, 2), st.booleans()), max_size=6),
)
@example(seed=1, lost=0.5, slow=0.8, ends=[(50.0, 0, True), (51.0, 1, False)])
def test_never_two_lead_and_one_does_when_the_faults_are_over(
    seed: int, lost: float, slow: float, ends: list[tuple[float, int, bool]]
) -> None:
    world = World(seed, Faults(lost=lost, slow=slow, until=300.0))
    for at, number, orderly in ends:
        one = world.candidates[number]

        def end(one: Candidate = one, orderly: bool = orderly) -> None:
            if one.alive:
                one.release() if orderly else one.kill()

        world.at(at, end)
    world.run(400.0)

    assert sum(one.leads() for one in world.candidates) == 1


def leader(world: World) -> Candidate:
    (found,) = [one for one in world.candidates if one.leads()]
    return found


@pytest.mark.parametrize("seed", range(20))
def test_a_released_lease_is_taken_over_within_three_seconds(seed: int) -> None:
    world = World(seed, Faults())
    world.run(60.0)
    leader(world).release()

    world.run(world.now + 3.0)

    leader(world)


@pytest.mark.parametrize("seed", range(20))
def test_the_lease_of_a_killed_process_is_taken_over_when_it_has_run_out(seed: int) -> None:
    world = World(seed, Faults())
    world.run(60.0)
    leader(world).kill()
    killed = world.now
    while not any(one.leads() for one in world.candidates):
        world.run(world.now + 0.1)

    assert 8.0 <= world.now - killed <= 18.0


def test_leading_ends_by_itself_while_a_request_hangs() -> None:
    election = Election("a", TIMING)
    election.on_read(None, None, 0.0)
    write = election.next_write(0.0, 0.0)
    assert write is not None
    election.on_written(write.record, "1", sent=0.0, now=4.0)

    assert election.leads(9.9)
    assert not election.leads(10.0)


def test_an_answer_that_comes_too_late_makes_nobody_lead() -> None:
    election = Election("a", TIMING)
    election.on_read(None, None, 0.0)
    write = election.next_write(0.0, 0.0)
    assert write is not None
    election.on_written(write.record, "1", sent=0.0, now=11.0)

    assert not election.leads(11.0)


def test_what_a_record_says_of_the_time_is_not_believed() -> None:
    election = Election("b", TIMING)
    old = LeaseRecord(holder="a", duration_s=15, renewed=-1e9)
    election.on_read(old, "1", 100.0)

    assert election.next_write(114.9, 0.0) is None
    election.on_read(old, "1", 115.0)
    taken = election.next_write(115.0, 0.0)

    assert taken is not None
    assert taken.record.transitions == 1
    assert taken.version == "1"


@pytest.mark.compatibility(
    "lease of the leader",
    "a longer lease of another release is waited for",
)
def test_a_longer_lease_of_another_release_is_waited_for() -> None:
    election = Election("b", TIMING)
    election.on_read(LeaseRecord(holder="a", duration_s=60), "1", 0.0)

    assert election.next_write(59.0, 0.0) is None


@pytest.mark.parametrize(
    "values", [{"duration_s": 10}, {"deadline_s": 3.0}, {"retry_s": 0.0}, {"deadline_s": 13.0}]
)
def test_times_under_which_two_could_lead_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="has to"):
        LeaseTiming(**values)  # type: ignore[arg-type]
