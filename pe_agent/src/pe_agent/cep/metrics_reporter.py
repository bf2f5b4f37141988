"""Figures of rules on their way from the driver to the agent of the job.

They are for people: what cannot be told is told with the next beat, and nothing waits for it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from streambroker_core.cep.engine.metrics import RuleMetrics
from streambroker_core.errors import StreambrokerError
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
"""So often figures are told that are no others: the agent may be another one by now."""


class _MetricsRequest(NamedTuple):
    """What is told at once; nothing at all of a query that has ended."""

    rules: tuple[dict[str, Any], ...] = ()
    waiting: dict[str, Any] | None = None


class RuleMetricsReporter:
    """Tells the agent what the rules of one operator have done, as long as they run.

    Args:
        agent: returns the agent.
        operator: the operator's name.
        rules_log: name of the log with its sets of rules.
        metrics: returns what rules have done; the agent takes the thousand on which most time was
            spent.
        waiting: returns what waits for the watermark, of an operator and the log of its sets.
        errors: returns how often a version of a rule failed, by id and version.
        is_running: says whether the query is there.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        agent: Callable[[], AgentClient],
        operator: str,
        rules_log: str,
        metrics: Callable[[], Sequence[RuleMetrics]],
        waiting: Callable[[str, str], WatermarkWait],
        errors: Callable[[], dict[tuple[str, int], int]],
        is_running: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._agent, self._operator, self._rules_log = agent, operator, rules_log
        self._metrics, self._waiting = metrics, waiting
        self._errors, self._is_running = errors, is_running
        self._clock = clock
        self._sent: _MetricsRequest | None = None
        self._sent_at = 0.0

    def beat(self) -> None:
        """Tell what is new; called about twice a second."""
        now = self._clock()
        told = self._build_request() if self._is_running() else _MetricsRequest()
        if now < self._sent_at + self._min_interval(told):
            return
        names = {"operator": self._operator, "log": self._rules_log}
        try:
            self._agent().call("rules.figures", timeout=2.0, **names, **told._asdict())
        except StreambrokerError as error:
            log.debug("figures of rules are not taken: %s", error)
            return
        self._sent, self._sent_at = told, now

    def _min_interval(self, request: _MetricsRequest) -> float:
        if request == (self._sent or _MetricsRequest()):
            return REPEAT_SECONDS if request.rules else math.inf
        return MIN_REPORT_SECONDS if request.rules and self._sent and self._sent.rules else 0.0

    def _build_request(self) -> _MetricsRequest:
        rules = tuple(self._rule_metrics())
        told = write_metrics(self._waiting(self._operator, self._rules_log))
        waiting = {name: told[name] for name in ("rows", "first", "watermark")}
        return _MetricsRequest(rules, waiting) if rules else _MetricsRequest()

    def _rule_metrics(self) -> list[dict[str, Any]]:
        errors = self._errors()
        found = []
        figures = sorted(self._metrics(), key=lambda one: -one.nanoseconds)[:MAX_REPORTED_RULES]
        for one in figures:
            told = asdict(one)
            del told["since"]
            found.append({**told, "errors": errors.get((one.rule, one.version), 0)})
        return found
