"""A broker that knows callers as one of a cluster does, over a file instead of an API server."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from streambroker_core.model import PeKey
from streambroker_operator.agents.hint_sender import HintSender
from streambroker_operator.kubernetes.auth.middleware import ClusterGuard
from streambroker_operator.kubernetes.auth.token_review import Authenticator, ReviewClient
from streambroker_operator.kubernetes.client.http_api import Answer, ApiUnreachableError
from streambroker_operator.rest.app import create_app
from streambroker_operator.rest.guard.rate_limits import RateLimits
from streambroker_operator.runtime.runtime import Runtime
from streambroker_operator.storage.sqlite_store import Store
from support.kubernetes.fake_server import Api, Call
from support.kubernetes.jwts import claims_of, jwt

TOKEN = jwt(sub="pod")
_POD = "authentication.kubernetes.io/pod-"
_USER = {
    "username": "system:serviceaccount:default:feed",
    "uid": "u1",
    "extra": {f"{_POD}name": ["feed-driver"], f"{_POD}uid": ["p1"]},
}


class Guarded(Api):
    """Such a broker, its API server, and what it was shown.

    Attributes:
        away: whether the API server gives no answer.
        forgets: whether no agent is known, as after a restart.
        people: users whose token, with their name as ``sub``, is good.
        granted: what everybody may do, as ``patch imports``; with a name, to that one only.
        asked: what the API server was asked of rights, each ``patch imports/filter NAME``.
    """

    def __init__(
        self, db: Path, limits: RateLimits | None = None, *, remembers: bool = False
    ) -> None:
        self.url = ""
        self._limits = limits
        self.people: set[str] = set()
        self.granted: set[str] = set()
        self.asked: list[str] = []
        self.places: set[str] = set()
        self.reviewed = 0
        self.jobs: tuple[str, ...] = ()
        self.away = self.forgets = False
        self.shown: list[tuple[str, str]] = []
        self._store = Store(db)
        self._sender = HintSender()
        self.runtime = Runtime(self._store, self._sender, observer=self)
        self.runtime.feed.start()
        # No answer is kept: time leaps whenever it is asked for.
        leaping = itertools.count(0.0, 100.0).__next__
        reviews = ReviewClient(self) if remembers else ReviewClient(self, clock=leaping)
        identities = Authenticator(reviews, key_for=self._key_of, account_for=self._account_of)
        self._guard = ClusterGuard(identities, reviews, self._account_of, lambda *_: self.jobs)

    def app(self) -> web.Application:
        @web.middleware
        async def seen(request: web.Request, handler: Any) -> web.StreamResponse:
            scheme = request.headers.get("Authorization", "").partition(" ")[0]
            self.shown.append((request.method, scheme))
            answer: web.StreamResponse = await handler(request)
            return answer

        app = create_app(self.runtime, limits=self._limits, guard=self._guard)
        app.middlewares.insert(0, seen)
        return app

    def end(self) -> None:
        self.runtime.publisher.close()
        self._sender.close()
        self._store.close()

    async def take(self, call: Call) -> Answer:
        if self.away:
            raise ApiUnreachableError
        spec = call.body["spec"]
        answer = self._reviewed if "token" in spec else self._access
        return Answer(status=201, body={"status": answer(spec)})

    def _reviewed(self, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        self.reviewed += 1
        who = claims_of(spec["token"]).get("sub")
        good = spec["token"] == TOKEN or who in self.people
        user = _USER if spec["token"] == TOKEN else {"username": who}
        return {"authenticated": good, "audiences": ["streambroker"], "user": user}

    def _access(self, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        attributes = spec["resourceAttributes"]
        part = f"/{attributes['subresource']}" if "subresource" in attributes else ""
        ask = f"{attributes['verb']} {attributes['resource']}{part}"
        named = f"{ask} {attributes.get('name', '')}".rstrip()
        self.asked.append(named)
        self.places.add(attributes.get("namespace", "*"))
        return {"allowed": ask in self.granted or named in self.granted}

    def on_actions(self, event: object, actions: Sequence[object]) -> None:
        """Take no interest."""

    def on_acknowledged(self, pe: PeKey, version: str, ago_s: float) -> None:
        """Take no interest."""

    def _key_of(self, pe: PeKey, instance: str) -> bytes | None:
        found = self.runtime.board.registration(pe)
        known = found is not None and found.instance == instance and not self.forgets
        return self.runtime.agent_key(pe, found) if known and found is not None else None

    def _account_of(self, namespace: str, job: str) -> str | None:
        return self.runtime.store.owner(PeKey(namespace=namespace, job=job, pe=0))


@asynccontextmanager
async def guarded_broker(
    db: Path, limits: RateLimits | None = None, *, remembers: bool = False
) -> AsyncIterator[Guarded]:
    """Run one on a free port of this machine."""
    broker = Guarded(db, limits, remembers=remembers)
    runner = web.AppRunner(broker.app(), access_log=None, auto_decompress=False)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    broker.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield broker
    finally:
        await runner.cleanup()
        broker.end()
