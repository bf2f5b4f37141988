"""A network that loses, repeats, reorders, replays and forges, and agents that poll through it.

An agent here is what the real one is made of (`HintGate`, the hint's and the view's `decode`)
with the loop of the link in virtual time: only a view that was answered with 200 changes routes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from streambroker_core.board import BoardEvent, HintAction
from streambroker_core.errors import HintError
from streambroker_core.model import PeKey
from streambroker_core.wire.broker import hints
from streambroker_core.wire.broker import view as wire
from streambroker_core.wire.broker.registration import POLL_S, Registration, derive_key
from streambroker_core.wire.broker.view import View
from support.virtual.feed import Replica
from support.virtual.world import PES, Pair, Scan, World

RETRY_S = 1.0
TIMEOUT_S = 5.0
JITTER = 1.1
LAG_S = 60.0
"""Seconds after which an orderly feed has brought everything."""
SECRET = b"s" * 32
Fate = Literal["ok", "request lost", "answer lost", "slow", "refused"]
FORGERIES = 6


@dataclass(frozen=True)
class Answer:
    """A view on its way to an agent, and what its board knew then."""

    body: bytes
    known: dict[str, int]
    point: hints.Point


@dataclass
class Agent:
    """One agent: its view, its gate, and when it polls next."""

    pe: PeKey
    instance: str
    hint: str
    due: float = 0.0
    key: bytes = b""
    view: View | None = None
    known: dict[str, int] = field(default_factory=dict)
    gate: hints.HintGate = field(default_factory=hints.HintGate)
    register_again: float = 0.0
    ended: float = -1.0
    waiting: tuple[Answer, float] | None = None
    wakes: int = 0
    polls: int = 0

    def restart(self, hint: str, now: float) -> None:
        """Begin anew with what is on disk: key, instance and view."""
        self.gate = hints.HintGate()
        if self.view is not None:
            self.gate = hints.HintGate(self.view.version or None, self.view.point)
        self.hint, self.due, self.register_again, self.waiting = hint, now, 0.0, None

    def hear(self, datagram: bytes, now: float) -> bool:
        """Take a datagram in; say whether it is believed to be the broker's."""
        try:
            hint = hints.decode(self.key, datagram, str(self.pe))
        except HintError:
            return False
        had = self.view is not None and self.view.version == hint.version
        if self.gate.should_poll(hint, now):
            assert not had, "a poll for what the agent has"
            self.wakes += 1
            self.due = min(self.due, max(now, self.ended + hints.POLL_SPACING_S))
        return True

    def pairs(self) -> set[Pair]:
        if self.view is None:
            return set()
        sending = {(p.uid, r.uid) for p in self.view.exports.values() for r in p.routes}
        reading = {(r.uid, p.uid) for p in self.view.imports.values() for r in p.routes}
        return sending | reading

    def rest(self, now: float, pause: float) -> None:
        self.ended = now
        self.due = now + pause


