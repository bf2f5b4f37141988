"""The rules of a job: what they are now, and what becomes of those that are wanted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pe_agent.cep.rule_progress import Listener, Progress, RuleReport, RuleReports
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.rules.document import write_rule
from streambroker_core.cep.rules.rule_set import (
    RuleContext,
    RuleSet,
    RuleUpdate,
    UnreadableRule,
    describe_error,
)

Apply = Callable[[RuleSet], None]
OutcomeListener = Callable[[Sequence[RuleUpdate]], None]


class PatternProcessorManager:
    """Takes lists of wanted rules, and hands on the set that comes of each.

    Its methods may be called from any thread; sets are handed on one after the other, and an equal
    one is not handed on again.
    """

    def __init__(
        self,
        apply: Apply,
        *,
        context: RuleContext | None = None,
        rules: RuleSet | None = None,
        tell: OutcomeListener | None = None,
    ) -> None:
        """Take them up.

        Args:
            apply: gets each new set, as a control tuple to be sent with ``PatternRules``; what it
                raises goes to the caller, and the set is as before.
            context: what rules may refer to.
            rules: the set so far, for instance that of a checkpoint.
            tell: gets what became of each rule of an update.
        """
        self._apply, self._on_outcomes, self._context = apply, tell, context or RuleContext()
        self._rules, self._listed_versions = rules or RuleSet(), frozenset[tuple[str, int]]()
        self._rule_reports, self._listeners = RuleReports(), list[Listener]()
        self._lock = threading.RLock()

    @property
    def rules(self) -> RuleSet:
        """The set."""
        return self._rules

    def current_pattern_processors(self) -> list[PatternProcessor]:
        """Return the rules that are on, scheduled ones included."""
        return list(self._rules)

    def on_pattern_processors_updated(self, wanted: Iterable[Any]) -> list[RuleUpdate]:
        """Take the whole list of wanted rules; those that are not in it go.

        Args:
            wanted: rules, or their documents.

        Returns:
            What became of each; what is refused says why, and concerns that rule alone.
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
        """Take in how far a query has come with rules; it says so whenever it knows more."""
        with self._lock:
            self._rule_reports.apply_progress(progress)
            self._notify_listeners()

    def listen(self, listener: Listener) -> None:
        """Tell a listener what has become of all rules, now and whenever that is another thing."""
        with self._lock:
            self._listeners.append(listener)
            listener(self.reports())

    def reports(self) -> list[RuleReport]:
        """Return what has become of each rule, in the order of their ids."""
        with self._lock:
            return self._rule_reports.reports(self._rules)

    def _notify_listeners(self) -> None:
        if self._listeners:
            reports = self.reports()
            for listener in self._listeners:
                listener(reports)

    def disable(self, rule: str, version: int) -> None:
        """Turn a rule off everywhere that failed somewhere."""
        with self._lock:
            self._replace_rules(self._rules.with_disabled(rule, version))
            self._notify_listeners()

    def enable(self, rule: str) -> None:
        """Turn a rule on again.

        Raises:
            KeyError: there is no such rule.
        """
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
    """Return a rule as operators are sent it, so that an unregistered function is found."""
    if not isinstance(rule, PatternProcessor):
        return rule
    try:
        return write_rule(rule)
    except Exception as error:  # a rule that cannot be written is refused alone
        return UnreadableRule(rule=rule.id, version=rule.version, problem=describe_error(error))


def _rule_versions(documents: Iterable[Any]) -> frozenset[tuple[str, int]]:
    """Return id and version of the rules of a list, of those that have both."""
    given = [(one.get("id"), one.get("version")) for one in documents if isinstance(one, Mapping)]
    return frozenset(
        (name, version) for name, version in given if type(name) is str and type(version) is int
    )
