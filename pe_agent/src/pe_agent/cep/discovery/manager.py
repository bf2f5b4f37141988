"""The manager of a job's rules: applies lists of wanted rules, and reports the outcome."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pe_agent.cep.rule_progress import Listener, Progress, RuleReport, RuleReports
from pe_agent.job.arguments import check_keywords
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.rules.document import write_rule
from streambroker_core.cep.rules.rule_set import (
    RuleContext,
    RuleSet,
    RuleUpdate,
    UnreadableRule,
    describe_error,
)
from streambroker_core.deprecation import warn_deprecated

Apply = Callable[[RuleSet], None]
OutcomeListener = Callable[[Sequence[RuleUpdate]], None]


class PatternProcessorManager:
    """Applies lists of wanted rules, and passes on the resulting rule sets.

    Its methods may be called from any thread. Sets are passed on one after the other; a set equal
    to the current one is not passed on.
    """

    def __init__(
        self,
        apply: Apply,
        *,
        context: RuleContext | None = None,
        rules: RuleSet | None = None,
        on_outcomes: OutcomeListener | None = None,
        **old: OutcomeListener | None,
    ) -> None:
        """Set up the manager.

        Args:
            apply: receives each new set, to be sent as a control tuple ``PatternRules``. Its errors
                are raised to the caller, and the set stays as before.
            context: the functions and columns that rules may refer to.
            rules: the initial set, for instance that of a checkpoint.
            on_outcomes: receives the outcome of each rule of an update.
            old: deprecated: ``tell``, the old name of ``on_outcomes``.
        """
        if "tell" in old:
            warn_deprecated("PatternProcessorManager(tell=)", "on_outcomes=")
            on_outcomes = old.pop("tell") or on_outcomes
        check_keywords("PatternProcessorManager", old, ("apply", "context", "rules", "on_outcomes"))
        self._apply, self._on_outcomes = apply, on_outcomes
        self._context = context or RuleContext()
        self._rules, self._listed_versions = rules or RuleSet(), frozenset[tuple[str, int]]()
        self._rule_reports, self._listeners = RuleReports(), list[Listener]()
        self._lock = threading.RLock()

    @property
    def rules(self) -> RuleSet:
        """The current set."""
        return self._rules

    def current_pattern_processors(self) -> list[PatternProcessor]:
        """Return the enabled rules, scheduled ones included."""
        return list(self._rules)

    def on_pattern_processors_updated(self, wanted: Iterable[Any]) -> list[RuleUpdate]:
        """Replace the wanted rules; rules that are not in the list are removed.

        Args:
            wanted: rules, or their documents.

        Returns:
            The outcome of each rule; a refusal has a reason, and concerns that rule alone.
        """
        documents = [_as_document(each) for each in wanted]
        with self._lock:
            rules, outcomes = self._rules.apply_update(
                documents, self._context, self._listed_versions
            )
            self._replace_rules(rules)
            self._listed_versions = _rule_versions(documents)
            self._rule_reports.apply_outcomes(outcomes)
            if self._on_outcomes is not None:
                self._on_outcomes(outcomes)
            self._notify_listeners()
        return outcomes

    def on_applied(self, progress: Iterable[Progress]) -> None:
        """Record how far a query is with rules; the query calls it on every change."""
        with self._lock:
            self._rule_reports.apply_progress(progress)
            self._notify_listeners()

    def listen(self, listener: Listener) -> None:
        """Report all rules to a listener, now and on every change."""
        with self._lock:
            self._listeners.append(listener)
            listener(self.reports())

    def reports(self) -> list[RuleReport]:
        """Return a report of each rule, ordered by id."""
        with self._lock:
            return self._rule_reports.reports(self._rules)

    def _notify_listeners(self) -> None:
        if self._listeners:
            reports = self.reports()
            for listener in self._listeners:
                listener(reports)

    def disable(self, rule: str, version: int) -> None:
        """Disable a rule everywhere after it failed in one place."""
        with self._lock:
            self._replace_rules(self._rules.with_disabled(rule, version))
            self._notify_listeners()

    def enable(self, rule: str) -> None:
        """Enable a rule again; raise KeyError if there is none."""
        with self._lock:
            if rule not in self._rules.rules:
                raise KeyError(rule)
            self._replace_rules(self._rules.with_enabled(rule))
            self._notify_listeners()

    def _replace_rules(self, rules: RuleSet) -> None:
        if rules != self._rules:
            self._apply(rules)
            self._rules = rules


def _as_document(rule: Any) -> Any:
    """Return a rule in the form sent to operators, which reveals unregistered functions."""
    if not isinstance(rule, PatternProcessor):
        return rule
    try:
        return write_rule(rule)
    except Exception as error:  # only the rule that cannot be written is refused
        return UnreadableRule(rule=rule.id, version=rule.version, problem=describe_error(error))


def _rule_versions(documents: Iterable[Any]) -> frozenset[tuple[str, int]]:
    pairs = [(one.get("id"), one.get("version")) for one in documents if isinstance(one, Mapping)]
    return frozenset(
        (name, version) for name, version in pairs if type(name) is str and type(version) is int
    )
