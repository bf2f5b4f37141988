"""A Kubernetes API server of a few lines, for faults that a real one does not have on demand."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from streambroker_operator.kubernetes.client.http_api import Answer, ApiUnreachableError, HttpApi

Handler = Callable[["Call"], "Answer | Awaitable[Answer]"]


@dataclass(frozen=True)
class Call:
    at: float
    method: str
    path: str
    body: Mapping[str, Any]
    query: Mapping[str, str]
    content_type: str = "application/json"
    timeout_s: float = 10.0


class Api(HttpApi, ABC):
    """What stands in for an API server: takes calls as the real one's client does."""

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        timeout_s: float = 10.0,
    ) -> Answer:
        at, sent, asked = asyncio.get_running_loop().time(), dict(body or {}), dict(query or {})
        return await self.take(Call(at, method, path, sent, asked, content_type, timeout_s))

    @abstractmethod
    async def take(self, call: Call) -> Answer:
        """Answer a call, or raise `ApiUnreachableError`."""


@dataclass
class FakeApi(Api):
    """Answers calls by a function; counts how many are under way at the same time."""

    handler: Handler
    delay_s: float = 0.0
    calls: list[Call] = field(default_factory=list)
    under_way: int = 0
    most: int = 0

    async def take(self, call: Call) -> Answer:
        self.calls.append(call)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        answering = asyncio.ensure_future(self._answer(call))
        try:
            await asyncio.wait([answering], timeout=call.timeout_s)
            if answering.done():
                return answering.result()
            raise ApiUnreachableError("no answer in time")
        finally:
            answering.cancel()
            self.under_way -= 1

    async def _answer(self, call: Call) -> Answer:
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        answer = self.handler(call)
        return answer if isinstance(answer, Answer) else await answer


class LeaseServer:
    """Keeps one Lease, as an API server does: versions, conflicts, 404.

    Attributes:
        down: it does not answer.
        lost: it does what it is asked, and the answer is lost.
        late: a renewal that is served just before the next write.
    """

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.down = False
        self.lost = False
        self.hangs: asyncio.Event | None = None
        self.late = False

    async def handle(self, call: Call) -> Answer:
        if self.hangs is not None:
            await self.hangs.wait()
        if self.down:
            raise ApiUnreachableError("connection refused")
        answer = self._done(call)
        if self.lost:
            raise ApiUnreachableError("connection reset")
        return answer

    def _done(self, call: Call) -> Answer:
        if call.method == "GET":
            return self._shown(404) if self.lease is None else self._shown(200)
        if call.method == "PUT" and self.late:
            self.version, self.late = self.version + 1, False
        resource_version = call.body["metadata"].get("resourceVersion")
        if call.method == "POST" and self.lease is not None:
            return Answer(status=409)
        if call.method == "PUT" and (self.lease is None or resource_version != str(self.version)):
            return Answer(status=409)
        self.version += 1
        self.lease = dict(call.body["spec"])
        return self._shown(201 if call.method == "POST" else 200)

    def _shown(self, status: int) -> Answer:
        if self.lease is None:
            return Answer(status=status)
        return Answer(
            status=status,
            body={"metadata": {"resourceVersion": str(self.version)}, "spec": self.lease},
        )
