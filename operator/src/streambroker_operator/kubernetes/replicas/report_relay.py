"""Relays agent reports from the replica that receives them to the leader, which writes statuses.

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
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import aiohttp
from aiohttp import web

from streambroker_core.errors import ManifestError
from streambroker_core.model import PeKey
from streambroker_core.wire.broker import ended_exports as wire
from streambroker_core.wire.encoding.canonical import JsonObject, JsonValue
from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.reports.rule_status import read_statuses, write_statuses
from streambroker_core.wire.reports.schema_status import read_schema_status, write_schema_status
from streambroker_core.wire.reports.storage_status import read_storage, write_storage
from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes.replicas.agent_reports import (
    AgentReport,
    DamageReport,
    EndsReport,
    RulesReport,
    SchemaReport,
    StorageReport,
    ViewReport,
)

PATH = "/api/replicas/acknowledged"
PAUSE_S = 0.02
"""Seconds to collect reports before they are sent together."""
ENDS_AT_ONCE = 200
"""Each end report may be as long as a header; a body has at most 1 MiB."""
MAX_PENDING = 20_000
MAX_AGE_S = 60.0
TIMEOUT_S = 2.0

_FORMATS: Mapping[type[AgentReport], tuple[str, int, Callable[[Any], Any]]] = {
    ViewReport: ("runs", 1_000, lambda report: report.version),
    EndsReport: ("ended", ENDS_AT_ONCE, lambda report: wire.encode(report.ends)),
    # Agents repeat these every half minute. Each may be as long as a full report.
    RulesReport: ("rules", 4, lambda report: write_statuses(report.statuses)),
    DamageReport: ("damaged", 10, lambda report: dict(report.damaged)),
    StorageReport: (
        "storage",
        5,
        lambda report: {port: write_storage(one) for port, one in report.storage.items()},
    ),
    SchemaReport: (
        "schemas",
        5,
        lambda report: {port: write_schema_status(one) for port, one in report.schemas.items()},
    ),
}
"""Key in a message, maximum number in one, and JSON form, by type of report."""

_log = logging.getLogger("streambroker.relay")


class ReportRelay:
    """Sends the reports that this process receives to the leader.

    Args:
        leader_address: returns the leader's address, such as ``http://10.0.0.7:8471``, or "".
        instance_for: returns the registered instance of a PE's agent, or "".
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
        self._pending: dict[type[AgentReport], dict[PeKey, tuple[AgentReport, float, str]]] = {
            kind: {} for kind in _FORMATS
        }
        self._has_reports = asyncio.Event()
        self._trouble = False

    def note(self, pe: PeKey, report: AgentReport) -> None:
        """Enqueue a report that an agent just sent; it replaces an earlier one of its type."""
        pending = self._pending[type(report)]
        if len(pending) < MAX_PENDING:
            pending[pe] = report, time.monotonic(), self._instance_for(pe)
            self._has_reports.set()

    async def run(self) -> None:
        """Forward reports until cancelled. No retry: the next poll repeats them."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
            while True:
                await self._has_reports.wait()
                await asyncio.sleep(PAUSE_S)
                self._has_reports.clear()
                while any(self._pending.values()):
                    await self._send(session)

    async def _send(self, session: aiohttp.ClientSession) -> None:
        message = {"at": time.time(), **self._take_oldest()}
        leader = self._leader_address()
        if not leader:
            return
        body = json.dumps(message).encode()
        headers = {"Authorization": sign(self._secret, body)}
        try:
            async with session.post(leader + PATH, data=body, headers=headers) as response:
                problem = "" if response.status == 204 else f"it answers {response.status}"
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            problem = str(error) or type(error).__name__
        self._log_trouble(leader, problem)

    def _take_oldest(self) -> JsonObject:
        """Remove the oldest reports; return the content of a message of at most 1 MiB."""
        now, more = time.monotonic(), list[str]()
        message: dict[str, JsonValue] = {"moreRules": more}
        for kind, (key, at_once, encode) in _FORMATS.items():
            pending, encoded = self._pending[kind], dict[str, JsonValue]()
            for pe in list(pending)[:at_once]:
                report, since, instance = pending.pop(pe)
                if not isinstance(report, RulesReport):
                    encoded[str(pe)] = [encode(report), now - since + report.ago_s, instance]
                    continue
                encoded[str(pe)] = encode(report)
                if report.more:
                    more.append(str(pe))
            message[key] = encoded
        return message

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


def handler(
    secret: bytes, on_report: Callable[[PeKey, AgentReport], None]
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return the request handler for `PATH`; it passes each report to the callback."""

    async def acknowledged(request: web.Request) -> web.Response:
        body = await request.read()
        authorization = request.headers.get("Authorization", "")
        try:
            reports = read_reports(secret, authorization, body, time.time())
        except RequestError as error:
            return web.Response(status=error.status, text=str(error))
        for pe, report in reports:
            on_report(pe, report)
        return web.Response(status=204)

    return acknowledged


def read_reports(
    secret: bytes, authorization: str, body: bytes, now: float
) -> list[tuple[PeKey, AgentReport]]:
    """Parse the relayed reports; older releases omit all but views.

    Raises:
        RequestError: 401, the message is invalid or too old.
    """
    message = verify(secret, authorization, body, now)
    try:
        return [(PeKey.parse(pe), report) for pe, report in _read_message(message)]
    except (ValueError, KeyError, TypeError, AttributeError, ManifestError) as error:
        raise _unauthorised_error() from error


def _read_message(message: dict[str, Any]) -> Iterator[tuple[str, AgentReport]]:
    for pe, (version, ago, instance) in message["runs"].items():
        yield pe, ViewReport(str(version), ago_s=float(ago), instance=str(instance))
    for pe, (ends, ago, instance) in message.get("ended", {}).items():
        decoded = wire.decode(str(ends))
        yield pe, EndsReport(decoded, ago_s=float(ago), instance=str(instance))
    for pe, rules in message.get("rules", {}).items():
        yield pe, RulesReport(read_statuses(Fields(rules)), pe in message.get("moreRules", ()))
    for pe, (damaged, ago, instance) in message.get("damaged", {}).items():
        texts = {str(port): str(text) for port, text in damaged.items()}
        yield pe, DamageReport(texts, ago_s=float(ago), instance=str(instance))
    for pe, (storage, ago, instance) in message.get("storage", {}).items():
        read = {str(port): read_storage(Fields({"storage": one})) for port, one in storage.items()}
        yield pe, StorageReport(read, ago_s=float(ago), instance=str(instance))
    for pe, (schemas, ago, instance) in message.get("schemas", {}).items():
        versions = {
            str(port): read_schema_status(Fields({"schemaVersion": one}))
            for port, one in schemas.items()
        }
        yield pe, SchemaReport(versions, ago_s=float(ago), instance=str(instance))


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
