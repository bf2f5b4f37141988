"""Rules of a job from the broker: the custom resource `PatternProcessor`, or the broker's REST."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pe_agent.cep.discovery.discoverer import DiscoveryError, Wanted
from pe_agent.cep.discovery.manager import PatternProcessorManager
from pe_agent.cep.rule_progress import RuleReport
from pe_agent.job.arguments import seconds
from pe_agent.transport.agent_client import send
from streambroker_core.cep.rules.rule_set import UnreadableRule
from streambroker_core.errors import StreambrokerError
from streambroker_core.model.durations import Duration
from streambroker_core.wire.agent_rpc.job import CurrentRules, RulesLeave, RulesReport, RulesWanted

if TYPE_CHECKING:
    from pe_agent.job.context import Job
    from pe_agent.transport.agent_client import AgentClient

log = logging.getLogger("pe_agent.cep")

WAIT_SECONDS = 5.0
REPORT_SECONDS = 20.0
REPORT_TIMEOUT_SECONDS = 5.0
RETRY_SECONDS = 0.5
MAX_RETRY_SECONDS = 10.0


class BrokerDiscoverer:
    """Fetches rules from the job's agent, which has them with the broker's view, and reports to it.

    The agent stores the last rules on disk. They apply while broker or agent is unreachable.

    Attributes:
        problem: why the last request to the agent failed, or that the agent cannot reach the
            broker; None without a problem.
    """

    def __init__(self, pe: Job, *, timeout: Duration = 30.0) -> None:
        """Set the PE whose rules are fetched.

        Args:
            pe: the PE, as `start` returns it.
            timeout: how long to wait for the first rules.
        """
        self._agent: Callable[[], AgentClient] = lambda: pe.context.agent
        self._timeout = seconds(timeout, "timeout")
        self._name, self._query = secrets.token_hex(8), ""
        self._digest: str | None = None
        self._enable_counts: dict[str, int] = {}
        self._closed = threading.Event()
        self._reports: Sequence[RuleReport] | None = None
        self._handled_counts: dict[str, int] = {}
        self._changed = threading.Condition()
        self._reporter = threading.Thread(
            target=self._run_reports, name="rule-reports", daemon=True
        )
        self.problem: str | None = None

    def for_query(self, query: str) -> None:
        """Set the query of the discoverer; queries enable failed rules independently."""
        self._query = query

    def initial_pattern_processors(self) -> Wanted:
        """Return the last rules from the broker; raise DiscoveryError if the agent has none."""
        tries = max(1, round(self._timeout / WAIT_SECONDS))
        try:
            for _ in range(tries):
                answer = self._fetch_rules(min(WAIT_SECONDS, self._timeout))
                if answer.rules is not None:
                    # Rules enabled before now are enabled when updates are watched.
                    self._handled_counts = dict(answer.enabled)
                    self._reporter.start()
                    return self._accept_rules(answer.digest, answer.rules)
        except StreambrokerError as error:
            raise DiscoveryError(f"cannot get the rules from the agent: {error}") from error
        raise DiscoveryError(
            "the broker has not sent the rules of the job yet: is it running, and does the"
            " cluster have the resource PatternProcessor?"
        )

    def discover_pattern_processor_updates(self, manager: PatternProcessorManager) -> None:
        """Apply updates until `close` is called; an unreachable agent changes nothing."""
        self._enable_all(manager)
        retry_seconds = RETRY_SECONDS
        while not self._closed.is_set():
            try:
                answer = self._fetch_rules(WAIT_SECONDS)
                if answer.rules is not None:
                    rules = self._accept_rules(answer.digest, answer.rules)
                    manager.on_pattern_processors_updated(rules)
                    self._enable_all(manager)
                self._on_answer(broker_away=answer.away)
                retry_seconds = RETRY_SECONDS
            except Exception as error:  # the rules stay, whatever the error
                self._set_problem(f"{type(error).__name__}: {error}")
                self._closed.wait(retry_seconds)
                retry_seconds = min(2 * retry_seconds, MAX_RETRY_SECONDS)

    def close(self) -> None:
        """Stop watching and reporting, and leave the agent."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()
        if self._reporter.is_alive():
            self._reporter.join(REPORT_TIMEOUT_SECONDS)
        try:
            send(self._agent(), RulesLeave(discoverer=self._name), timeout=2.0)
        except StreambrokerError as error:
            log.debug("cannot notify the agent that this discoverer has left: %s", error)

    # ---- rules -----------------------------------------------------------

    def _fetch_rules(self, wait: float) -> CurrentRules:
        request = RulesWanted(
            discoverer=self._name, query=self._query, known=self._digest, wait=wait
        )
        return send(self._agent(), request, timeout=wait + 5.0)

    def _accept_rules(self, digest: str | None, rules: Sequence[dict[str, Any]]) -> Wanted:
        self._digest = digest
        self._enable_counts = {rule["id"]: rule["enable"] for rule in rules}
        return [_parse_rule(rule) for rule in rules]

    def _enable_all(self, manager: PatternProcessorManager) -> None:
        """Enable rules whose enable count has changed since the last call."""
        for rule, count in self._enable_counts.items():
            if count and count != self._handled_counts.get(rule, 0) and rule in manager.rules.rules:
                manager.enable(rule)
        if self._handled_counts != self._enable_counts:
            with self._changed:
                self._handled_counts = dict(self._enable_counts)
                self._changed.notify_all()

    def _on_answer(self, *, broker_away: bool) -> None:
        if broker_away:
            self._set_problem(
                "the broker does not answer the agent; the rules are the last ones received"
            )
        elif self.problem is not None:
            log.info("fetching rules works again")
            self.problem = None

    def _set_problem(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("cannot fetch rules, keeping the current set: %s", problem)
        self.problem = problem

    # ---- reports ---------------------------------------------------------

    def on_reports(self, reports: Sequence[RuleReport]) -> None:
        """Report to the agent what has become of the rules, from another thread."""
        with self._changed:
            self._reports = list(reports)
            self._changed.notify_all()

    def _run_reports(self) -> None:
        """Send changed reports, and repeat all at times: the agent may have been replaced."""
        sent: Any = None
        sent_at = 0.0
        while not self._closed.is_set():
            with self._changed:
                current = self._reports, self._handled_counts
                if current == sent and time.monotonic() - sent_at < REPORT_SECONDS:
                    self._changed.wait(WAIT_SECONDS)
                    continue
            try:
                self._send_report(*current)
                sent, sent_at = current, time.monotonic()
            except StreambrokerError as error:
                log.debug("cannot report rules to the agent: %s", error)
                self._closed.wait(RETRY_SECONDS)

    def _send_report(
        self, reports: Sequence[RuleReport] | None, handled: Mapping[str, int]
    ) -> None:
        rules = {each.rule: each.document() for each in reports or ()}
        request = RulesReport(
            discoverer=self._name, query=self._query, rules=rules, enabled=dict(handled)
        )
        send(self._agent(), request, timeout=REPORT_TIMEOUT_SECONDS)


def _parse_rule(rule: Mapping[str, Any]) -> Any:
    if not rule["problem"]:
        return rule["document"]
    version = rule["document"].get("version")
    return UnreadableRule(
        rule=rule["id"],
        version=version if type(version) is int else None,
        problem=str(rule["problem"]).rstrip("."),
    )
