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
from streambroker_operator.kubernetes.client.watch_client import (
    ApiClient,
    ApiError,
    LineBuffer,
    with_timeout,
)
from streambroker_operator.kubernetes.watch.informer import (
    KINDS,
    PORTS,
    ApiFeeder,
    Backoff,
    CrdMissingError,
    FeedChange,
    KindFeed,
    Newest,
    ObserveObject,
)
from streambroker_operator.kubernetes.watch.resync import run_resync

_log = logging.getLogger("streambroker.kubernetes")
_P = TypeVar("_P")

_MODULE = "streambroker_operator.kubernetes.watch.kopf_child"
_SILENT_S = 60.0
"""After how long without a sign of life the process is given up."""
_STABLE_S = 60.0
"""After how long a process that ends is worth a quick restart again."""
_CHUNK = 1 << 16
_END_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildConfig:
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
    def decode(cls, line: bytes) -> ChildConfig:
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
        observe: takes the objects themselves, before the events that come of them.
        newest: how far the board is that is fed.

    Attributes:
        starts: how often kopf was started.
    """

    name = "kopf"

    def __init__(
        self,
        client: ApiClient,
        namespaces: Sequence[str] = (),
        observe: ObserveObject = lambda *_: None,
        newest: Newest = lambda _: 0,
    ) -> None:
        super().__init__(client, namespaces, observe, newest)
        self.starts = 0
        self.process: Process | None = None
        # Set when what is to be followed is no longer what kopf was told of.
        self._restart_needed = asyncio.Event()
        self._sessions: dict[AnyKind, int] = {}

    @property
    def restarts(self) -> int:
        """How often kopf was started again."""
        return max(0, self.starts - 1)

    def parts(self) -> list[Awaitable[None]]:
        """Return what runs side by side."""
        feeds = self.feeds.values()
        for feed in feeds:
            feed.on_lost = self._restart_needed.set
        return [
            *map(self.run_feed, feeds),
            *map(run_resync, feeds),
            self._supervise(),
        ]

    async def follow(self, feed: KindFeed, version: int) -> None:
        """Leave the following to kopf, begun anew, until a list is asked for."""
        self._sessions[feed.kind] = feed.cache.session
        self._restart_needed.set()
        try:
            await feed.relist_needed.wait()
        finally:
            del self._sessions[feed.kind]

    def _due_sessions(self) -> dict[AnyKind, int]:
        """Return the kinds to follow, each with its list; none while a list is waited for."""
        # Ports are followed whether there is a list of rules or not.
        here = {
            kind: feed
            for kind, feed in self.feeds.items()
            if not feed.reason and (kind in PORTS or kind in self._sessions)
        }
        followed = self._followed_namespaces()
        if not self._sessions.keys() >= here.keys() or (self.namespaces and not followed):
            return {}
        if RULE in here and not here[RULE].refused.keys().isdisjoint(followed):
            # kopf ends with the first watch that is refused. Sweeps follow the rules meanwhile.
            del here[RULE]
        return {kind: self._sessions[kind] for kind in here}

    def _followed_namespaces(self) -> tuple[str, ...]:
        """Return the namespaces whose Exports and Imports may be followed; empty for all."""
        refused = {namespace for kind in PORTS for namespace in self.feeds[kind].refused}
        return tuple(namespace for namespace in self.namespaces if namespace not in refused)

    async def _supervise(self) -> None:
        loop, backoff = asyncio.get_running_loop(), Backoff(*self.client.timing.restart_s)
        while True:
            await self._restart_needed.wait()
            self._restart_needed.clear()
            sessions = self._due_sessions()
            if not sessions:
                continue
            began = loop.time()
            ended = await self._run_once(sessions)
            for feed in self.feeds.values():
                feed.resync_due.set()
            if loop.time() - began > _STABLE_S:
                backoff.reset()
            if ended:
                # Not because of a list: kopf gave up. Go on with the sweep alone for a while.
                await backoff.pause()
                self._restart_needed.set()

    async def _run_once(self, sessions: dict[AnyKind, int]) -> bool:
        """Run kopf until it ends, or until it has to begin anew; say whether it ended."""
        process = await self._start(tuple(sessions))
        last_words: list[bytes] = []
        reading = asyncio.ensure_future(self._read_output(process, sessions))
        listening = asyncio.ensure_future(_read_last_line(process, last_words))
        anew = asyncio.ensure_future(self._restart_needed.wait())
        try:
            await asyncio.wait({reading, anew}, return_when=asyncio.FIRST_COMPLETED)
            ended = not self._restart_needed.is_set()
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
        order = ChildConfig(
            access=self.client.access,
            namespaces=self._followed_namespaces(),
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
            await _read_last_line(process, [])
            raise
        _require_pipe(process.stdin).write(order.encode() + b"\n")
        self.starts += 1
        self.process = process
        return process

    async def _read_output(self, process: Process, sessions: dict[AnyKind, int]) -> None:
        """Take in what kopf tells until it ends, or is silent for too long."""
        pipe, lines = _require_pipe(process.stdout), LineBuffer()
        while True:
            try:
                data = await with_timeout(_SILENT_S, pipe.read(_CHUNK))
            except asyncio.TimeoutError:
                return
            if not data:
                return
            told = [json.loads(line) for line in lines.feed(data)]
            for kind, session in sessions.items():
                changes = [(line[0], line[2]) for line in told if line and line[1] == kind]
                if changes:
                    await self._apply_changes(self.feeds[kind], changes, session)

    async def _apply_changes(self, feed: KindFeed, changes: list[FeedChange], session: int) -> None:
        try:
            await feed.apply_changes(changes, session)
        except CrdMissingError:
            feed.mark_lost("CrdMissing")
        except ApiError as error:
            # What could not be told is lost with this batch: only a list knows it now.
            feed.on_failed(error)
            feed.relist_needed.set()
        if any(kind is None for kind, _ in changes):
            feed.resync_due.set()


def _require_pipe(pipe: _P | None) -> _P:
    """Return a pipe that was asked for, so that it is there."""
    if pipe is None:
        raise RuntimeError("a process without the pipe it was given")
    return pipe


async def _read_last_line(process: Process, last_words: list[bytes]) -> None:
    """Keep the last line that a process says on standard error."""
    pipe, lines = _require_pipe(process.stderr), LineBuffer()
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
    _require_pipe(process.stdin).close()
    try:
        await with_timeout(_END_S, process.wait())
    except asyncio.TimeoutError:
        process.kill()
        await process.wait()
    # A pipe closes once it was read to its end.
    while await _require_pipe(process.stdout).read(_CHUNK):
        pass
