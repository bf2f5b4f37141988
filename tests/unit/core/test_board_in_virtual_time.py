"""Brokers, agents and everything between them, broken at will, in virtual time.

The rules are in `support.virtual.feed` and `support.virtual.net`; every one of them is checked
after every step. About three thousand steps a second.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from streambroker_core.model import Kind
from support.virtual.net import Net
from support.virtual.world import JOBS, KINDS, MOST, PORTS, VARIANTS

MANY = st.integers(0, 0xFFFF)
PAUSES = (0.01, 0.1, 1.0, 6.0, 20.0, 33.0, 95.0)
NAMES = ("", "one", "two")


class Steps:
    """Everything that can happen, each with one number that says where and how."""

    def __init__(self, net: Net) -> None:
        self.net = net

    def create(self, pick: int) -> None:
        kind: Kind = KINDS[pick % 2]
        where = f"{JOBS[pick // 2 % 3]}/{PORTS[pick // 6 % 2]}"
        variant, name = pick // 12 % VARIANTS, NAMES[pick // 60 % 3]
        self.net.happen(self.net.world.make(kind, where, variant, name))

    def change(self, pick: int) -> None:
        old = self.net.world.picked(pick // VARIANTS)
        if old is not None:
            self.net.happen(self.net.world.change(old, pick % VARIANTS))

    def write_status(self, pick: int) -> None:
        old = self.net.world.picked(pick)
        if old is not None:
            self.net.happen(self.net.world.write(old))

    def delete(self, pick: int) -> None:
        old = self.net.world.picked(pick // 2)
        if old is not None:
            self.net.happen(self.net.world.delete(old))
            if pick % 2:
                kind = KINDS[0] if old.uid[0] == "E" else KINDS[1]
                where = f"{old.key.job}/{old.key.port}"
                made = self.net.world.make(kind, where, pick // 2 % VARIANTS, old.name)
                self.net.happen(made)

    def withdraw(self, pick: int) -> None:
        self.net.happen(self.net.world.withdraw(self.net.agents[pick % 3].pe))

    def deliver(self, pick: int) -> None:
        replica = self.net.replicas[pick % 2]
        if self.net.orderly:
            replica.deliver_next(("Export", "Import", "Agent")[pick // 2 % 3])
        elif replica.coming:
            replica.deliver(pick // 2 % len(replica.coming))

    def deliver_again(self, pick: int) -> None:
        self.net.replicas[pick % 2].again(pick // 2)

    def lose(self, pick: int) -> None:
        replica = self.net.replicas[pick % 2]
        if replica.coming and not self.net.orderly:
            replica.lose(pick // 2 % len(replica.coming))

    def ask_list(self, pick: int) -> None:
        self.net.replicas[pick % 2].ask_list(KINDS[pick // 2 % 2])

    def bring_list(self, pick: int) -> None:
        self.net.replicas[pick % 2].bring_list(KINDS[pick // 2 % 2])

    def break_off(self, pick: int) -> None:
        self.net.replicas[pick % 2].break_off(KINDS[pick // 2 % 2])

    def save(self, _pick: int) -> None:
        self.net.world.save()

    def restore(self, pick: int) -> None:
        self.net.restore(restart=bool(pick % 2), silent=bool(pick // 2 % 2))

    def restart_broker(self, pick: int) -> None:
        self.net.restart(self.net.replicas[pick % 2])

    def restart_agent(self, pick: int) -> None:
        taken = {agent.hint for agent in self.net.agents}
        free = next(f"h:{n}" for n in range(1, 5) if f"h:{n}" not in taken)
        self.net.agents[pick % 3].restart(free, self.net.now)

    def wake_agent(self, pick: int) -> None:
        agent = self.net.agents[pick % 3]
        agent.due = min(agent.due, self.net.now)
        self.net.advance(0.0)

    def let_time_pass(self, pick: int) -> None:
        self.net.advance(PAUSES[pick % len(PAUSES)])

    def change_the_weather(self, pick: int) -> None:
        self.net.badness = (0.0, 0.2, 0.6, 1.0)[pick % 4]

    def answer(self, pick: int) -> None:
        self.net.answer(self.net.agents[pick % 3])

    def arrive(self, pick: int) -> None:
        self.net.arrive(pick // 2, keep=bool(pick % 2))

    def vanish(self, pick: int) -> None:
        self.net.vanish(pick)

    def replay(self, pick: int) -> None:
        self.net.replay(pick // 3, pick % 3)

    def forge(self, pick: int) -> None:
        self.net.forge(pick // 18, pick // 3 % 6, pick % 3)

    def settle(self, pick: int) -> None:
        self.net.settle(hinted=bool(pick % 2))


STEPS = [name for name in vars(Steps) if not name.startswith("_")]
OFTEN = [
    *("create", "change", "delete", "arrive") * 2,
    *("deliver", "wake_agent") * 8,
]


class Virtual(RuleBasedStateMachine):
    """Any steps in any order."""

    orderly = False

    @initialize(seed=MANY)
    def begin(self, seed: int) -> None:
        self.steps = Steps(Net(seed, orderly=self.orderly))

    @rule(step=st.sampled_from(STEPS + OFTEN), pick=MANY)
    def step(self, step: str, pick: int) -> None:
        getattr(self.steps, step)(pick)

    def teardown(self) -> None:
        if hasattr(self, "steps"):
            self.steps.settle(1)


class Orderly(Virtual):
    """Two brokers with feeds that keep the order; agents ask either."""

    orderly = True


USED = settings(stateful_step_count=60, deadline=None)
Virtual.TestCase.settings = USED
Orderly.TestCase.settings = USED
TestOneBrokerAndFeedsThatDoWhatTheyLike = Virtual.TestCase
TestTwoBrokersAndFeedsThatKeepTheOrder = Orderly.TestCase


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_a_long_life_keeps_every_promise(seed: int, orderly: bool) -> None:
    steps = live(seed, 3000, orderly=orderly)

    steps.settle(0)
    assert steps.net.now > 1000.0
    assert len(steps.net.world.held) <= MOST


@pytest.mark.long
@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("seed", range(100, 140))
def test_many_long_lives_keep_every_promise(seed: int, orderly: bool) -> None:
    live(seed, 10_000, orderly=orderly).settle(0)


def live(seed: int, count: int, *, orderly: bool) -> Steps:
    """Take steps by the dice."""
    dice = random.Random(seed)
    steps = Steps(Net(seed, orderly=orderly))
    for _ in range(count):
        getattr(steps, dice.choice(STEPS + OFTEN))(dice.randrange(0x10000))
    return steps
