"""Reporting of rule metrics from the driver to the agent of the job.

They are informational: a failed call is repeated with the next beat, and nothing waits for it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from pe_agent.transport.agent_client import send
from streambroker_core.cep.engine.metrics import RuleMetrics
from streambroker_core.errors import StreambrokerError
from streambroker_core.wire.agent_rpc.job import RulesMetrics
from streambroker_core.wire.reports.rule_metrics import (
    MAX_REPORTED_RULES,
    WatermarkWait,
    write_metrics,
)

if TYPE_CHECKING:
    from pe_agent.transport.agent_client import AgentClient

log = logging.getLogger("pe_agent.cep")

MIN_REPORT_SECONDS = 2.0
REPEAT_SECONDS = 20.0
"""Interval at which unchanged metrics are repeated: the agent may have been replaced."""


class RuleMetricsReporter:
    """Reports the metrics of one operator's rules to the agent while the query runs.

    The report contains the thousand rules with the most time. ``waiting`` takes operator and log
    id of the rule sets. ``errors`` are counts by id and version, ``failed`` ids of rules.
    ``clock`` is monotonic seconds.
    """

    def __init__(
        self,
        agent: Callable[[], AgentClient],
        operator: str,
        rules_log: str,
        metrics: Callable[[], Sequence[RuleMetrics]],
        waiting: Callable[[str, str], WatermarkWait],
        errors: Callable[[], dict[tuple[str, int], int]],
        failed: Callable[[], Sequence[str]],
        is_running: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._agent = agent
        self._ended = RulesMetrics(operator=operator, log=rules_log)
        self._metrics, self._waiting = metrics, waiting
        self._errors, self._failed, self._is_running = errors, failed, is_running
        self._clock = clock
        self._sent = self._ended
        self._sent_at = 0.0

    def beat(self) -> None:
        """Send metrics if they are due; called about twice a second."""
        now = self._clock()
        request = self._build_request() if self._is_running() else self._ended
        if now < self._sent_at + self._min_interval(request):
            return
        try:
            send(self._agent(), request, timeout=2.0)
        except StreambrokerError as error:
            log.debug("metrics of rules are not accepted: %s", error)
            return
        self._sent, self._sent_at = request, now

    def _min_interval(self, request: RulesMetrics) -> float:
        if request == self._sent:
            return REPEAT_SECONDS if request.rules else math.inf
        return MIN_REPORT_SECONDS if request.rules and self._sent.rules else 0.0

    def _build_request(self) -> RulesMetrics:
        errors = self._errors()
        rules = []
        metrics = sorted(self._metrics(), key=lambda one: -one.nanoseconds)[:MAX_REPORTED_RULES]
        for one in metrics:
            fields = asdict(one)
            del fields["since"]
            rules.append({**fields, "errors": errors.get((one.rule, one.version), 0)})
        written = write_metrics(self._waiting(self._ended.operator, self._ended.log))
        waiting = {name: written[name] for name in ("rows", "first", "watermark")}
        if not rules:
            return self._ended
        failed = list(self._failed())[:MAX_REPORTED_RULES]
        return replace(self._ended, rules=rules, waiting=waiting, failed=failed)
