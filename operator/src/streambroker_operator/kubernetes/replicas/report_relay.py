"""Relays agent reports from the replica that receives them to the leader, which writes statuses.

Reports: views that agents run, ended exports, damaged logs, and states of rules.

- A report only adds knowledge, so it may be lost, duplicated or late. Ends may be revoked, so
  they carry the age of the agent's report. A message without ends changes nothing about them.
- Messages are accepted only with the broker's secret and for `MAX_AGE_S`.
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
"""Seconds to collect reports before they are sent together."""
VERSIONS_AT_ONCE = 1_000
ENDS_AT_ONCE = 200
"""Each end report may be as long as a header; a body has at most 1 MiB."""
DAMAGE_AT_ONCE = 10
RULES_AT_ONCE = 4
"""Each rule report may be as long as a full report."""
MAX_PENDING = 20_000
MAX_AGE_S = 60.0
TIMEOUT_S = 2.0

T = TypeVar("T")

_log = logging.getLogger("streambroker.relay")


class RelayedReports(NamedTuple):
    """Reports that another replica relayed.

    Attributes:
        versions: PE, version of the view, seconds since the agent runs it, instance.
        ends: PE, ended exports, age of the report in seconds, instance.
        rules: PE, states of its job's rules, whether the agent reported further rules before.
        damaged: PE, damage text by port, age of the report in seconds, instance.
    """

    versions: list[tuple[PeKey, str, float, str]]
    ends: list[tuple[PeKey, EndedExports, float, str]]
    rules: list[tuple[PeKey, RuleStatusMap, bool]] = []  # noqa: RUF012 - never changed
    damaged: list[tuple[PeKey, dict[str, str], float, str]] = []  # noqa: RUF012 - never changed


class ReportRelay:
    """Sends the reports that this process receives to the leader.

    Args:
        leader_address: returns the leader's address, such as ``http://10.0.0.7:8471``, or "".
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
        """Enqueue the version of the view that an agent runs, and since how many seconds."""
        if len(self._versions) < MAX_PENDING:
            self._versions[pe] = version, time.monotonic() - ago_s, self._instance_for(pe)
            self._has_reports.set()

    def note_ends(self, pe: PeKey, ends: EndedExports) -> None:
        """Enqueue the ended exports that an agent reported just now."""
        if len(self._ends) < MAX_PENDING:
            self._ends[pe] = wire.encode(ends), time.monotonic(), self._instance_for(pe)
            self._has_reports.set()

    def note_damage(self, pe: PeKey, damaged: Mapping[str, str]) -> None:
        """Enqueue the damaged logs that an agent reported just now."""
        if len(self._damaged) < MAX_PENDING:
            self._damaged[pe] = dict(damaged), time.monotonic(), self._instance_for(pe)
            self._has_reports.set()

    def note_rules(self, pe: PeKey, reported: RuleStatusMap, more: bool) -> None:
        """Enqueue the states of a job's rules; agents repeat them every half minute.

        Each report is kept separate: several merged ones could be too long for one body.
        """
        if len(self._rules) < MAX_PENDING:
            self._rules[pe] = reported, more
            self._has_reports.set()

    async def run(self) -> None:
        """Forward reports until cancelled. No retry: the next poll repeats them."""
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
        rule_reports = {str(pe): write_statuses(statuses) for pe, (statuses, _) in rules.items()}
        more = [str(pe) for pe, (_, has_more) in rules.items() if has_more]
        message = {
            "at": time.time(),
            "runs": runs,
            "ended": ends,
            "rules": rule_reports,
            "moreRules": more,
        }
        body = json.dumps({**message, "damaged": damaged}).encode()
        headers = {"Authorization": sign(self._secret, body)}
        try:
            async with session.post(leader + PATH, data=body, headers=headers) as response:
                problem = "" if response.status == 204 else f"it answers {response.status}"
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            problem = str(error) or type(error).__name__
        self._log_trouble(leader, problem)

    def _log_trouble(self, leader: str, trouble: str) -> None:
        """Log one line each time the state of the connection changes."""
        if trouble and not self._trouble:
            _log.warning(
                "cannot report to the leader %s which agents poll this replica; the leader will"
                " treat them as away: %s",
                leader,
                trouble,
            )
        elif self._trouble and not trouble:
            _log.info(
                "reporting to the leader %s which agents poll this replica works again", leader
            )
        self._trouble = bool(trouble)


