"""Metrics of windows on Spark Connect, where a program has no accumulators.

Tasks report each window to the agent of the job, and the program asks the agent for them twice a
second. So a rule that failed is off everywhere some windows later than in a classic session.
"""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pe_agent.transport.agent_client import send
from pe_agent.transport.report_sender import AgentOptions, Reports, sender_for
from streambroker_core.cep.engine.metrics import WindowMetrics
from streambroker_core.errors import StreambrokerError
from streambroker_core.wire.agent_rpc.codec import decode, to_json
from streambroker_core.wire.agent_rpc.job import WindowsReport, WindowsReported

if TYPE_CHECKING:
    from pe_agent.cep.query_rules import QueryRules
    from pe_agent.job.context import JobContext

log = logging.getLogger("pe_agent.cep")


@dataclass(frozen=True, kw_only=True)
class WindowReporter:
    """Reports windows from tasks, as an accumulator does in a classic session."""

    options: AgentOptions
    operator: str = field(default_factory=lambda: uuid.uuid4().hex)

    def add(self, windows: Sequence[WindowMetrics]) -> None:
        """Enqueue windows for the agent."""
        sender = sender_for(self.options, build_request)
        if sender is not None:
            for one in windows:
                sender.enqueue((self.operator, one.query, one.bucket, one.window), one)


def build_request(reports: Reports) -> WindowsReport:
    """Return the request for windows by operator, query, bucket and number."""
    operators: dict[str, list[Any]] = defaultdict(list)
    for (operator, *_), window in reports.items():
        operators[operator].append(to_json(window))
    return WindowsReport(operators=operators)


class WindowPoller:
    """Adds reported windows to the tally of a query's rules; closes the rules when it has ended."""

    def __init__(self, job: JobContext, operator: str, rules: QueryRules, buckets: int) -> None:
        self._job, self._operator = job, operator
        self._rules, self._buckets = rules, buckets
        self._next = 0
        self._queries: set[str] = set()

    def beat(self) -> None:
        """Ask the agent for windows; called about twice a second."""
        request = WindowsReported(operator=self._operator, first=self._next)
        try:
            reported = send(self._job.agent, request, timeout=2.0)
        except StreambrokerError as error:
            log.debug("the agent does not report windows: %s", error)
            return
        self._next = reported.next_
        if reported.windows:
            windows = [decode(WindowMetrics, one) for one in reported.windows]
            self._queries |= {one.query for one in windows}
            self._rules.tally.add_all(windows)
            self._rules.on_progress(self._buckets)
        elif self._queries and self._rules.running:
            active = {str(query.id) for query in self._job.spark.streams.active}
            if not self._queries & active:
                self._rules.on_ended()
