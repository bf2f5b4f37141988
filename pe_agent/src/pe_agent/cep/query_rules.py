"""The rules of a query in its driver: where they are updated, sent and watched."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pe_agent.cep.accumulators import DriverTally
from pe_agent.cep.discovery.discoverer import Discovery, PatternProcessorDiscoverer, Wanted
from pe_agent.cep.discovery.manager import OutcomeListener, PatternProcessorManager
from streambroker_core.cep.engine.metrics import RuleFailure, RuleMetrics
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.rules.push_down import Relevance
from streambroker_core.cep.rules.rule_set import RuleContext, RuleSet, RuleUpdate
from streambroker_core.deprecation import deprecated_name, warn_deprecated
from streambroker_core.wire.reports.rule_metrics import WatermarkWait

if TYPE_CHECKING:
    from pe_agent.aligned.timeout_ticks import TickFile

log = logging.getLogger("pe_agent.cep")
_OLD_NAMES = {"Processors": "pe_agent.streams.old_names"}


class QueryRules:
    """The rules of a query, in its driver; watches until the query ends or `close` is called."""

    def __init__(
        self,
        send: Callable[[RuleSet], None],
        rules: RuleSet,
        context: RuleContext,
        relevance: Callable[[RuleSet], Relevance] | None = None,
        ticks: TickFile | None = None,
    ) -> None:
        self._relevance = relevance
        self.manager = PatternProcessorManager(
            send, context=context, rules=rules, on_outcomes=self._on_outcomes
        )
        self._outcome_listeners: list[OutcomeListener] = []
        self._outcomes: dict[str, RuleUpdate] = {}
        self.tally = DriverTally(self._on_stopped, ticks)
        self._discovery: Discovery | None = None

    def current_pattern_processors(self) -> list[PatternProcessor]:
        """Return the enabled rules, scheduled ones included."""
        return self.manager.current_pattern_processors()

    def outcomes(self) -> list[RuleUpdate]:
        """Return the outcome of each rule when its source was last read."""
        return list(self._outcomes.values())

    def metrics(self) -> list[RuleMetrics]:
        """Return the metrics of rules since the stream was made, and their runs.

        The runs of buckets without a window since then are not included.
        """
        return self.tally.metrics()

    def figures(self) -> list[RuleMetrics]:
        """Deprecated: use ``metrics``."""
        warn_deprecated("rules.figures", "rules.metrics")
        return self.metrics()

    def waiting(self, operator: str = "", log: str = "") -> WatermarkWait:
        """Return how many rows wait for the watermark, their earliest time, and the watermark.

        Buckets without a window since the stream was made are not included.

        Args:
            operator: copied to the result, like ``log``.
            log: log id of the rule sets.
        """
        return self.tally.waiting_rows(operator, log)

    def errors(self) -> dict[tuple[str, int], int]:
        """Return how often a version of a rule failed, by its id and number."""
        return {(one.rule, one.version): one.errors for one in self.tally.progress(0)}

    def failed(self) -> list[str]:
        """Return the ids of the rules that are off after an error, or that were refused."""
        refused = {one.rule for one in self._outcomes.values() if one.change == "refused"}
        return sorted(refused | {rule for rule, _ in self.manager.rules.disabled})

    @property
    def relevance(self) -> Relevance:
        """Which rows the rules have to see, or why that is every row.

        `PE.status` shows in ``rules`` of each reader whether all exporters leave out the others.
        """
        if self._relevance is None:
            return Relevance(why="push_down was not requested")
        return self._relevance(self.manager.rules)

    def enable(self, rule: str) -> None:
        """Enable a rule again that has failed; raise KeyError if there is no such rule."""
        self.manager.enable(rule)

    @property
    def problem(self) -> str | None:
        """Why rules could not be read or applied at the last attempt; None if they could."""
        return None if self._discovery is None else self._discovery.problem

    @property
    def running(self) -> bool:
        """Whether changes are still watched."""
        return self._discovery is not None and self._discovery.running

    def close(self) -> None:
        """Stop watching for changes."""
        if self._discovery is not None:
            self._discovery.close()

    def begin(
        self,
        discoverer: PatternProcessorDiscoverer,
        first_rules: Wanted | None,
        on_outcomes: OutcomeListener | None,
    ) -> None:
        """Apply the first rules, if they could be read, then start to watch."""
        self._outcome_listeners += [] if on_outcomes is None else [on_outcomes]
        if first_rules is not None:
            self.manager.on_pattern_processors_updated(first_rules)
        self._discovery = Discovery(discoverer, self.manager, first=False)

    def _on_outcomes(self, outcomes: Sequence[RuleUpdate]) -> None:
        for one in outcomes:
            self._log_outcome(one)
        self._outcomes = {one.rule: one for one in outcomes}
        for listener in self._outcome_listeners:
            listener(outcomes)

    def _log_outcome(self, outcome: RuleUpdate) -> None:
        if outcome.change == "refused":
            if self._outcomes.get(outcome.rule) != outcome:
                log.warning(
                    "rule %s, version %s: refused (%s): %s",
                    outcome.rule, outcome.version, outcome.reason, outcome.message,
                )  # fmt: skip
            return
        last = self.tally.window
        window = "the first window" if last is None else f"the window after {last}"
        log.info(
            "rule %s, version %s: %s from %s on",
            outcome.rule,
            outcome.version,
            outcome.change,
            window,
        )
        for warning in outcome.warnings if outcome.change != "kept" else ():
            log.warning("rule %s, version %s: %s", outcome.rule, outcome.version, warning)

    def _on_stopped(self, stopped: RuleFailure) -> None:
        log.warning("rule %s failed at %s: %s", stopped.rule, stopped.where, stopped.problem)
        self.manager.disable(stopped.rule, stopped.version)

    def on_progress(self, buckets: int) -> None:
        """Report the progress of the query to listeners."""
        self.manager.on_applied(self.tally.progress(buckets))

    def on_ended(self) -> None:
        """Close in another thread, without waiting."""
        threading.Thread(target=self.close, name="pattern-rules-end", daemon=True).start()


def __getattr__(name: str) -> Any:
    """Import an old name, with a warning."""
    return deprecated_name(__name__, name, _OLD_NAMES, "streambroker.patterns")
