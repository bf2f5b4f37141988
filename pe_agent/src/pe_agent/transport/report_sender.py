"""Sending of reports from Spark's workers to the agent of the job.

A thread of the worker sends the latest report of each key, at most twice a second. Reports are
informational: a failed call is retried with newer ones, and no window waits for it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeAlias

from pe_agent.transport import agent_tls
from pe_agent.transport.agent_client import AgentClient, send
from streambroker_core.errors import StreambrokerError
from streambroker_core.wire.agent_rpc.codec import Request

log = logging.getLogger("pe_agent")

MIN_REPORT_SECONDS = 0.5
MAX_KEYS = 1_000
"""Maximum number of reports in one call."""
MAX_PENDING = 100_000
"""Maximum number of reports that wait for a call; older ones are dropped."""

Reports: TypeAlias = Mapping[Any, Any]
"""Reports by key."""
AgentOptions: TypeAlias = tuple[tuple[str, str], ...]
"""Options of the data source that let a worker find and trust the agent."""
_OPTIONS = ("agent", "agentToken", "agentCa", "agentPlain", "agentCertificate", "agentKey")


class ReportSender:
    """Sends the latest report of each key from a thread of its own; ``build`` makes a request."""

    def __init__(self, client: AgentClient, build: Callable[[Reports], Request[None]]) -> None:
        self._client, self._build = client, build
        self._pending: dict[Hashable, Any] = {}
        self._changed = threading.Condition()
        threading.Thread(target=self._run, daemon=True, name="reports").start()

    def enqueue(self, key: Hashable, report: Any) -> None:
        """Replace the pending report of a key."""
        with self._changed:
            self._pending[key] = report
            if len(self._pending) > MAX_PENDING:
                del self._pending[next(iter(self._pending))]
            self._changed.notify()

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._pending))
            pause.wait(MIN_REPORT_SECONDS)
            with self._changed:
                due = {key: self._pending.pop(key) for key in list(self._pending)[:MAX_KEYS]}
            try:
                send(self._client, self._build(due), timeout=5.0)
            except StreambrokerError as error:
                log.debug("the agent does not accept a report: %s", error)
                with self._changed:
                    for key, report in due.items():  # unless there is a newer one
                        self._pending.setdefault(key, report)
            except Exception as error:  # drop the reports, but keep the thread
                log.warning("cannot send a report to the agent: %r", error)


_SENDERS: dict[tuple[int, AgentOptions, Any], ReportSender | None] = {}
"""By process id, options and request: threads do not survive in a forked process."""


def sender_for(
    options: AgentOptions, build: Callable[[Reports], Request[None]]
) -> ReportSender | None:
    """Return the sender of this worker; None if the worker's settings do not allow one."""
    key = (os.getpid(), options, build)
    if key not in _SENDERS:
        try:
            _SENDERS[key] = ReportSender(_client_for(dict(options)), build)
        except StreambrokerError as error:
            log.warning("cannot send reports to the agent: %s", error)
            _SENDERS[key] = None
    return _SENDERS[key]


def _client_for(options: Mapping[str, str]) -> AgentClient:
    agent, token, ca, plain, chain, key = (options.get(name) for name in _OPTIONS)
    trust = agent_tls.resolve_agent_trust(ca, plain, agent_tls.resolve_certificate(chain, key))
    return AgentClient(agent or "", token or "", trust)
