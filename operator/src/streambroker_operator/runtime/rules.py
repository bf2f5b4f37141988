"""Commands about pattern rules, and the rule statuses that agents report."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from streambroker_core.board import BoardReader, RuleApplied, RuleRemoved, Status
from streambroker_core.board.rule_index import Job, RuleIndex, rule_problem
from streambroker_core.model import PeKey, Rule, RuleKey
from streambroker_core.wire.encoding.canonical import JsonObject
from streambroker_core.wire.manifests.rules import write_rule_manifest
from streambroker_core.wire.reports.rule_status import (
    MAX_RULES,
    RuleStatus,
    RuleStatusMap,
    merge_statuses,
)
from streambroker_operator.errors import RequestError, unknown_rule
from streambroker_operator.runtime.bodies import ResourceBody
from streambroker_operator.storage.backend import StorageBackend, StoredRule
from streambroker_operator.storage.write_options import UNCONDITIONAL, Touched, WriteOptions

SILENT_S = 90.0
"""Reports of an agent expire after this time, three report intervals, in seconds."""


class Rules:
    """Applies rule commands to the backend, then to the board, which it never changes directly.

    Attributes:
        published_status: returns the published status of a rule by uid, where replicas share one;
            None where they do not.
        on_report: receives an agent's report, and whether further reports have more rules.
    """

    def __init__(
        self,
        backing: StorageBackend,
        board: BoardReader,
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
            ManifestError, PatternError, ConditionError: the rule is invalid for every job.
            RequestError: 422 `LimitReached`; else see `StorageBackend.put_rule`.
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
                f"{key.namespace}/{key.job} already has {MAX_RULES} rules, the maximum of a job.",
            )

    async def enable(self, key: RuleKey, *, options: WriteOptions = UNCONDITIONAL) -> StoredRule:
        """Re-enable a rule that an error has turned off.

        Raises:
            RequestError: 404, there is no such rule; else see `StorageBackend.put_rule`.
        """
        current = self.get(key)
        if current is None:
            raise unknown_rule(key)
        enabled = replace(current.rule, enable=current.rule.enable + 1, uid="")
        stored = await self._backing.put_rule(enabled, touched=(("enable",),), options=options)
        self._publish(RuleApplied(rule=stored.rule, version=stored.version))
        return stored

    async def delete(self, key: RuleKey, *, options: WriteOptions = UNCONDITIONAL) -> StoredRule:
        """Delete a rule.

        Raises:
            RequestError: 404, there is no such rule; else see `StorageBackend.delete_rule`.
        """
        stored = await self._backing.delete_rule(key, options=options)
        if stored is None:
            raise unknown_rule(key)
        self._publish(RuleRemoved(uid=stored.rule.uid, version=stored.version))
        return stored

    # ---- reports of agents -----------------------------------------------

    def apply_report(self, pe: PeKey, reported: RuleStatusMap, *, more: bool = False) -> None:
        """Apply an agent's report about rules of its job: statuses by rule id.

        An empty report is ignored unless the agent reported rules before. With `more`, the report
        is partial, and earlier statuses of other rules stay.
        """
        if reported or self._reports.reported_by(pe):
            self._reports.apply(pe, reported, more=more)
            self.on_report(pe, reported, more)

    def reported_status(self, rule: Rule) -> RuleStatus | None:
        """Return the status of a rule as its job's agents report it; None if they have not."""
        return (
            self._reports.merged_status(rule.key)
            if self.published_status is None
            else self.published_status(rule.uid)
        )


class RuleReports:
    """Last rule reports of agents, in memory only: agents repeat them every 30 s.

    With a clock (monotonic, in seconds), reports of an agent silent for `SILENT_S` no longer count.
    Without one, reports count until the PE is withdrawn.
    """

    def __init__(self, rules: RuleIndex, clock: Callable[[], float] | None = None) -> None:
        self._rules, self._clock = rules, clock
        self._reports: dict[Job, dict[PeKey, RuleStatusMap]] = {}
        self._at: dict[PeKey, float] = {}

    def apply(self, pe: PeKey, reported: RuleStatusMap, *, more: bool = False) -> set[str]:
        """Store a report; return the ids of rules whose status changed.

        With `more`, earlier statuses stay for rules that still exist.
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
        """Return the last report of an agent."""
        return self._reports.get(pe[:2], {}).get(pe, {})

    def merged_status(self, key: RuleKey) -> RuleStatus | None:
        """Return the status of a rule merged over all agents of its job; None without reports."""
        of_job = self._reports.get(key[:2], {})
        return merge_statuses(
            rules[key.id] for pe, rules in of_job.items() if key.id in rules and self._is_alive(pe)
        )

    def _is_alive(self, pe: PeKey) -> bool:
        return self._clock is None or self._clock() - self._at[pe] <= SILENT_S


def rule_body(
    stored: StoredRule, status: Status | None, reported: RuleStatus | None
) -> ResourceBody:
    """Return a rule's manifest, with the status from the board and from the job."""
    manifest = write_rule_manifest(stored.rule, version=stored.version)
    return {**manifest, "status": {} if status is None else _status_body(status, reported)}


def _status_body(status: Status, reported: RuleStatus | None) -> JsonObject:
    refused = status.accepted and reported is not None and bool(reported.reason)
    body: JsonObject = {
        "accepted": status.accepted and not refused,
        "reason": reported.reason if refused and reported is not None else status.reason,
        "message": reported.message if refused and reported is not None else status.message,
    }
    if reported is None:
        return {**body, "state": "unknown"}
    return {
        **body,
        "state": reported.state,
        "version": reported.version,
        "scheduled": reported.scheduled,
        "since": reported.since,
        "buckets": reported.buckets,
        "of": reported.of,
        "matches": reported.matches,
        "errors": reported.errors,
    }
