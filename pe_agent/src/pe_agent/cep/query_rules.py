"""The rules of a query beside its driver: where they are taken in, sent, and watched."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pe_agent.cep.accumulators import Listening
from pe_agent.cep.discovery.discoverer import Discovery, PatternProcessorDiscoverer, Wanted
from pe_agent.cep.discovery.manager import PatternProcessorManager, Tell
from streambroker_core.cep.engine.metrics import RuleFigures, Stopped
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.rules.push_down import Relevance
from streambroker_core.cep.rules.rule_set import Context, Outcome, RuleSet
from streambroker_core.wire.reports.rule_metrics import ToldWaiting

if TYPE_CHECKING:
    from pe_agent.aligned.timeout_ticks import TickFile

log = logging.getLogger("pe_agent.cep")


class Processors:
    """The rules of a query, beside its driver; ends with the query, or when it is closed."""

    def __init__(
        self,
        send: Callable[[RuleSet], None],
        rules: RuleSet,
        context: Context,
        relevance: Callable[[RuleSet], Relevance] | None = None,
        ticks: TickFile | None = None,
    ) -> None:
        self._relevance = relevance
        self.manager = PatternProcessorManager(send, context=context, rules=rules, tell=self._heard)
        self._tells: list[Tell] = []
        self._outcomes: dict[str, Outcome] = {}
        self.tally = Listening(self._stopped, ticks)
        self._discovery: Discovery | None = None

    def current_pattern_processors(self) -> list[PatternProcessor]:
        """Return the rules that are on, scheduled ones included."""
        return self.manager.current_pattern_processors()

    def outcomes(self) -> list[Outcome]:
        """Return what became of each rule when its source was last read."""
        return list(self._outcomes.values())

    def figures(self) -> list[RuleFigures]:
        """Return what rules have done since the stream was made, and their runs.

        Of buckets without a window since then the runs are not known.
        """
        return self.tally.figures()

    def waiting(self, operator: str = "", log: str = "") -> ToldWaiting:
        """Return how many rows wait for the watermark, for which time, and where it is.

        Of buckets without a window since the stream was made nothing is known.

        Args:
            operator: stands in the answer, like ``log``.
            log: of the sets of rules.
        """
        return self.tally.held_up(operator, log)

    def errors(self) -> dict[tuple[str, int], int]:
        """Return how often a version of a rule failed, by its id and number."""
        return {(one.rule, one.version): one.errors for one in self.tally.progress(0)}

    @property
    def relevance(self) -> Relevance:
        """Which rows the rules have to see, or why that is every row.

        Whether all exporters leave the others out `PE.status` tells, of each reader in ``rules``.
        """
        if self._relevance is None:
            return Relevance(why="push_down was not asked for")
        return self._relevance(self.manager.rules)

    def enable(self, rule: str) -> None:
        """Turn a rule on again that has failed.

        Raises:
            KeyError: there is no such rule.
        """
        self.manager.enable(rule)

    @property
    def problem(self) -> str | None:
        """Why rules could not be read or taken in when last tried; None if they could."""
        return None if self._discovery is None else self._discovery.problem

    @property
    def running(self) -> bool:
        """Whether changes are still taken in."""
        return self._discovery is not None and self._discovery.running

    def close(self) -> None:
        """Take in no more changes."""
        if self._discovery is not None:
            self._discovery.close()

    def begin(
        self, discoverer: PatternProcessorDiscoverer, first: Wanted | None, tell: Tell | None
    ) -> None:
        """Take in the first rules, if they could be read, then begin to watch."""
        self._tells += [] if tell is None else [tell]
        if first is not None:
            self.manager.on_pattern_processors_updated(first)
        self._discovery = Discovery(discoverer, self.manager, first=False)

    def _heard(self, outcomes: Sequence[Outcome]) -> None:
        for one in outcomes:
            self._log(one)
        self._outcomes = {one.rule: one for one in outcomes}
        for tell in self._tells:
            tell(outcomes)

    def _log(self, one: Outcome) -> None:
        """Log what became of a rule; what is refused again for the same reason is not repeated."""
        last = self.tally.window
        window = "the first window" if last is None else f"the window after {last}"
        if one.change == "refused":
            if self._outcomes.get(one.rule) != one:
                log.warning(
                    "rule %s, version %s: refused at %s (%s): %s",
                    one.rule, one.version, window, one.reason, one.message,
                )  # fmt: skip
            return
        log.info("rule %s, version %s: %s from %s on", one.rule, one.version, one.change, window)
        for warning in one.warnings if one.change != "kept" else ():
            log.warning("rule %s, version %s: %s", one.rule, one.version, warning)

    def _stopped(self, stopped: Stopped) -> None:
        log.warning("rule %s failed at %s: %s", stopped.rule, stopped.where, stopped.problem)
        self.manager.stopped(stopped.rule, stopped.version)

    def progressed(self, buckets: int) -> None:
        """Tell those who want to know how far the query is."""
        self.manager.on_applied(self.tally.progress(buckets))

    def ended(self) -> None:
        """Close, without waiting for it."""
        threading.Thread(target=self.close, name="pattern-rules-end", daemon=True).start()
