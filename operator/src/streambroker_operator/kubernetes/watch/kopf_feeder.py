"""Feeder that follows with kopf: supervises its process and resyncs what kopf loses.

- The board is filled by our own lists; kopf only continues from there.
- After a gap in its watches kopf lists again and compares nothing. So each list, restart and
  exit of kopf triggers a resync.
- A kind without a definition would end kopf again and again, so kopf follows only the others.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from streambroker_core.model import RULE, AnyKind
from streambroker_operator.kubernetes.client.exec_login import ExecSettings
from streambroker_operator.kubernetes.client.kubeconfig import Access
from streambroker_operator.kubernetes.client.watch_client import (
    ApiError,
    LineBuffer,
    with_timeout,
)
from streambroker_operator.kubernetes.watch.informer import (
    KINDS,
    PORTS,
    ApiFeeder,
    Backoff,
    FeedChange,
    KindFeed,
)
from streambroker_operator.kubernetes.watch.lister import CrdMissingError
from streambroker_operator.kubernetes.watch.resync import run_resync

_log = logging.getLogger("streambroker.kubernetes")
_P = TypeVar("_P")

_MODULE = "streambroker_operator.kubernetes.watch.kopf_child"
_SILENT_S = 60.0
"""The process is restarted after this long without output."""
_STABLE_S = 60.0
"""A process that ran longer than this is restarted without a long pause."""
_CHUNK = 1 << 16
_END_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildConfig:
    """Configuration sent to the child process; empty `namespaces` means all."""

    access: Access
    namespaces: tuple[str, ...]
    page: int
    server_s: int
    call_s: float
    kinds: tuple[AnyKind, ...] = KINDS

    def encode(self) -> bytes:
        """Return the configuration as one line, including secrets."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, line: bytes) -> ChildConfig:
        """Parse the output of `encode`."""
        fields = json.loads(line)
        access = fields["access"]
        login = access["login"] and ExecSettings(**access["login"])
        fields["access"] = Access(**{**access, "login": login})
        return cls(**{**fields, **{name: tuple(fields[name]) for name in ("namespaces", "kinds")}})


