"""Figures of side inputs on their way from Spark's workers to the agent of the job.

A bucket hands them over at the end of a window; a thread of the worker sends the last ones of each
bucket, twice a second at most. They are for people: what cannot be sent is tried again with what
has come since, and no window waits for it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from pe_agent.transport import agent_tls
from pe_agent.transport.agent_client import AgentClient
from streambroker_core.errors import StreambrokerError
from streambroker_core.wire.reports.side_status import SideStatus, write_side

if TYPE_CHECKING:
    from pe_agent.pe import PE

log = logging.getLogger("pe_agent")

MIN_REPORT_SECONDS = 0.5
MAX_BUCKETS = 64
"""Buckets in one call."""

BucketKey: TypeAlias = "tuple[str, str, int]"
"""Query, operator and bucket."""
_OPTIONS = ("agent", "agentToken", "agentCa", "agentPlain", "agentCertificate", "agentKey")


@dataclass(frozen=True, kw_only=True)
class SideMetricsReporter:
    """Where the figures of an operator go.

    Attributes:
        operator: its name.
        options: by which a worker finds the agent and trusts it.
    """

    operator: str
    options: tuple[tuple[str, str], ...]

    @classmethod
    def for_pe(cls, pe: PE, operator: str) -> SideMetricsReporter:
        """Return the way to the agent of a PE."""
        return cls(operator=operator, options=tuple(sorted(pe._agent_options().items())))

    def __call__(self, bucket: int, window: int, sides: Sequence[SideStatus]) -> None:
        """Hand over what a bucket has after a window."""
        from pyspark import TaskContext

        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        if query is None:
            return
        if (sender := _get_sender(self.options)) is not None:
            sender.enqueue((query, self.operator, bucket), window, sides)


def client_for(options: Mapping[str, str]) -> AgentClient:
    """Return the agent that options name."""
    agent, token, ca, plain, chain, key = (options.get(name) for name in _OPTIONS)
    trust = agent_tls.resolve_agent_trust(ca, plain, agent_tls.resolve_certificate(chain, key))
    return AgentClient(agent or "", token or "", trust)


class SideMetricsSender:
    """Sends the last figures of each bucket.

    Args:
        client: the agent.
    """

    def __init__(self, client: AgentClient) -> None:
        self._client = client
        self._pending: dict[BucketKey, dict[str, Any]] = {}
        self._changed = threading.Condition()
        threading.Thread(target=self._run, daemon=True, name="side figures").start()

    def enqueue(self, key: BucketKey, window: int, sides: Sequence[SideStatus]) -> None:
        """Take what a bucket has after a window."""
        query, operator, bucket = key
        told = {
            "query": query,
            "operator": operator,
            "bucket": bucket,
            "window": window,
            "sides": [write_side(side) for side in sides],
        }
        with self._changed:
            self._pending[key] = told
            self._changed.notify()

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._pending))
            pause.wait(MIN_REPORT_SECONDS)
            with self._changed:
                due = [self._pending.pop(place) for place in list(self._pending)[:MAX_BUCKETS]]
            try:
                self._client.call("sides.told", timeout=5.0, buckets=due)
            except StreambrokerError as error:
                log.debug("figures of side inputs are not taken: %s", error)
                self._requeue(due)
            except Exception as error:  # they are not worth a thread, nor another try
                log.warning("figures of side inputs are not sent: %r", error)

    def _requeue(self, buckets: Sequence[dict[str, Any]]) -> None:
        with self._changed:
            for told in buckets:
                self._pending.setdefault((told["query"], told["operator"], told["bucket"]), told)


_SENDERS: dict[tuple[int, tuple[tuple[str, str], ...]], SideMetricsSender | None] = {}
"""One for each agent, of this process: threads do not live on in a process that is forked."""


def _get_sender(options: tuple[tuple[str, str], ...]) -> SideMetricsSender | None:
    """Return what sends to an agent; None where the settings of this worker do not let it."""
    key = (os.getpid(), options)
    if key not in _SENDERS:
        try:
            _SENDERS[key] = SideMetricsSender(client_for(dict(options)))
        except StreambrokerError as error:
            log.warning("figures of side inputs are not sent: %s", error)
            _SENDERS[key] = None
    return _SENDERS[key]