def _take_oldest(waiting: dict[PeKey, tuple[T, float, str]], most: int) -> dict[str, list[Any]]:
    """Remove and return the oldest entries, with the age in seconds in place of the time."""
    now, names = time.monotonic(), list(waiting)[:most]
    oldest = {pe: waiting.pop(pe) for pe in names}
    return {
        str(pe): [report, now - since, instance] for pe, (report, since, instance) in oldest.items()
    }


def handler(
    secret: bytes,
    on_version: Callable[[PeKey, str, float, str], None],
    on_ends: Callable[[PeKey, EndedExports, float, str], None],
    on_rules: Callable[[PeKey, RuleStatusMap, bool], None] = lambda *_: None,
    on_damage: Callable[[PeKey, dict[str, str], float, str], None] = lambda *_: None,
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return the request handler for `PATH`.

    It passes the tuples of `RelayedReports` to the callbacks, one per call.
    """

    async def acknowledged(request: web.Request) -> web.Response:
        body = await request.read()
        authorization = request.headers.get("Authorization", "")
        try:
            reports = read_reports(secret, authorization, body, time.time())
        except RequestError as error:
            return web.Response(status=error.status, text=str(error))
        for version in reports.versions:
            on_version(*version)
        for ends in reports.ends:
            on_ends(*ends)
        for rules in reports.rules:
            on_rules(*rules)
        for damaged in reports.damaged:
            on_damage(*damaged)
        return web.Response(status=204)

    return acknowledged


def read_reports(secret: bytes, authorization: str, body: bytes, now: float) -> RelayedReports:
    """Parse the relayed reports; older releases omit ends, rules and damage.

    Raises:
        RequestError: 401, the message is invalid or too old.
    """
    message = verify(secret, authorization, body, now)
    try:
        return RelayedReports(
            versions=[
                (PeKey.parse(pe), str(version), float(ago), str(instance))
                for pe, (version, ago, instance) in message["runs"].items()
            ],
            ends=[
                (PeKey.parse(pe), wire.decode(str(ends)), float(ago), str(instance))
                for pe, (ends, ago, instance) in message.get("ended", {}).items()
            ],
            rules=[
                (PeKey.parse(pe), read_statuses(Fields(rules)), pe in message.get("moreRules", ()))
                for pe, rules in message.get("rules", {}).items()
            ],
            damaged=[
                (PeKey.parse(pe), _texts(damaged), float(ago), str(instance))
                for pe, (damaged, ago, instance) in message.get("damaged", {}).items()
            ],
        )
    except (ValueError, KeyError, TypeError, AttributeError, ManifestError) as error:
        raise _unauthorised_error() from error


def _texts(damaged: dict[str, Any]) -> dict[str, str]:
    return {str(port): str(text) for port, text in damaged.items()}


def sign(secret: bytes, body: bytes) -> str:
    """Return the ``Authorization`` header of a message between replicas."""
    key = hmac.digest(secret, b"replicas", hashlib.sha256)
    return f"Replica {hmac.new(key, body, hashlib.sha256).hexdigest()}"


def verify(secret: bytes, authorization: str, body: bytes, now: float) -> dict[str, Any]:
    """Return the verified message of a replica, with its time in ``at``.

    Raises:
        RequestError: 401, the message is invalid or too old.
    """
    if not hmac.compare_digest(authorization.encode(), sign(secret, body).encode()):
        raise _unauthorised_error()
    try:
        message: dict[str, Any] = json.loads(body)
        is_fresh = abs(now - float(message["at"])) <= MAX_AGE_S
    except (ValueError, KeyError, TypeError) as error:
        raise _unauthorised_error() from error
    if not is_fresh:
        raise _unauthorised_error()
    return message


def _unauthorised_error() -> RequestError:
    return RequestError(401, "TokenWrong", "Only replicas of this broker may send these reports.")
