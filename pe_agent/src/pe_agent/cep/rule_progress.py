"""Progress and reports of a job's rules: a query's progress, and the reports made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from streambroker_core.cep.rules.rule_set import RuleSet, RuleUpdate

State: TypeAlias = Literal["active", "disabled", "absent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a query with one version of a rule.

    Attributes:
        since: the first window in which it applies; None until a bucket has applied it.
        buckets: number of buckets that have applied it.
        of: number of buckets; 0 if that is not known.
        matches: total number of its matches.
        errors: how often it failed.
    """

    rule: str
    version: int
    since: int | None = None
    buckets: int = 0
    of: int = 0
    matches: int = 0
    errors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleReport:
    """Report of the rules of one id.

    Attributes:
        rule: the id, or where the rule is defined if it could not be read.
        version: the first version, active unless its start is scheduled; None if there is none.
        state: state of that version; ``disabled`` after an error, ``absent`` if there is none.
        scheduled: the version that is scheduled to replace it; None if there is none.
        progress: progress of that version, if a query has reported any.
        refused: the wanted version that was refused; None if none was, or it has no version.
        reason: reason of the refusal, a word of `RuleUpdate`; empty if nothing was refused.
        message: a sentence about the refusal.
    """

    rule: str
    version: int | None
    state: State
    scheduled: int | None = None
    progress: Progress | None = None
    refused: int | None = None
    reason: str = ""
    message: str = ""

    def document(self) -> dict[str, Any]:
        """Return the report as JSON-like data, the same for equal reports."""
        progress = self.progress or Progress(rule=self.rule, version=0)
        return {
            "id": self.rule,
            "version": self.version,
            "state": self.state,
            "scheduled": self.scheduled,
            "refused": self.refused,
            "reason": self.reason,
            "message": self.message,
            "since": progress.since,
            "buckets": progress.buckets,
            "of": progress.of,
            "matches": progress.matches,
            "errors": progress.errors,
        }


Listener: TypeAlias = Callable[[Sequence[RuleReport]], None]
"""Receives the reports of all rules whenever one of them changes."""


class RuleReports:
    """Reports of a job's rules, from the manager's outcomes and a query's progress."""

    def __init__(self) -> None:
        self._refused: dict[str, RuleUpdate] = {}
        self._progress: dict[tuple[str, int], Progress] = {}

    def apply_outcomes(self, outcomes: Iterable[RuleUpdate]) -> None:
        """Record the outcomes of an update; a refusal is reported until the next update."""
        self._refused = {each.rule: each for each in outcomes if each.change == "refused"}

    def apply_progress(self, progress: Iterable[Progress]) -> None:
        """Record the progress of a query; counts never go back."""
        for each in progress:
            name = each.rule, each.version
            previous = self._progress.get(name, each)
            matches, errors = max(each.matches, previous.matches), max(each.errors, previous.errors)
            self._progress[name] = replace(each, matches=matches, errors=errors)

    def reports(self, rules: RuleSet) -> list[RuleReport]:
        """Return a report of each rule that is in a set or was refused; forget other progress."""
        current = {(rule.id, rule.version) for each in rules.rules.values() for rule in each}
        self._progress = {
            name: progress for name, progress in self._progress.items() if name in current
        }
        names = sorted({*rules.rules, *self._refused})
        return [self._report(name, rules) for name in names]

    def _report(self, name: str, rules: RuleSet) -> RuleReport:
        outcome, versions = self._refused.get(name), rules.rules.get(name, ())
        report = RuleReport(
            rule=name,
            version=versions[0].version if versions else None,
            state=_state(name, rules),
            scheduled=versions[1].version if len(versions) > 1 else None,
            progress=self._progress.get((name, versions[0].version)) if versions else None,
        )
        if outcome is None:
            return report
        return replace(
            report, refused=outcome.version, reason=outcome.reason, message=outcome.message
        )


def _state(name: str, rules: RuleSet) -> State:
    versions = rules.rules.get(name)
    if not versions:
        return "absent"
    return "disabled" if (name, versions[0].version) in rules.disabled else "active"
