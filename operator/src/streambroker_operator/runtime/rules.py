"""Commands about the rules of patterns, and what agents say has become of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from streambroker_core.board import Board, RuleApplied, RuleRemoved, Status
from streambroker_core.board.rule_index import Job, RuleBook, rule_problem
from streambroker_core.model import PeKey, Rule, RuleKey
from streambroker_core.wire.manifests.rules import write_rule_manifest
from streambroker_core.wire.reports.rule_status import MAX_RULES, ToldRule, ToldRules, merged
from streambroker_operator.errors import RequestError, unknown_rule
from streambroker_operator.storage.backend import Backing, StoredRule
from streambroker_operator.storage.write_options import FREELY, Terms, Touched

SILENT_S = 90.0
"""An agent that has said nothing for longer, three of its reports, is taken to have gone."""


class Rules:
    """Commands in; backing and board follow, as in the runtime.

    Args:
        backing: where the rules are.
        board: read, never changed.
        tell: tells the board of own writes.

    Attributes:
        shown: returns what the status of a rule with a uid says of the job, where there is one
            that all replicas show; None where there is none.
        on_told: is told, too, what an agent says, and whether it has said something of more.
    """

    def __init__(
        self, backing: Backing, board: Board, tell: Callable[[RuleApplied | RuleRemoved], None]
    ) -> None:
        self._backing, self._board, self._tell = backing, board, tell
        self._told = ToldByAgents(board.rules, time.monotonic)
        self.shown: Callable[[str], ToldRule | None] | None = None
        self.on_told: Callable[[PeKey, ToldRules, bool], None] = lambda *_: None

    def get(self, key: RuleKey) -> StoredRule | None:
        """Return a rule."""
        rule = self._board.rules.at(key)
        return None if rule is None else self._known(rule)

    def of_job(self, job: Job) -> list[StoredRule]:
        """Return the rules of a job, in the order of their ids."""
        return [self._known(rule) for rule in self._board.rules.of_job(job)]

    def _known(self, rule: Rule) -> StoredRule:
        return StoredRule(rule=rule, version=self._board.rules.shelf.version_of(rule.uid))

    # ---- writing ---------------------------------------------------------

    async def put(
        self, rule: Rule, *, touched: Touched | None = None, terms: Terms = FREELY
    ) -> StoredRule:
        """Create or replace a rule.

        Raises:
            ManifestError, PatternError, ConditionError: it cannot be run, whatever its job is.
            RequestError: 422 `LimitReached`; else as of `Backing.put_rule`.
        """
        problem = rule_problem(rule)
        if problem is not None:
            raise problem.with_traceback(None)
        self._check_count(rule.key)
        stored = await self._backing.put_rule(rule, touched=touched, terms=terms)
        if stored.changed or not self._backing.ordered:
            self._tell(RuleApplied(rule=stored.rule, version=stored.version))
        return stored

    def _check_count(self, key: RuleKey) -> None:
        rules = self._board.rules
        if rules.at(key) is None and len(rules.of_job(key[:2])) >= MAX_RULES:
            raise RequestError(
                422,
                "LimitReached",
                f"{key.namespace}/{key.job} has {MAX_RULES} rules, as many as a job may have.",
            )

    async def enable(self, key: RuleKey, *, terms: Terms = FREELY) -> StoredRule:
        """Have a rule run again that an error has turned off.

        Raises:
            RequestError: 404, there is no such rule; else as of `Backing.put_rule`.
        """
        known = self.get(key)
        if known is None:
            raise unknown_rule(key)
        counted = replace(known.rule, enable=known.rule.enable + 1, uid="")
        stored = await self._backing.put_rule(counted, touched=(("enable",),), terms=terms)
        self._tell(RuleApplied(rule=stored.rule, version=stored.version))
        return stored

    async def delete(self, key: RuleKey, *, terms: Terms = FREELY) -> StoredRule:
        """Delete a rule.

        Raises:
            RequestError: 404, there is no such rule; else as of `Backing.delete_rule`.
        """
        stored = await self._backing.delete_rule(key, terms=terms)
        if stored is None:
            raise unknown_rule(key)
        self._tell(RuleRemoved(uid=stored.rule.uid, version=stored.version))
        return stored

    # ---- what agents say -------------------------------------------------

    def heard(self, pe: PeKey, told: ToldRules, *, more: bool = False) -> None:
        """Take in what an agent says of rules of its job; of ``more`` it has said something else.

        It says so whether it has any or not; who has and had none is passed over.
        """
        if told or self._told.by(pe):
            self._told.take(pe, told, more=more)
            self.on_told(pe, told, more)

    def told(self, rule: Rule) -> ToldRule | None:
        """Return what the agents of its job say of a rule; None if they have said nothing."""
        return self._told.of(rule.key) if self.shown is None else self.shown(rule.uid)


class ToldByAgents:
    """What agents said last; in memory only, as they say it every half minute.

    Args:
        rules: those that there are.
        clock: seconds of a clock that nobody sets. An agent that has been silent for long has gone,
            and what it said counts no more; without a clock it counts until its PE is withdrawn.
    """

    def __init__(self, rules: RuleBook, clock: Callable[[], float] | None = None) -> None:
        self._rules, self._clock = rules, clock
        self._told: dict[Job, dict[PeKey, ToldRules]] = {}
        self._at: dict[PeKey, float] = {}

    def take(self, pe: PeKey, told: ToldRules, *, more: bool = False) -> set[str]:
        """Take in what an agent says; return the ids of which it says another thing than before.

        Of ``more`` it said something before, and that holds for as long as there are such rules.
        """
        of_job = self._told.setdefault(pe[:2], {})
        before = of_job.pop(pe, {})
        if more:
            told = {**{name: one for name, one in before.items() if self._is(pe, name)}, **told}
        self._at.pop(pe, None)
        if told:
            of_job[pe] = told
            self._at[pe] = 0.0 if self._clock is None else self._clock()
        if not of_job:
            del self._told[pe[:2]]
        return {name for name in {*before, *told} if before.get(name) != told.get(name)}

    def _is(self, pe: PeKey, name: str) -> bool:
        return self._rules.at(RuleKey(pe.namespace, pe.job, name)) is not None

    def by(self, pe: PeKey) -> ToldRules:
        """Return what an agent said last."""
        return self._told.get(pe[:2], {}).get(pe, {})

    def of(self, key: RuleKey) -> ToldRule | None:
        """Return what all agents of its job say of a rule together; None if they say nothing."""
        of_job = self._told.get(key[:2], {})
        return merged(
            rules[key.id] for pe, rules in of_job.items() if key.id in rules and self._lives(pe)
        )

    def _lives(self, pe: PeKey) -> bool:
        return self._clock is None or self._clock() - self._at[pe] <= SILENT_S


def rule_body(stored: StoredRule, status: Status | None, told: ToldRule | None) -> dict[str, Any]:
    """Return a rule's manifest with its status: what the broker and what the job say of it."""
    manifest = write_rule_manifest(stored.rule, version=stored.version)
    return {**manifest, "status": {} if status is None else _status_body(status, told)}


def _status_body(status: Status, told: ToldRule | None) -> dict[str, Any]:
    refused = status.accepted and told is not None and bool(told.reason)
    found = {
        "accepted": status.accepted and not refused,
        "reason": told.reason if refused and told is not None else status.reason,
        "message": told.message if refused and told is not None else status.message,
    }
    if told is None:
        return {**found, "state": "unknown"}
    return {
        **found,
        "state": told.state,
        "version": told.version,
        "scheduled": told.scheduled,
        "since": told.since,
        "buckets": told.buckets,
        "of": told.of,
        "matches": told.matches,
        "errors": told.errors,
    }
