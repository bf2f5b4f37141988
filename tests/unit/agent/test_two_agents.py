"""Two agents of one export under ``stored``; any call of the bucket may come between two others."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pe_agent.log.commit import Committer
from pe_agent.log.errors import Superseded
from pe_agent.log.frames import Kind
from pe_agent.log.objects.bucket import Bucket, BucketError, open_bucket
from support.storage.one_agent import OneAgent

FAULTS = 0.05
"""Share of the bucket's calls that fail, half of them after they had their effect."""
MOST_FAULTS = 10
"""Of one interleaving: each start that fails leaves an owner, which later starts have to seal."""
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Directory without a disk, where there is one: the agents sync in each step."""
here = threading.local()


class Turns:
    """Lets one of two threads run at a time, and draws the next at each call of the bucket."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.alive = [0, 1]
        self.next = 0
        self.faults = MOST_FAULTS
        self.changed = threading.Condition()

    def step(self, who: int) -> None:
        with self.changed:
            self.next = self.random.choice(self.alive)
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.next == who)

    def wait(self, who: int) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.next == who)

    def end(self, who: int) -> None:
        with self.changed:
            self.alive.remove(who)
            self.next = self.alive[0] if self.alive else -1
            self.changed.notify_all()


class Case:
    """One interleaving, given by a seed."""

    def __init__(self, seed: int, committer: Committer) -> None:
        self.random = Random(seed)
        self.turns = Turns(self.random)
        self.committer = committer
        self.bucket = open_bucket("memory://")
        self.place = Path(tempfile.mkdtemp(dir=MEMORY))
        self.agents: list[OneAgent] = []
        self.published: dict[int, bytes] = {}
        """Content of each epoch that an agent has reported as published."""
        self.superseded = 0
        self.errors: list[BaseException] = []

    def run(self) -> None:
        threads = [threading.Thread(target=self.act, args=(who,)) for who in (0, 1)]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for error in self.errors:
                raise error
            last = OneAgent(self.bucket, self.place / "last", self.committer)
            self.agents.append(last)
            found = epochs(last)
            assert [number for number, _ in found] == list(range(len(found)))
            assert self.published.items() <= dict(found).items()
        finally:
            for agent in self.agents:
                agent.log.close()
            shutil.rmtree(self.place)

    def act(self, who: int) -> None:
        """Start, publish until another agent takes over, and start again once."""
        here.turns, here.who = self.turns, who
        self.turns.wait(who)
        try:
            for start in range(2):  # the second one takes over from the other agent
                try:
                    self.publish(self.start(f"{who}-{start}"))
                except Superseded:
                    self.superseded += 1
        except BaseException as error:
            self.errors.append(error)
        finally:
            self.turns.end(who)
            here.turns = None

    def start(self, name: str) -> OneAgent:
        while True:
            directory = self.place / name
            try:
                agent = OneAgent(self.bucket, directory, self.committer)
            except BucketError:
                shutil.rmtree(directory, ignore_errors=True)
            else:
                self.agents.append(agent)
                return agent

    def publish(self, agent: OneAgent) -> None:
        number = len(epochs(agent))
        for _ in range(self.random.randint(1, 3)):
            content = self.random.randbytes(self.random.choice((10, 400)))
            address = agent.log.append(Kind.MANIFEST, b"%d" % number, content)
            while agent.uploader.uploaded < (address.segment, address.offset + address.length):
                agent.upload()
                if agent.uploader.superseded:
                    raise Superseded("")
            assert number not in self.published, f"two epochs {number}"
            self.published[number] = content
            number += 1


def epochs(agent: OneAgent) -> list[tuple[int, bytes]]:
    """Return numbers and contents of the epochs that an agent has found at its start."""
    frames = agent.log.recovered_frames({Kind.MANIFEST})
    return [(int(meta), agent.recovered[address]) for address, _, meta in frames]


@pytest.fixture(autouse=True)
def calls_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have another agent's calls before each call of the bucket, and let some fail."""
    original = Bucket._call

    def call(self: Bucket, permission: str, key: str, operation: Callable[[Any, str], Any]) -> Any:
        turns: Turns | None = getattr(here, "turns", None)
        if turns is None:
            return original(self, permission, key, operation)
        turns.step(here.who)
        fault = turns.random.random() if turns.faults else 1.0
        turns.faults -= fault < FAULTS
        if fault < FAULTS / 2:
            raise BucketError("a fault")
        result = original(self, permission, key, operation)
        if fault < FAULTS:
            raise BucketError("a fault after the effect")
        return result

    monkeypatch.setattr(Bucket, "_call", call)


@pytest.mark.parametrize("count", [100, pytest.param(10_000, marks=pytest.mark.long)])
def test_no_interleaving_of_two_agents_publishes_two_epochs_of_a_number(count: int) -> None:
    committer, superseded, published = Committer(threads=1), 0, 0
    try:
        for seed in range(count):
            case = Case(seed, committer)
            try:
                case.run()
            except Exception as error:
                raise AssertionError(f"seed {seed}") from error
            superseded += case.superseded
            published += len(case.published)
    finally:
        committer.close()
    # Otherwise the agents were never in each other's way.
    assert superseded > count / 2
    assert published > count
