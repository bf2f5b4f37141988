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
from streambroker_core.wire.broker.ended_exports import EndedExports
from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.reports.rule_status import RuleStatusMap, read_statuses, write_statuses
from streambroker_operator.errors import RequestError

PATH = "/api/replicas/acknowledged"
PAUSE_S = 0.02
"""For what comes together to be sent together, in seconds."""
VERSIONS_AT_ONCE = 1_000
ENDS_AT_ONCE = 200
"""Of these each may be as long as a header: a body has at most 1 MiB."""
DAMAGE_AT_ONCE = 10
RULES_AT_ONCE = 4
"""Of these each may be as long as a report."""
MAX_PENDING = 20_000
MAX_AGE_S = 60.0
TIMEOUT_S = 2.0

T = TypeVar("T")

_log = logging.getLogger("streambroker.relay")


class RelayedReports(NamedTuple):
    """What another replica tells.

    Attributes:
        versions: whose agent runs which view, since how many seconds, and which instance it is.
        ends: whose agent says what of the ends of exports, how long ago, and which instance it is.
        rules: whose agent says what of the rules of its job, and whether it has said something of
            more.
        damaged: whose agent says what of damaged logs, how long ago, and which instance it is.
    """

    versions: list[tuple[PeKey, str, float, str]]
    ends: list[tuple[PeKey, EndedExports, float, str]]
    rules: list[tuple[PeKey, RuleStatusMap, bool]] = []  # noqa: RUF012 - never changed
    damaged: list[tuple[PeKey, dict[str, str], float, str]] = []  # noqa: RUF012 - never changed


class ReportRelay:
    """Sends what this process heard to the process that leads.

    Args:
        secret: of the broker.
        leader_address: address of the one that leads, as ``http://10.0.0.7:8471``; empty for
            nobody.
        instance_for: which instance the agent of a PE is.
    """

    def __init__(
        self,
        secret: bytes,
        leader_address: Callable[[], str],
        instance_for: Callable[[PeKey], str] = lambda _: "",
    ) -> None:
        self._secret = secret
        self._leader_address = leader_address
        self._instance_for = instance_for
        self._versions: dict[PeKey, tuple[str, float, str]] = {}
        self._ends: dict[PeKey, tuple[str, float, str]] = {}
        self._rules: dict[PeKey, tuple[RuleStatusMap, bool]] = {}
        self._damaged: dict[PeKey, tuple[Mapping[str, str], float, str]] = {}
        self._has_reports = asyncio.Event()
        self._trouble = False

    def note_version(self, pe: PeKey, version: str, ago_s: float) -> None:
        """Have it told which view an agent runs, and since how many seconds."""
        if len(self._versions) < MAX_PENDING:
            self._versions[pe] = version, time.monotonic() - ago_s, self._instance_for(pe)
            self._has_reports.set()

    def note_ends(self, pe: PeKey, ends: EndedExports) -> None:
        """Have it told which exports have ended, as an agent said at this moment."""
        if len(self._ends) < MAX_PENDING:
            self._ends[pe] = wire.encode(ends), time.monotonic(), self._instance_for(pe)
            self._has_reports.set()

    def note_damage(self, pe: PeKey, damaged: Mapping[str, str]) -> None:
        """Have it told which logs are damaged, as an agent said at this moment."""
        if len(self._damaged) < MAX_PENDING:
            self._damaged[pe] = dict(damaged), time.monotonic(), self._instance_for(pe)
            self._has_reports.set()

    def note_rules(self, pe: PeKey, reported: RuleStatusMap, more: bool) -> None:
        """Have it told what an agent says of the rules of its job; it says so each half minute.

        Each report is told by itself: what is said in many of them would be too long for one body.
        """
        if len(self._rules) < MAX_PENDING:
            self._rules[pe] = reported, more
            self._has_reports.set()

    async def run(self) -> None:
        """Tell until cancelled; what cannot be told now is told by the agent's next poll."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
            while True:
                await self._has_reports.wait()
                await asyncio.sleep(PAUSE_S)
                self._has_reports.clear()
                while self._versions or self._ends or self._rules or self._damaged:
                    await self._send(session)

    async def _send(self, session: aiohttp.ClientSession) -> None:
        runs, ends = (
            _take_oldest(self._versions, VERSIONS_AT_ONCE),
            _take_oldest(self._ends, ENDS_AT_ONCE),
        )
        rules = {pe: self._rules.pop(pe) for pe in list(self._rules)[:RULES_AT_ONCE]}
        damaged = _take_oldest(self._damaged, DAMAGE_AT_ONCE)
        leader = self._leader_address()
        if not leader:
            return
        told = {str(pe): write_statuses(several) for pe, (several, _) in rules.items()}
        more = [str(pe) for pe, (_, several) in rules.items() if several]
        found = {"at": time.time(), "runs": runs, "ended": ends, "rules": told, "moreRules": more}
        body = json.dumps({**found, "damaged": damaged}).encode()
        shown = {"Authorization": sign(self._secret, body)}
        try:
            async with session.post(leader + PATH, data=body, headers=shown) as answer:
                trouble = "" if answer.status == 204 else f"it answers {answer.status}"
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            trouble = str(error) or type(error).__name__
        self._log_trouble(leader, trouble)

    def _log_trouble(self, leader: str, trouble: str) -> None:
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


def _take_oldest(waiting: dict[PeKey, tuple[T, float, str]], most: int) -> dict[str, list[Any]]:
    """Take out what has waited for longest; return it with its age in the place of its time."""
    now, names = time.monotonic(), list(waiting)[:most]
    taken = {pe: waiting.pop(pe) for pe in names}
    return {str(pe): [what, now - since, by] for pe, (what, since, by) in taken.items()}


def handler(
    secret: bytes,
    on_version: Callable[[PeKey, str, float, str], None],
    on_ends: Callable[[PeKey, EndedExports, float, str], None],
    on_rules: Callable[[PeKey, RuleStatusMap, bool], None] = lambda *_: None,
    on_damage: Callable[[PeKey, dict[str, str], float, str], None] = lambda *_: None,
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return what answers `PATH`.

    Args:
        secret: of the broker.
        on_version: takes which view an agent runs, since how many seconds, and which instance it
            is.
        on_ends: takes which of its exports have ended, as it said so many seconds ago.
        on_rules: takes what it says of the rules of its job, and whether it has said something of
            more.
        on_damage: takes which of its logs are damaged, as it said so many seconds ago.
    """

    async def acknowledged(request: web.Request) -> web.Response:
        body = await request.read()
        shown = request.headers.get("Authorization", "")
        try:
            told = read_reports(secret, shown, body, time.time())
        except RequestError as error:
            return web.Response(status=error.status, text=str(error))
        for one in told.versions:
            on_version(*one)
        for other in told.ends:
            on_ends(*other)
        for third in told.rules:
            on_rules(*third)
        for fourth in told.damaged:
            on_damage(*fourth)
        return web.Response(status=204)

    return acknowledged


