"""Reporting of side input metrics from Spark's workers to the agent of the job.

A bucket enqueues them at the end of a window. A thread of the worker sends the latest ones of each
bucket, at most twice a second. They are informational: a failed call is retried with newer ones,
and no window waits for it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pe_agent.spark.worker import QUERY_ID, task_property
from pe_agent.transport import agent_tls
from pe_agent.transport.agent_client import AgentClient, send
from streambroker_core.errors import StreambrokerError
from streambroker_core.wire.agent_rpc.job import SidesMetrics
from streambroker_core.wire.reports.side_status import SideStatus, write_side

if TYPE_CHECKING:
    from pe_agent.job.context import JobContext

log = logging.getLogger("pe_agent")

MIN_REPORT_SECONDS = 0.5
MAX_BUCKETS = 64
"""Maximum number of buckets in one call."""

BucketKey: TypeAlias = "tuple[str, str, int]"
"""Query, operator and bucket."""
_OPTIONS = ("agent", "agentToken", "agentCa", "agentPlain", "agentCertificate", "agentKey")


@dataclass(frozen=True, kw_only=True)
class SideMetricsReporter:
    """Reports the metrics of an operator; ``options`` let a worker find and trust the agent."""

    operator: str
    options: tuple[tuple[str, str], ...]

    @classmethod
    def for_job(cls, job: JobContext, operator: str) -> SideMetricsReporter:
        """Return the reporter to the agent of a job."""
        return cls(operator=operator, options=tuple(sorted(job.agent_options().items())))

    def __call__(self, bucket: int, window: int, sides: Sequence[SideStatus]) -> None:
        """Enqueue the metrics of a bucket after a window."""
        query = task_property(QUERY_ID)
        if query is not None and (sender := _get_sender(self.options)) is not None:
            sender.enqueue((query, self.operator, bucket), window, sides)


def client_for(options: Mapping[str, str]) -> AgentClient:
    """Return the client of the agent that options name."""
    agent, token, ca, plain, chain, key = (options.get(name) for name in _OPTIONS)
    trust = agent_tls.resolve_agent_trust(ca, plain, agent_tls.resolve_certificate(chain, key))
    return AgentClient(agent or "", token or "", trust)


class SideMetricsSender:
    """Sends the latest metrics of each bucket from a thread of its own."""

    def __init__(self, client: AgentClient) -> None:
        self._client = client
        self._pending: dict[BucketKey, tuple[int, Sequence[SideStatus]]] = {}
        self._changed = threading.Condition()
        threading.Thread(target=self._run, daemon=True, name="side metrics").start()

    def enqueue(self, key: BucketKey, window: int, sides: Sequence[SideStatus]) -> None:
        """Replace the pending metrics of a bucket by those after a window."""
        with self._changed:
            self._pending[key] = window, sides
            self._changed.notify()

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._pending))
            pause.wait(MIN_REPORT_SECONDS)
            with self._changed:
                due = {key: self._pending.pop(key) for key in list(self._pending)[:MAX_BUCKETS]}
            try:
                self._send(due)
            except StreambrokerError as error:
                log.debug("metrics of side inputs are not accepted: %s", error)
                with self._changed:
                    for key, metrics in due.items():  # unless there are newer ones
                        self._pending.setdefault(key, metrics)
            except Exception as error:  # drop the metrics, but keep the thread
                log.warning("cannot send metrics of side inputs: %r", error)

    def _send(self, due: Mapping[BucketKey, tuple[int, Sequence[SideStatus]]]) -> None:
        buckets = [
            {
                "query": query,
                "operator": operator,
                "bucket": bucket,
                "window": window,
                "sides": [write_side(side) for side in sides],
            }
            for (query, operator, bucket), (window, sides) in due.items()
        ]
        send(self._client, SidesMetrics(buckets=buckets), timeout=5.0)


_SENDERS: dict[tuple[int, tuple[tuple[str, str], ...]], SideMetricsSender | None] = {}
"""By process id and options: threads do not survive in a forked process."""


def _get_sender(options: tuple[tuple[str, str], ...]) -> SideMetricsSender | None:
    """Return the sender to an agent; None if this worker's settings do not allow one."""
    key = (os.getpid(), options)
    if key not in _SENDERS:
        try:
            _SENDERS[key] = SideMetricsSender(client_for(dict(options)))
        except StreambrokerError as error:
            log.warning("cannot send metrics of side inputs: %s", error)
            _SENDERS[key] = None
    return _SENDERS[key]
