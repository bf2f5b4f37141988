"""kopf as the follower: its process under supervision, and the sweep for what it loses.

The board is filled by our own lists; kopf only goes on from there. After every gap in its
watches it lists anew and compares nothing, so its lists, its restarts and its end each call
for a sweep. A kind whose definition is gone would end kopf again and again: it follows the
others alone meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from streambroker_core.model import RULE, AnyKind
from streambroker_operator.kubernetes.client.kubeconfig import Access
from streambroker_operator.kubernetes.client.watch_client import ApiClient, ApiError, Lines, within
from streambroker_operator.kubernetes.watch.informer import (
    KINDS,
    PORTS,
    ApiFeeder,
    Backoff,
    Change,
    CrdMissingError,
    KindFeed,
    Look,
    Newest,
)
from streambroker_operator.kubernetes.watch.resync import sweep_again_and_again

_log = logging.getLogger("streambroker.kubernetes")
_P = TypeVar("_P")

_MODULE = "streambroker_operator.kubernetes.watch.kopf_child"
_SILENT_S = 60.0
"""After how long without a sign of life the process is given up."""
_WELL_S = 60.0
"""After how long a process that ends is worth a quick restart again."""
_CHUNK = 1 << 16
_END_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the parent asks for: where, which namespaces (empty for all), how, and which kinds."""

    access: Access
    namespaces: tuple[str, ...]
    page: int
    server_s: int
    call_s: float
    kinds: tuple[AnyKind, ...] = KINDS

    def encode(self) -> bytes:
        """Return this as one line, secrets included."""
        how = self.page, self.server_s, self.call_s
        return json.dumps([self.access.encode(), self.namespaces, *how, self.kinds]).encode()

    @classmethod
    def decode(cls, line: bytes) -> Order:
        """Read the line back."""
        access, namespaces, page, server_s, call_s, kinds = json.loads(line)
        return cls(
            access=Access.decode(access),
            namespaces=tuple(namespaces),
            page=page,
            server_s=server_s,
            call_s=call_s,
            kinds=tuple(kinds),
        )