def read_reports(secret: bytes, authorization: str, body: bytes, now: float) -> RelayedReports:
    """Return what another replica tells; one of an older release tells of no ends or rules.

    Raises:
        RequestError: 401, it is none, or it told that long ago.
    """
    told = verify(secret, authorization, body, now)
    try:
        return RelayedReports(
            versions=[
                (PeKey.parse(pe), str(version), float(ago), str(instance))
                for pe, (version, ago, instance) in told["runs"].items()
            ],
            ends=[
                (PeKey.parse(pe), wire.decode(str(ends)), float(ago), str(instance))
                for pe, (ends, ago, instance) in told.get("ended", {}).items()
            ],
            rules=[
                (PeKey.parse(pe), read_statuses(Fields(rules)), pe in told.get("moreRules", ()))
                for pe, rules in told.get("rules", {}).items()
            ],
            damaged=[
                (PeKey.parse(pe), _texts(damaged), float(ago), str(instance))
                for pe, (damaged, ago, instance) in told.get("damaged", {}).items()
            ],
        )
    except (ValueError, KeyError, TypeError, AttributeError, ManifestError) as error:
        raise _unauthorised_error() from error


def _texts(damaged: dict[str, Any]) -> dict[str, str]:
    return {str(port): str(text) for port, text in damaged.items()}


def sign(secret: bytes, body: bytes) -> str:
    """Return what to send as ``Authorization`` with what a replica tells another one."""
    key = hmac.digest(secret, b"replicas", hashlib.sha256)
    return f"Replica {hmac.new(key, body, hashlib.sha256).hexdigest()}"


def verify(secret: bytes, authorization: str, body: bytes, now: float) -> dict[str, Any]:
    """Return the object that a replica tells, with the time in ``at``.

    Raises:
        RequestError: 401, it is none, or it told that long ago.
    """
    if not hmac.compare_digest(authorization.encode(), sign(secret, body).encode()):
        raise _unauthorised_error()
    try:
        told: dict[str, Any] = json.loads(body)
        fresh = abs(now - float(told["at"])) <= MAX_AGE_S
    except (ValueError, KeyError, TypeError) as error:
        raise _unauthorised_error() from error
    if not fresh:
        raise _unauthorised_error()
    return told


def _unauthorised_error() -> RequestError:
    return RequestError(401, "TokenWrong", "Only replicas of this broker may say that.")
