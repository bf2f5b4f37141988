"""What agents say, told by the replica that they ask to the one that writes statuses.

That is which views they run, which of their exports have ended or have damaged logs, and what has
become of rules.

Rule 1: what is told is a gain in knowledge and nothing else: it may be lost, come twice, or late.
    Of ends, which may be taken back, it is said how long ago an agent told; who is told of none, by
    a replica that cannot, knows nothing new of them.
Rule 2: only who has the broker's secret is listened to, for a moment, and only by who leads.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import aiohttp
from aiohttp import web

from streambroker_core.errors import ManifestError
from streambroker_core.model import PeKey
from streambroker_core.wire.broker import ended_exports as wire
from streambroker_core.wire.broker.ended_exports import Ends
from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.reports.rule_status import ToldRules, read_told, write_told
from streambroker_operator.errors import RequestError

PATH = "/api/replicas/acknowledged"
PAUSE_S = 0.02
"""For what comes together to be sent together, in seconds."""
AT_ONCE = 1_000
ENDS_AT_ONCE = 200
"""Of these each may be as long as a header: a body has at most 1 MiB."""
DAMAGE_AT_ONCE = 10
RULES_AT_ONCE = 4
"""Of these each may be as long as a report."""
MOST = 20_000
FRESH_S = 60.0
TIMEOUT_S = 2.0

T = TypeVar("T")

_log = logging.getLogger("streambroker.relay")


class Told(NamedTuple):
    """What another replica tells.

    Attributes:
        runs: whose agent runs which view, since how many seconds, and which instance it is.
        ends: whose agent says what of the ends of exports, how long ago, and which instance it is.
        rules: whose agent says what of the rules of its job, and whether it has said something of
            more.
        damaged: whose agent says what of damaged logs, how long ago, and which instance it is.
    """

    runs: list[tuple[PeKey, str, float, str]]
    ends: list[tuple[PeKey, Ends, float, str]]
    rules: list[tuple[PeKey, ToldRules, bool]] = []  # noqa: RUF012 - never changed
    damaged: list[tuple[PeKey, dict[str, str], float, str]] = []  # noqa: RUF012 - never changed


class Relay:
    """Sends what this process heard to the process that leads.

    Args:
        secret: of the broker.
        leader: address of the one that leads, as ``http://10.0.0.7:8471``; empty for nobody.
        instance_of: which instance the agent of a PE is.
    """

    def __init__(
        self,
        secret: bytes,
        leader: Callable[[], str],
        instance_of: Callable[[PeKey], str] = lambda _: "",
    ) -> None:
        self._secret = secret
        self._leader = leader
        self._instance_of = instance_of
        self._waiting: dict[PeKey, tuple[str, float, str]] = {}
        self._ends: dict[PeKey, tuple[str, float, str]] = {}
        self._rules: dict[PeKey, tuple[ToldRules, bool]] = {}
        self._damaged: dict[PeKey, tuple[Mapping[str, str], float, str]] = {}
        self._news = asyncio.Event()
        self._trouble = False

    def note(self, pe: PeKey, version: str, ago_s: float) -> None:
        """Have it told which view an agent runs, and since how many seconds."""
        if len(self._waiting) < MOST:
            self._waiting[pe] = version, time.monotonic() - ago_s, self._instance_of(pe)
            self._news.set()

    def note_ends(self, pe: PeKey, ends: Ends) -> None:
        """Have it told which exports have ended, as an agent said at this moment."""
        if len(self._ends) < MOST:
            self._ends[pe] = wire.encode(ends), time.monotonic(), self._instance_of(pe)
            self._news.set()

    def note_damage(self, pe: PeKey, damaged: Mapping[str, str]) -> None:
        """Have it told which logs are damaged, as an agent said at this moment."""
        if len(self._damaged) < MOST:
            self._damaged[pe] = dict(damaged), time.monotonic(), self._instance_of(pe)
            self._news.set()

    def note_rules(self, pe: PeKey, told: ToldRules, more: bool) -> None:
        """Have it told what an agent says of the rules of its job; it says so each half minute.

        Each report is told by itself: what is said in many of them would be too long for one body.
        """
        if len(self._rules) < MOST:
            self._rules[pe] = told, more
            self._news.set()

    async def run(self) -> None:
        """Tell until cancelled; what cannot be told now is told by the agent's next poll."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
            while True:
                await self._news.wait()
                await asyncio.sleep(PAUSE_S)
                self._news.clear()
                while self._waiting or self._ends or self._rules or self._damaged:
                    await self._send(session)

    async def _send(self, session: aiohttp.ClientSession) -> None:
        runs, ends = _taken(self._waiting, AT_ONCE), _taken(self._ends, ENDS_AT_ONCE)
        rules = {pe: self._rules.pop(pe) for pe in list(self._rules)[:RULES_AT_ONCE]}
        damaged = _taken(self._damaged, DAMAGE_AT_ONCE)
        leader = self._leader()
        if not leader:
            return
        told = {str(pe): write_told(several) for pe, (several, _) in rules.items()}
        more = [str(pe) for pe, (_, several) in rules.items() if several]
        found = {"at": time.time(), "runs": runs, "ended": ends, "rules": told, "moreRules": more}
        body = json.dumps({**found, "damaged": damaged}).encode()
        shown = {"Authorization": sealed(self._secret, body)}
        try:
            async with session.post(leader + PATH, data=body, headers=shown) as answer:
                trouble = "" if answer.status == 204 else f"it answers {answer.status}"
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            trouble = str(error) or type(error).__name__
        self._note(leader, trouble)

    def _note(self, leader: str, trouble: str) -> None:
        """Write one line for each change between well and not well."""
        if trouble and not self._trouble:
            _log.warning(
                "%s, which leads, cannot be told which agents ask here, and will take them to be"
                " away: %s",
                leader,
                trouble,
            )
        elif self._trouble and not trouble:
            _log.info("%s is told again which agents ask here", leader)
        self._trouble = bool(trouble)


