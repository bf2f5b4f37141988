"""What has become of the rules of a job: what a query says of them, and what others are told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from streambroker_core.cep.rules.rule_set import RuleSet, RuleUpdate

State: TypeAlias = Literal["active", "disabled", "absent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a query has come with one version of a rule.

    Attributes:
        rule: its id.
        version: which version.
        since: the window from which on it holds; None while no bucket has taken it in.
        buckets: how many buckets have taken it in.
        of: how many buckets there are; 0 if that is not known.
        matches: what it has found in all.
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
    """What there is to tell of the rules of one id.

    Attributes:
        rule: the id, or where it stands if it could not be read.
        version: the first one there is, in force unless its time is still to come; or None.
        state: of that version; ``disabled`` after an error, ``absent`` if there is none.
        scheduled: the version that replaces it at its time; None if there is none.
        progress: of that version, as far as a query has told.
        refused: the version that is wanted and was refused; None if it was not, or has none.
        reason: why: a word as of `RuleUpdate`; empty if nothing was refused.
        message: a sentence to it.
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
        """Return it as JSON-like data, the same for equal reports."""
        progress = self.progress
        return {
            "id": self.rule,
            "version": self.version,
            "state": self.state,
            "scheduled": self.scheduled,
            "refused": self.refused,
            "reason": self.reason,
            "message": self.message,
            "since": None if progress is None else progress.since,
            "buckets": 0 if progress is None else progress.buckets,
            "of": 0 if progress is None else progress.of,
            "matches": 0 if progress is None else progress.matches,
            "errors": 0 if progress is None else progress.errors,
        }


Listener: TypeAlias = Callable[[Sequence[RuleReport]], None]
"""Gets the reports of all rules whenever one of them is another."""


class RuleReports:
    """Where the rules of a job stand, of what the manager and a query have said."""

    def __init__(self) -> None:
        self._refused: dict[str, RuleUpdate] = {}
        self._progress: dict[tuple[str, int], Progress] = {}

    def apply_outcomes(self, outcomes: Iterable[RuleUpdate]) -> None:
        """Take in what became of each rule of an update; a refusal is told until the next one."""
        self._refused = {each.rule: each for each in outcomes if each.change == "refused"}

    def apply_progress(self, progress: Iterable[Progress]) -> None:
        """Take in how far a query is; counts never go back."""
        for each in progress:
            name = each.rule, each.version
            known = self._progress.get(name, each)
            matches, errors = max(each.matches, known.matches), max(each.errors, known.errors)
            self._progress[name] = replace(each, matches=matches, errors=errors)

    def reports(self, rules: RuleSet) -> list[RuleReport]:
        """Return what there is to tell of each rule that is in a set or was refused."""
        there = {(rule.id, rule.version) for each in rules.rules.values() for rule in each}
        self._progress = {name: told for name, told in self._progress.items() if name in there}
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