class KopfFeeder(ApiFeeder):
    """Lists by itself, then has kopf follow in a process of its own.

    Args:
        client: asks the API server.
        namespaces: those to watch; empty for all.
        look: takes the objects themselves, before the events that come of them.
        newest: how far the board is that is fed.

    Attributes:
        starts: how often kopf was started.
    """

    name = "kopf"

    def __init__(
        self,
        client: ApiClient,
        namespaces: Sequence[str] = (),
        look: Look = lambda *_: None,
        newest: Newest = lambda _: 0,
    ) -> None:
        super().__init__(client, namespaces, look, newest)
        self.starts = 0
        self.process: Process | None = None
        # Set when what is to be followed is no longer what kopf was told of.
        self._anew = asyncio.Event()
        self._sessions: dict[AnyKind, int] = {}

    @property
    def restarts(self) -> int:
        """How often kopf was started again."""
        return max(0, self.starts - 1)

    def parts(self) -> list[Awaitable[None]]:
        """Return what runs side by side."""
        feeds = self.feeds.values()
        for feed in feeds:
            feed.on_lost = self._anew.set
        return [
            *map(self.keep, feeds),
            *map(sweep_again_and_again, feeds),
            self._supervise(),
        ]

    async def follow(self, feed: KindFeed, version: int) -> None:
        """Leave the following to kopf, begun anew, until a list is asked for."""
        self._sessions[feed.kind] = feed.following.session
        self._anew.set()
        try:
            await feed.wanted.wait()
        finally:
            del self._sessions[feed.kind]

    def _due(self) -> dict[AnyKind, int]:
        """Return the kinds to follow, each with its list; none while a list is waited for."""
        # Ports are followed whether there is a list of rules or not.
        here = {
            kind: feed
            for kind, feed in self.feeds.items()
            if not feed.reason and (kind in PORTS or kind in self._sessions)
        }
        followed = self._followed()
        if not self._sessions.keys() >= here.keys() or (self.namespaces and not followed):
            return {}
        if RULE in here and not here[RULE].refused.keys().isdisjoint(followed):
            # kopf ends with the first watch that is refused. Sweeps follow the rules meanwhile.
            del here[RULE]
        return {kind: self._sessions[kind] for kind in here}

    def _followed(self) -> tuple[str, ...]:
        """Return the namespaces whose Exports and Imports may be followed; empty for all."""
        refused = {namespace for kind in PORTS for namespace in self.feeds[kind].refused}
        return tuple(namespace for namespace in self.namespaces if namespace not in refused)

    async def _supervise(self) -> None:
        loop, backoff = asyncio.get_running_loop(), Backoff(*self.client.timing.restart_s)
        while True:
            await self._anew.wait()
            self._anew.clear()
            sessions = self._due()
            if not sessions:
                continue
            began = loop.time()
            ended = await self._run_once(sessions)
            for feed in self.feeds.values():
                feed.sweeping.set()
            if loop.time() - began > _WELL_S:
                backoff.reset()
            if ended:
                # Not because of a list: kopf gave up. Go on with the sweep alone for a while.
                await backoff.pause()
                self._anew.set()

    async def _run_once(self, sessions: dict[AnyKind, int]) -> bool:
        """Run kopf until it ends, or until it has to begin anew; say whether it ended."""
        process = await self._start(tuple(sessions))
        last_words: list[bytes] = []
        reading = asyncio.ensure_future(self._read(process, sessions))
        listening = asyncio.ensure_future(_listen(process, last_words))
        anew = asyncio.ensure_future(self._anew.wait())
        try:
            await asyncio.wait({reading, anew}, return_when=asyncio.FIRST_COMPLETED)
            ended = not self._anew.is_set()
        finally:
            self.process = None
            ending = asyncio.ensure_future(_end_all(process, reading, anew))
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError:
                # Who is told to end while a process ends still has to see to that.
                await ending
                raise
            await listening
        if ended:
            said = b" ".join(last_words).decode(errors="replace")
            _log.warning("kopf ended with %s and is started again: %s", process.returncode, said)
        return ended

    async def _start(self, kinds: tuple[AnyKind, ...]) -> Process:
        timing = self.client.timing
        order = Order(
            access=self.client.access,
            namespaces=self._followed(),
            page=timing.page,
            server_s=timing.server_s,
            call_s=timing.call_s,
            kinds=kinds,
        )
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                sys.executable, "-m", _MODULE, stdin=PIPE, stdout=PIPE, stderr=PIPE
            )
        )
        try:
            process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # Who is told to end while a process begins still has to end that.
            process = await starting
            await _end(process)
            await _listen(process, [])
            raise
        _there(process.stdin).write(order.encode() + b"\n")
        self.starts += 1
        self.process = process
        return process

    async def _read(self, process: Process, sessions: dict[AnyKind, int]) -> None:
        """Take in what kopf tells until it ends, or is silent for too long."""
        pipe, lines = _there(process.stdout), Lines()
        while True:
            try:
                data = await within(_SILENT_S, pipe.read(_CHUNK))
            except asyncio.TimeoutError:
                return
            if not data:
                return
            told = [json.loads(line) for line in lines.feed(data)]
            for kind, session in sessions.items():
                changes = [(line[0], line[2]) for line in told if line and line[1] == kind]
                if changes:
                    await self._take(self.feeds[kind], changes, session)

    async def _take(self, feed: KindFeed, changes: list[Change], session: int) -> None:
        try:
            await feed.take(changes, session)
        except CrdMissingError:
            feed.lose("CrdMissing")
        except ApiError as error:
            # What could not be told is lost with this batch: only a list knows it now.
            feed.failed(error)
            feed.wanted.set()
        if any(kind is None for kind, _ in changes):
            feed.sweeping.set()


def _there(pipe: _P | None) -> _P:
    """Return a pipe that was asked for, so that it is there."""
    if pipe is None:
        raise RuntimeError("a process without the pipe it was given")
    return pipe


async def _listen(process: Process, last_words: list[bytes]) -> None:
    """Keep the last line that a process says on standard error."""
    pipe, lines = _there(process.stderr), Lines()
    while data := await pipe.read(_CHUNK):
        last_words[:] = lines.feed(data)[-1:] or last_words


async def _end_all(process: Process, *tasks: asyncio.Future[Any]) -> None:
    """End a process, and before that what is done with it."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await _end(process)


async def _end(process: Process) -> None:
    """End a process in order, by force after a while."""
    _there(process.stdin).close()
    try:
        await within(_END_S, process.wait())
    except asyncio.TimeoutError:
        process.kill()
        await process.wait()
    # A pipe closes once it was read to its end.
    while await _there(process.stdout).read(_CHUNK):
        pass