def _taken(waiting: dict[PeKey, tuple[T, float, str]], most: int) -> dict[str, list[Any]]:
    """Take out what has waited for longest; return it with its age in the place of its time."""
    now, names = time.monotonic(), list(waiting)[:most]
    taken = {pe: waiting.pop(pe) for pe in names}
    return {str(pe): [what, now - since, by] for pe, (what, since, by) in taken.items()}


def handler(
    secret: bytes,
    take: Callable[[PeKey, str, float, str], None],
    take_ends: Callable[[PeKey, Ends, float, str], None],
    take_rules: Callable[[PeKey, ToldRules, bool], None] = lambda *_: None,
    take_damage: Callable[[PeKey, dict[str, str], float, str], None] = lambda *_: None,
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return what answers `PATH`.

    Args:
        secret: of the broker.
        take: takes which view an agent runs, since how many seconds, and which instance it is.
        take_ends: takes which of its exports have ended, as it said so many seconds ago.
        take_rules: takes what it says of the rules of its job, and whether it has said something of
            more.
        take_damage: takes which of its logs are damaged, as it said so many seconds ago.
    """

    async def acknowledged(request: web.Request) -> web.Response:
        body = await request.read()
        shown = request.headers.get("Authorization", "")
        try:
            told = read(secret, shown, body, time.time())
        except RequestError as error:
            return web.Response(status=error.status, text=str(error))
        for one in told.runs:
            take(*one)
        for other in told.ends:
            take_ends(*other)
        for third in told.rules:
            take_rules(*third)
        for fourth in told.damaged:
            take_damage(*fourth)
        return web.Response(status=204)

    return acknowledged


def read(secret: bytes, shown: str, body: bytes, now: float) -> Told:
    """Return what another replica tells; one of an older release tells of no ends or rules.

    Raises:
        RequestError: 401, it is none, or it told that long ago.
    """
    told = opened(secret, shown, body, now)
    try:
        return Told(
            runs=[
                (PeKey.parse(pe), str(version), float(ago), str(instance))
                for pe, (version, ago, instance) in told["runs"].items()
            ],
            ends=[
                (PeKey.parse(pe), wire.decode(str(ends)), float(ago), str(instance))
                for pe, (ends, ago, instance) in told.get("ended", {}).items()
            ],
            rules=[
                (PeKey.parse(pe), read_told(Fields(rules)), pe in told.get("moreRules", ()))
                for pe, rules in told.get("rules", {}).items()
            ],
            damaged=[
                (PeKey.parse(pe), _texts(damaged), float(ago), str(instance))
                for pe, (damaged, ago, instance) in told.get("damaged", {}).items()
            ],
        )
    except (ValueError, KeyError, TypeError, AttributeError, ManifestError) as error:
        raise _refused() from error


def _texts(told: dict[str, Any]) -> dict[str, str]:
    return {str(port): str(text) for port, text in told.items()}


def sealed(secret: bytes, body: bytes) -> str:
    """Return what to send as ``Authorization`` with what a replica tells another one."""
    key = hmac.digest(secret, b"replicas", hashlib.sha256)
    return f"Replica {hmac.new(key, body, hashlib.sha256).hexdigest()}"


def opened(secret: bytes, shown: str, body: bytes, now: float) -> dict[str, Any]:
    """Return the object that a replica tells, with the time in ``at``.

    Raises:
        RequestError: 401, it is none, or it told that long ago.
    """
    if not hmac.compare_digest(shown.encode(), sealed(secret, body).encode()):
        raise _refused()
    try:
        told: dict[str, Any] = json.loads(body)
        fresh = abs(now - float(told["at"])) <= FRESH_S
    except (ValueError, KeyError, TypeError) as error:
        raise _refused() from error
    if not fresh:
        raise _refused()
    return told


def _refused() -> RequestError:
    return RequestError(401, "TokenWrong", "Only replicas of this broker may say that.")