class Net:
    """World, brokers, agents, and all that is between them.

    Args:
        seed: of the fates of requests.
        orderly: two brokers with feeds that are late and repeat, but keep the order and lose
            nothing, and agents that ask either; otherwise agents ask the first broker, the
            second one only hears of the same world, and the feeds do what they like.
    """

    def __init__(self, seed: int, *, orderly: bool) -> None:
        self.orderly = orderly
        self.now = 0.0
        self.world = World()
        self.flight: list[tuple[str, bytes]] = []
        self.wire: list[tuple[str, bytes]] = []
        self.badness = 0.0
        self.calm = False
        self.restored = False
        self._random = random.Random(seed)
        self.replicas = [Replica(self.world, self._sender(number)) for number in (0, 1)]
        self.agents = [
            Agent(pe=pe, instance=f"{number:016x}", hint=f"h:{number + 1}")
            for number, pe in enumerate(PES)
        ]

    # ---- from the world to the brokers -------------------------------------------

    def happen(self, event: BoardEvent | None) -> None:
        """Send a change of the world to all brokers."""
        if event is not None:
            for replica in self.replicas:
                replica.coming.append((event, self.now))

    def restart(self, replica: Replica) -> None:
        """Let a broker start again; an orderly feed begins after what it read then."""
        if self.orderly:
            replica.coming.clear()
        replica.fill()

    def restore(self, *, restart: bool, silent: bool) -> None:
        """Bring an old copy of the store back, under running brokers or stopped ones."""
        if self.orderly or not self.world.restore(agents=restart):
            return
        self.restored = True
        for replica in self.replicas:
            if restart:
                replica.coming.clear()
                replica.past.clear()
                replica.missed = {kind: set() for kind in replica.missed}
                replica.fill()
            else:
                replica.begin_session(silent=silent)

    # ---- datagrams -----------------------------------------------------------------

    def _sender(self, number: int) -> Callable[[HintAction], None]:
        def send(hint: HintAction) -> None:
            if number and not self.orderly:
                return
            registration = self.replicas[number].board.reader.registration(hint.pe)
            assert registration is not None
            assert registration.hint is not None
            key = derive_key(SECRET, hint.pe, registration.instance)
            datagram = hints.encode(key, str(hint.pe), hint.version, hint.point)
            assert len(datagram) <= hints.MAX_DATAGRAM
            self.flight.append((registration.hint, datagram))
            self.wire = [*self.wire[-60:], (registration.hint, datagram)]

        return send

    def arrive(self, pick: int, *, keep: bool) -> None:
        """Let a datagram arrive, any one; it may arrive again."""
        if self.flight:
            place = pick % len(self.flight)
            address, datagram = self.flight[place] if keep else self.flight.pop(place)
            self._hand(address, datagram)

    def vanish(self, pick: int) -> None:
        if self.flight:
            del self.flight[pick % len(self.flight)]

    def replay(self, pick: int, agent: int) -> None:
        """Send an agent what was once on the wire, to whomever it was."""
        if self.wire:
            _, datagram = self.wire[pick % len(self.wire)]
            self._hand(self.agents[agent % len(self.agents)].hint, datagram)

    def forge(self, pick: int, how: int, agent: int) -> None:
        """Send an agent what no broker wrote for it: it is refused and costs nothing."""
        victim = self.agents[agent % len(self.agents)]
        datagram = self._forged(victim, pick, how % FORGERIES)
        before = (victim.due, victim.wakes, victim.view)
        assert not victim.hear(datagram, self.now), "a forgery was believed"
        assert (victim.due, victim.wakes, victim.view) == before

    def _forged(self, victim: Agent, pick: int, how: int) -> bytes:
        high = (1 << 63, 1 << 63)
        genuine = hints.encode(victim.key, str(victim.pe), f"v{pick}", high)
        other = next(agent for agent in self.agents if agent is not victim)
        if how == 0:
            place = pick % len(genuine)
            flipped = genuine[place] ^ (1 << pick % 8)
            return genuine[:place] + bytes([flipped]) + genuine[place + 1 :]
        if how == 1:
            return genuine[: pick % len(genuine)]
        if how == 2:
            return genuine + bytes(pick % 120 + 1)
        if how == 3:
            return hints.encode(other.key + b"x", str(victim.pe), f"v{pick}", high)
        if how == 4:
            return hints.encode(victim.key, str(other.pe), f"v{pick}", high)
        return self._random.randbytes(pick % 220)

    def _hand(self, address: str, datagram: bytes) -> None:
        for agent in self.agents:
            if agent.hint == address:
                before = (agent.wakes, agent.view)
                agent.hear(datagram, self.now)
                assert agent.wakes <= before[0] + 1
                assert agent.view is before[1], "a datagram changed routes"

    # ---- polls ---------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Let time pass; agents poll when they are due, and lagging feeds catch up."""
        end = self.now + seconds
        while True:
            agent = min(self.agents, key=_next)
            if _next(agent) > end:
                break
            self.now = max(self.now, _next(agent))
            self._keep_up()
            if agent.waiting is not None:
                self._give_up(agent)
            else:
                self._round(agent)
        self.now = end
        self._keep_up()

    def _keep_up(self) -> None:
        if not self.orderly:
            return
        for replica in self.replicas:
            replica.deliver_since(self.now - LAG_S)

    def _fate(self) -> Fate:
        if self._random.random() >= self.badness:
            return "ok"
        fates: tuple[Fate, ...] = ("request lost", "answer lost", "slow", "refused")
        return self._random.choice(fates)

    def _give_up(self, agent: Agent) -> None:
        agent.waiting = None
        agent.rest(self.now, RETRY_S)

    def _round(self, agent: Agent) -> None:
        """Do what the link does in a round: register where it is time, then ask for the view."""
        if self.now >= agent.register_again and not self._register(agent):
            return self._give_up(agent)
        agent.polls += 1
        fate, replica = self._fate(), self._asked()
        if fate in ("request lost", "refused"):
            return self._give_up(agent)
        view = replica.board.reader.view(agent.pe)
        if view is None:
            if not self._register(agent):
                return self._give_up(agent)
            replica = self._asked()
            view = replica.board.reader.view(agent.pe)
        if view is None or fate == "answer lost":
            return self._give_up(agent)
        if agent.view is not None and agent.view.version == view.version:
            assert agent.gate.accept_view(view.version, view.point, self.now)
            return agent.rest(self.now, self._pause())
        answer = _answer(replica, view)
        if fate == "slow":
            agent.waiting = (answer, self.now + TIMEOUT_S)
            return None
        return self._take(agent, answer)

    def _pause(self) -> float:
        return POLL_S * self._random.uniform(0.9, JITTER)

    def _asked(self) -> Replica:
        return self._random.choice(self.replicas) if self.orderly else self.replicas[0]

    def _register(self, agent: Agent) -> bool:
        fate, asked = self._fate(), self._asked()
        if fate in ("request lost", "refused"):
            return False
        registration = Registration(
            instance=agent.instance, location=f"grpc+tcp://{agent.hint}", hint=agent.hint
        )
        event = self.world.register(agent.pe, registration)
        for replica in self.replicas:
            if replica is asked or self.calm:
                replica.apply(event)
            else:
                replica.coming.append((event, self.now))
        if fate == "answer lost":
            return False
        agent.key = derive_key(SECRET, agent.pe, agent.instance)
        agent.register_again = self.now + POLL_S
        return True

    def answer(self, agent: Agent) -> None:
        if agent.waiting is not None:
            answer, _ = agent.waiting
            agent.waiting = None
            self._take(agent, answer)

    def _take(self, agent: Agent, answer: Answer) -> None:
        taken = wire.decode(json.loads(answer.body))
        before = agent.pairs()
        guarded = {pair for pair in before if self.world.lasts(pair, agent.known)}
        if agent.gate.accept_view(taken.version, taken.point, self.now):
            agent.view, agent.known = taken, answer.known
            cut = guarded - agent.pairs()
            assert not cut, f"{agent.pe} lost {cut} without a reason"
        agent.rest(self.now, self._pause())

    # ---- at rest -------------------------------------------------------------------

    def settle(self, *, hinted: bool) -> None:
        """Let the network be well for one poll period after the last change: all are right.

        A PE that was withdrawn and an agent that begins anew are changes, and so is a registration
        that a restored store has an older one of; these are over when the agent has registered,
        which takes two polls at most: the first may come just before it is time to.
        """
        badness, self.badness = self.badness, 0.0
        for agent in self.agents:
            self.answer(agent)
        for replica in self.replicas:
            replica.catch_up()
        self.calm = True
        self.advance(2 * POLL_S * JITTER + RETRY_S)
        self.flight = self.flight if hinted else []
        while self.flight:
            self.arrive(0, keep=False)
        self.advance(POLL_S * JITTER + RETRY_S)
        if self.restored or self.orderly:
            self.advance(hints.STALE_S + 2 * POLL_S * JITTER)
            self.restored = False
        truth = self.world.scanned()
        for agent in self.agents:
            self._assert_right(agent, truth)
        self.badness, self.calm = badness, False

    def _assert_right(self, agent: Agent, truth: Scan) -> None:
        for replica in self.replicas:
            view = replica.board.reader.view(agent.pe)
            assert view is not None
            assert view.version == truth.versions[agent.pe], "a broker is not right at rest"
            assert agent.view is not None
            assert agent.view.version == view.version, f"{agent.pe} is not right at rest"
            plain = wire.with_version(replace(agent.view, version=""))
            assert plain.exports == wire.decode(wire.encode(view)).exports


def _next(agent: Agent) -> float:
    return agent.due if agent.waiting is None else agent.waiting[1]


def _answer(replica: Replica, view: View) -> Answer:
    body = json.dumps(wire.encode(view)).encode()
    return Answer(body=body, known=replica.known(), point=view.point)
