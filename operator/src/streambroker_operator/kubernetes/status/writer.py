"""Status writer: only the leader writes, only changes, with limited concurrency and rate."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from streambroker_core.model import AnyKind
from streambroker_core.wire.manifests.ports import API_VERSION
from streambroker_operator.cooperative import loop_time
from streambroker_operator.kubernetes.client.documents import Document
from streambroker_operator.kubernetes.client.http_api import Answer, ApiUnreachableError, HttpApi
from streambroker_operator.kubernetes.client.objects import APPLY, ObjectPath
from streambroker_operator.kubernetes.client.rate_limiter import WriteRateLimiter
from streambroker_operator.kubernetes.status.conditions import (
    MANAGER,
    ConditionTime,
    StatusBody,
    without_version,
)
from streambroker_operator.kubernetes.status.work_queue import (
    IDLE,
    LIVE,
    URGENT,
    WorkQueue,
    retry_delay_s,
)

TIMEOUT_S = 10.0
_QUIET_S = 60.0

Name: TypeAlias = tuple[AnyKind, str]
"""Kind and uid of a resource."""

_UNDECLARED = "schemaVersion: field not declared in schema"
_NAMES_PER_TURN = 50
"""Names processed before other tasks may run on the event loop."""

_log = logging.getLogger("streambroker.status")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusWrite:
    """A status to write.

    Attributes:
        status: all fields of the status manager.
        before: published conditions when the status was computed.
    """

    kind: AnyKind
    namespace: str
    name: str
    uid: str
    status: StatusBody
    before: tuple[ConditionTime, ...] = ()


class StatusSource(Protocol):
    """Computes statuses and is notified of written ones."""

    def build(self, name: Name) -> StatusWrite | None:
        """Return the status to write; None if it is up to date or the resource is gone."""

    def on_written(self, write: StatusWrite, answer: Document) -> None:
        """Handle the resource that the API server returned after a write."""


class StatusWriter:
    """Takes names from a queue and writes the statuses that their source computes.

    All methods are called on one event loop.

    Args:
        must_write: whether to write a status without leading, because only this process has it.
        rate_limiter: limit of the write rate; shared with the other status writers.
        settle_s: seconds to wait for further changes before a write.
    """

    def __init__(
        self,
        api: HttpApi,
        source: StatusSource,
        *,
        leads: Callable[[], bool],
        must_write: Callable[[Name], bool] = lambda _: False,
        rate_limiter: WriteRateLimiter | None = None,
        settle_s: float = 1.0,
    ) -> None:
        self._api = api
        self._source = source
        self._leads = leads
        self._must_write = must_write
        self._queue: WorkQueue[Name] = WorkQueue(settle_s)
        self._rate_limiter = WriteRateLimiter() if rate_limiter is None else rate_limiter
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._paused_until = 0.0
        self._outages = 0
        self._quiet_until: dict[tuple[str, int], float] = {}
        self._token_held = False
        self.writes: Counter[str] = Counter()
        """Results: those of `Lease.writes`; ``unchanged``, not sent; ``missing``, no resource."""

    @property
    def waiting(self) -> int:
        """Number of waiting names."""
        return len(self._queue)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and no write is in progress."""
        return not self._queue and not self._tasks

    def offer(self, name: Name, *, urgent: bool = False, live: bool = False) -> None:
        """Enqueue a status; ignored unless this process may write it.

        Names of rejected resources are `urgent`: their users should see them first. Then come
        `live` names, whose job runs.
        """
        if self._may_write(name):
            self._queue.offer(name, loop_time(), rank=URGENT if urgent else LIVE if live else IDLE)
            self._wake.set()

    def _may_write(self, name: Name) -> bool:
        return self._leads() or self._must_write(name)

    def drop_all(self) -> None:
        """Drop all waiting names: this process no longer leads."""
        self._queue.clear()

    async def run(self) -> None:
        """Write until cancelled; cancels writes in progress when it ends."""
        try:
            skipped = 0
            while True:
                # Acquire only once something is due: other writers may need the last slot.
                await self._wait_due()
                if not self._token_held:
                    await self._rate_limiter.take_token()
                    # Kept until a write uses it.
                    self._token_held = True
                await self._rate_limiter.acquire()
                if not self._start_next():
                    skipped += 1
                    if skipped % _NAMES_PER_TURN == 0:
                        await asyncio.sleep(0)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start_next(self) -> bool:
        """Start the next write and return True; release the slot and return False if none."""
        now = loop_time()
        name = self._queue.take(now) if now >= self._paused_until else None
        write = None if name is None else self._build(name)
        if name is None or write is None:
            self._rate_limiter.release()
            return False
        self._token_held = False
        task = asyncio.create_task(self._send(name, write))
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return True

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._rate_limiter.release()
        # The name may have been offered again during the write.
        self._wake.set()

    async def _wait_due(self) -> None:
        """Return when a name is due."""
        while True:
            at = self._queue.next_at()
            due = None if at is None else max(at, self._paused_until)
            if due is not None and due <= loop_time():
                return
            await self._wait_woken(due)

    async def _wait_woken(self, until: float | None) -> None:
        """Return when the queue changed, or at the given time of the loop."""
        self._wake.clear()
        timer = None
        if until is not None:
            timer = asyncio.get_running_loop().call_at(until, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _build(self, name: Name) -> StatusWrite | None:
        try:
            write = self._source.build(name) if self._may_write(name) else None
        except Exception:
            _log.exception("cannot build the status of %s %s", *name)
            write = None
        if write is None:
            self.writes["unchanged"] += 1
            self._queue.done(name, loop_time())
        return write

    async def _send(self, name: Name, write: StatusWrite) -> None:
        started_at = loop_time()
        try:
            response = await self._patch(write, write.status)
            if "schemaVersion" in write.status and _UNDECLARED in _message(response):
                # A CRD of an earlier release would refuse the whole status.
                response = await self._patch(write, without_version(write.status))
        except ApiUnreachableError as error:
            _log.debug("the status of %s %s was not written: %s", write.kind, write.name, error)
            self._rate_limiter.on_answer(started_at, refused=True)
            self._retry(name, pause=True)
            return
        self._rate_limiter.on_answer(started_at, refused=response.is_overloaded)
        self._on_answer(name, write, response)

    async def _patch(self, write: StatusWrite, status: StatusBody) -> Answer:
        target = ObjectPath(kind=write.kind, namespace=write.namespace, name=write.name)
        return await self._api.call(
            "PATCH",
            f"{target.path}/status",
            {
                "apiVersion": API_VERSION,
                "kind": write.kind,
                "metadata": {"name": write.name, "namespace": write.namespace},
                "status": status,
            },
            query={"fieldManager": MANAGER, "force": "true"},
            content_type=APPLY,
            timeout_s=TIMEOUT_S,
        )

    def _on_answer(self, name: Name, write: StatusWrite, answer: Answer) -> None:
        was_written = answer.status in (200, 201)
        if was_written:
            self._outages = 0
            self.writes["done"] += 1
            self._on_written(write, answer)
        elif answer.status == 404:
            self.writes["missing"] += 1
        elif answer.status == 409:
            self.writes["conflict"] += 1
            self._retry(name, answer.retry_after_s or 0.0)
            return
        elif answer.is_overloaded:
            self._retry(name, answer.retry_after_s or 0.0, pause=True)
            return
        else:
            self.writes["refused"] += 1
            self._log_refusal(write, answer)
        self._queue.done(name, loop_time(), wrote=was_written)

    def _log_refusal(self, write: StatusWrite, answer: Answer) -> None:
        """Log a rejection, at most once a minute per namespace and status code."""
        source, now = (write.namespace, answer.status), loop_time()
        if now < self._quiet_until.get(source, 0.0):
            return
        self._quiet_until[source] = now + _QUIET_S
        _log.error(
            "the API server refuses the status of %s %s/%s with %d: %s",
            write.kind,
            write.namespace,
            write.name,
            answer.status,
            _message(answer)[:300],
        )

    def _on_written(self, write: StatusWrite, answer: Answer) -> None:
        try:
            self._source.on_written(write, answer.body)
        except Exception:
            _log.exception(
                "cannot process the answer to the status write of %s %s", write.kind, write.name
            )

    def _retry(self, name: Name, after_s: float = 0.0, *, pause: bool = False) -> None:
        """Retry later; if the API server fails, all writes pause."""
        now, jitter = loop_time(), random.random()  # noqa: S311 - spreads load, hides nothing
        if pause:
            self.writes["failed"] += 1
            # Concurrent failures of one outage count once.
            self._outages += now >= self._paused_until
            delay = max(after_s, retry_delay_s(self._outages, jitter))
            self._paused_until = max(self._paused_until, now + delay)
        self._queue.failed(name, now, jitter=jitter, after_s=after_s)


def _message(answer: Answer) -> str:
    return str(answer.body.get("message", ""))
