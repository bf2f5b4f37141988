"""Commands about the rules of patterns, and what agents say has become of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from streambroker_core.board import Board, RuleApplied, RuleRemoved, Status
from streambroker_core.board.rule_index import Job, RuleIndex, rule_problem
from streambroker_core.model import PeKey, Rule, RuleKey
from streambroker_core.wire.manifests.rules import write_rule_manifest
from streambroker_core.wire.reports.rule_status import (
    MAX_RULES,
    RuleStatus,
    RuleStatusMap,
    merge_statuses,
)
from streambroker_operator.errors import RequestError, unknown_rule
from streambroker_operator.storage.backend import StorageBackend, StoredRule
from streambroker_operator.storage.write_options import UNCONDITIONAL, Touched, WriteOptions

SILENT_S = 90.0
"""An agent that has said nothing for longer, three of its reports, is taken to have gone."""


class Rules:
    """Commands in; backing and board follow, as in the runtime.

    Args:
        backing: where the rules are.
        board: read, never changed.
        publish: tells the board of own writes.

    Attributes:
        published_status: returns what the status of a rule with a uid says of the job, where there
            is one that all replicas show; None where there is none.
        on_report: is told, too, what an agent says, and whether it has said something of more.
    """

    def __init__(
        self,
        backing: StorageBackend,
        board: Board,
        publish: Callable[[RuleApplied | RuleRemoved], None],
    ) -> None:
        self._backing, self._board, self._publish = backing, board, publish
        self._reports = RuleReports(board.rules, time.monotonic)
        self.published_status: Callable[[str], RuleStatus | None] | None = None
        self.on_report: Callable[[PeKey, RuleStatusMap, bool], None] = lambda *_: None

    def get(self, key: RuleKey) -> StoredRule | None:
        """Return a rule."""
        rule = self._board.rules.holder_at(key)
        return None if rule is None else self._to_stored(rule)

    def job_rules(self, job: Job) -> list[StoredRule]:
        """Return the rules of a job, in the order of their ids."""
        return [self._to_stored(rule) for rule in self._board.rules.rules_of_job(job)]

    def _to_stored(self, rule: Rule) -> StoredRule:
        return StoredRule(rule=rule, version=self._board.rules.cache.version_of(rule.uid))

    # ---- writing ---------------------------------------------------------

    async def put(
        self, rule: Rule, *, touched: Touched | None = None, options: WriteOptions = UNCONDITIONAL
    ) -> StoredRule:
        """Create or replace a rule.

        Raises:
            ManifestError, PatternError, ConditionError: it cannot be run, whatever its job is.
            RequestError: 422 `LimitReached`; else as of `StorageBackend.put_rule`.
        """
        problem = rule_problem(rule)
        if problem is not None:
            raise problem.with_traceback(None)
        self._check_count(rule.key)
        stored = await self._backing.put_rule(rule, touched=touched, options=options)
        if stored.changed or not self._backing.is_sole_writer:
            self._publish(RuleApplied(rule=stored.rule, version=stored.version))
        return stored

    def _check_count(self, key: RuleKey) -> None:
        rules = self._board.rules
        if rules.holder_at(key) is None and len(rules.rules_of_job(key[:2])) >= MAX_RULES:
            raise RequestError(
                422,
                "LimitReached",
                f"{key.namespace}/{key.job} has {MAX_RULES} rules, as many as a job may have.",
            )

    async def enable(self, key: RuleKey, *, options: WriteOptions = UNCONDITIONAL) -> StoredRule:
        """Have a rule run again that an error has turned off.

        Raises:
            RequestError: 404, there is no such rule; else as of `StorageBackend.put_rule`.
        """
        known = self.get(key)
        if known is None:
            raise unknown_rule(key)
        counted = replace(known.rule, enable=known.rule.enable + 1, uid="")
        stored = await self._backing.put_rule(counted, touched=(("enable",),), options=options)
        self._publish(RuleApplied(rule=stored.rule, version=stored.version))
        return stored

    async def delete(self, key: RuleKey, *, options: WriteOptions = UNCONDITIONAL) -> StoredRule:
        """Delete a rule.

        Raises:
            RequestError: 404, there is no such rule; else as of `StorageBackend.delete_rule`.
        """
        stored = await self._backing.delete_rule(key, options=options)
        if stored is None:
            raise unknown_rule(key)
        self._publish(RuleRemoved(uid=stored.rule.uid, version=stored.version))
        return stored

    # ---- what agents say -------------------------------------------------

    def apply_report(self, pe: PeKey, reported: RuleStatusMap, *, more: bool = False) -> None:
        """Take in what an agent says of rules of its job; of ``more`` it has said something else.

        It says so whether it has any or not; who has and had none is passed over.
        """
        if reported or self._reports.reported_by(pe):
            self._reports.apply(pe, reported, more=more)
            self.on_report(pe, reported, more)

    def reported_status(self, rule: Rule) -> RuleStatus | None:
        """Return what the agents of its job say of a rule; None if they have said nothing."""
        return (
            self._reports.merged_status(rule.key)
            if self.published_status is None
            else self.published_status(rule.uid)
        )


class RuleReports:
    """What agents said last; in memory only, as they say it every half minute.

    Args:
        rules: those that there are.
        clock: seconds of a clock that nobody sets. An agent that has been silent for long has gone,
            and what it said counts no more; without a clock it counts until its PE is withdrawn.
    """

    def __init__(self, rules: RuleIndex, clock: Callable[[], float] | None = None) -> None:
        self._rules, self._clock = rules, clock
        self._reports: dict[Job, dict[PeKey, RuleStatusMap]] = {}
        self._at: dict[PeKey, float] = {}

    def apply(self, pe: PeKey, reported: RuleStatusMap, *, more: bool = False) -> set[str]:
        """Take in what an agent says; return the ids of which it says another thing than before.

        Of ``more`` it said something before, and that holds for as long as there are such rules.
        """
        of_job = self._reports.setdefault(pe[:2], {})
        before = of_job.pop(pe, {})
        if more:
            reported = {
                **{name: one for name, one in before.items() if self._exists(pe, name)},
                **reported,
            }
        self._at.pop(pe, None)
        if reported:
            of_job[pe] = reported
            self._at[pe] = 0.0 if self._clock is None else self._clock()
        if not of_job:
            del self._reports[pe[:2]]
        return {name for name in {*before, *reported} if before.get(name) != reported.get(name)}

    def _exists(self, pe: PeKey, name: str) -> bool:
        return self._rules.holder_at(RuleKey(pe.namespace, pe.job, name)) is not None

    def reported_by(self, pe: PeKey) -> RuleStatusMap:
        """Return what an agent said last."""
        return self._reports.get(pe[:2], {}).get(pe, {})

    def merged_status(self, key: RuleKey) -> RuleStatus | None:
        """Return what all agents of its job say of a rule together; None if they say nothing."""
        of_job = self._reports.get(key[:2], {})
        return merge_statuses(
            rules[key.id] for pe, rules in of_job.items() if key.id in rules and self._is_alive(pe)
        )

    def _is_alive(self, pe: PeKey) -> bool:
        return self._clock is None or self._clock() - self._at[pe] <= SILENT_S


def rule_body(
    stored: StoredRule, status: Status | None, reported: RuleStatus | None
) -> dict[str, Any]:
    """Return a rule's manifest with its status: what the broker and what the job say of it."""
    manifest = write_rule_manifest(stored.rule, version=stored.version)
    return {**manifest, "status": {} if status is None else _status_body(status, reported)}


def _status_body(status: Status, reported: RuleStatus | None) -> dict[str, Any]:
    refused = status.accepted and reported is not None and bool(reported.reason)
    found = {
        "accepted": status.accepted and not refused,
        "reason": reported.reason if refused and reported is not None else status.reason,
        "message": reported.message if refused and reported is not None else status.message,
    }
    if reported is None:
        return {**found, "state": "unknown"}
    return {
        **found,
        "state": reported.state,
        "version": reported.version,
        "scheduled": reported.scheduled,
        "since": reported.since,
        "buckets": reported.buckets,
        "of": reported.of,
        "matches": reported.matches,
        "errors": reported.errors,
    }