@dataclass(eq=False)
class KopfFeeder(ApiFeeder):
    """Lists by itself, then follows with kopf in a child process."""

    starts: int = field(init=False, default=0)
    process: Process | None = field(init=False, default=None)
    # Set when kopf no longer follows what it should.
    _restart_needed: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _sessions: dict[AnyKind, int] = field(init=False, default_factory=dict)

    @property
    def restarts(self) -> int:
        """Restarts of kopf."""
        return max(0, self.starts - 1)

    def parts(self) -> list[Awaitable[None]]:
        """Return the coroutines to run concurrently."""
        feeds = self.feeds.values()
        for feed in feeds:
            feed.on_lost = self._restart_needed.set
        return [
            *map(self.run_feed, feeds),
            *map(run_resync, feeds),
            self._supervise(),
        ]

    async def follow(self, feed: KindFeed, version: int) -> None:
        """Restart kopf to follow the kind; return when a list is needed."""
        self._sessions[feed.kind] = feed.cache.session
        self._restart_needed.set()
        try:
            await feed.relist_needed.wait()
        finally:
            del self._sessions[feed.kind]

    def _due_sessions(self) -> dict[AnyKind, int]:
        """Return the kinds to follow and their list sessions; empty while a list is pending."""
        # Ports do not wait for the list of rules.
        due = {
            kind: feed
            for kind, feed in self.feeds.items()
            if not feed.health.reason and (kind in PORTS or kind in self._sessions)
        }
        followed = self._followed_namespaces()
        if not self._sessions.keys() >= due.keys() or (self.namespaces and not followed):
            return {}
        if RULE in due and not due[RULE].lister.refused.keys().isdisjoint(followed):
            # kopf ends at the first refused watch. Meanwhile only resyncs follow the rules.
            del due[RULE]
        return {kind: self._sessions[kind] for kind in due}

    def _followed_namespaces(self) -> tuple[str, ...]:
        """Return the namespaces whose Exports and Imports may be followed; empty for all."""
        refused = {namespace for kind in PORTS for namespace in self.feeds[kind].lister.refused}
        return tuple(namespace for namespace in self.namespaces if namespace not in refused)

    async def _supervise(self) -> None:
        loop, backoff = asyncio.get_running_loop(), Backoff(*self.client.timing.restart_s)
        while True:
            await self._restart_needed.wait()
            self._restart_needed.clear()
            sessions = self._due_sessions()
            if not sessions:
                continue
            started_at = loop.time()
            ended = await self._run_once(sessions)
            for feed in self.feeds.values():
                feed.resync_due.set()
            if loop.time() - started_at > _STABLE_S:
                backoff.reset()
            if ended:
                # kopf exited by itself. Until the restart only resyncs follow.
                await backoff.pause()
                self._restart_needed.set()

    async def _run_once(self, sessions: dict[AnyKind, int]) -> bool:
        """Run kopf until it exits or must restart; return whether it exited."""
        process = await self._start(tuple(sessions))
        last_line: list[bytes] = []
        reading = asyncio.ensure_future(self._read_output(process, sessions))
        listening = asyncio.ensure_future(_read_last_line(process, last_line))
        restarting = asyncio.ensure_future(self._restart_needed.wait())
        try:
            await asyncio.wait({reading, restarting}, return_when=asyncio.FIRST_COMPLETED)
            ended = not self._restart_needed.is_set()
        finally:
            self.process = None
            ending = asyncio.ensure_future(_end_all(process, reading, restarting))
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError:
                # Even when cancelled, wait until the process has ended.
                await ending
                raise
            await listening
        if ended:
            stderr_line = b" ".join(last_line).decode(errors="replace")
            _log.warning(
                "kopf ended with %s and is started again: %s", process.returncode, stderr_line
            )
        return ended

    async def _start(self, kinds: tuple[AnyKind, ...]) -> Process:
        timing = self.client.timing
        config = ChildConfig(
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
            # Even when cancelled, end the process that was being started.
            process = await starting
            await _end(process)
            await _read_last_line(process, [])
            raise
        _require_pipe(process.stdin).write(config.encode() + b"\n")
        self.starts += 1
        self.process = process
        return process

    async def _read_output(self, process: Process, sessions: dict[AnyKind, int]) -> None:
        """Apply the output of kopf until it exits or is silent for too long."""
        pipe, lines = _require_pipe(process.stdout), LineBuffer()
        while True:
            try:
                data = await with_timeout(_SILENT_S, pipe.read(_CHUNK))
            except TimeoutError:
                return
            if not data:
                return
            records = [json.loads(line) for line in lines.feed(data)]
            for kind, session in sessions.items():
                changes = [
                    (record[0], record[2]) for record in records if record and record[1] == kind
                ]
                if changes:
                    await self._apply_changes(self.feeds[kind], changes, session)

    async def _apply_changes(self, feed: KindFeed, changes: list[FeedChange], session: int) -> None:
        try:
            await feed.apply_changes(changes, session)
        except CrdMissingError:
            feed.mark_lost("CrdMissing")
        except ApiError as error:
            # These events are lost; only a new list can recover them.
            feed.health.on_failed(error)
            feed.relist_needed.set()
        if any(kind is None for kind, _ in changes):
            feed.resync_due.set()


def _require_pipe(pipe: _P | None) -> _P:
    """Return the pipe, which must exist because it was requested."""
    if pipe is None:
        raise RuntimeError("the process was not given its pipe")
    return pipe


async def _read_last_line(process: Process, last_words: list[bytes]) -> None:
    """Keep the last line of the standard error of a process."""
    pipe, lines = _require_pipe(process.stderr), LineBuffer()
    while data := await pipe.read(_CHUNK):
        last_words[:] = lines.feed(data)[-1:] or last_words


async def _end_all(process: Process, *tasks: asyncio.Future[Any]) -> None:
    """Cancel the tasks of a process, then end it."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await _end(process)


async def _end(process: Process) -> None:
    """End a process by closing its input; kill it after a timeout."""
    _require_pipe(process.stdin).close()
    try:
        await with_timeout(_END_S, process.wait())
    except TimeoutError:
        process.kill()
        await process.wait()
    # A pipe closes only after it was read to its end.
    while await _require_pipe(process.stdout).read(_CHUNK):
        pass
