"""Index of the pattern rules of all jobs: which are in effect, and problems of the others.

Rules take no part in matching. The board only decides which rule holds an id of a job: the oldest,
as with ports. An invalid rule is passed on with its problem, so that the job keeps its previous
rule of that id.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from streambroker_core.board.events import ResourceChanged, Status
from streambroker_core.board.resource_cache import ResourceCache
from streambroker_core.board.views import ACCEPTED, unreadable_status, with_rejected
from streambroker_core.cep.rules.validate import find_document_problem
from streambroker_core.errors import ManifestError, StreambrokerError
from streambroker_core.model import RULE, Rule, RuleKey, rule_name_of
from streambroker_core.wire.broker.view_rules import ViewRule, ViewRules, make_view_rules
from streambroker_core.wire.encoding.canonical import canonical
from streambroker_core.wire.manifests.ports import MAX_SPEC
from streambroker_core.wire.manifests.rules import write_rule_spec

Job: TypeAlias = "tuple[str, str]"
"""Namespace and job."""

NO_RULES = ViewRules()


class RuleIndex:
    """All rules, by uid, by job and by id."""

    def __init__(self) -> None:
        self.cache: ResourceCache[Rule] = ResourceCache(RULE)
        self._of_job: dict[Job, dict[str, list[Rule]]] = {}
        self._problems: dict[str, StreambrokerError] = {}
        self._view_rules: dict[Job, ViewRules] = {}
        self._ahead_version = 0

    # ---- input -----------------------------------------------------------

    def apply(self, change: ResourceChanged[Rule]) -> tuple[set[Job], set[str]]:
        """Apply a change; return the affected jobs and uids."""
        jobs: set[Job] = set()
        uids = {change.uid}
        self._problems.pop(change.uid, None)
        if change.old is not None:
            uids |= self._remove(change.old)
            jobs.add(change.old.key[:2])
        if change.new is not None:
            uids |= self._add(change.new)
            jobs.add(change.new.key[:2])
        for job in jobs:
            self._view_rules.pop(job, None)
        return jobs, uids

    def _add(self, rule: Rule) -> set[str]:
        problem = rule_problem(rule)
        if problem is not None:
            self._problems[rule.uid] = problem
        rivals = self._of_job.setdefault(rule.key[:2], {}).setdefault(rule.key.id, [])
        rivals.append(rule)
        rivals.sort(key=lambda one: (one.created, one.uid))
        return {one.uid for one in rivals}

    def _remove(self, rule: Rule) -> set[str]:
        ids = self._of_job[rule.key[:2]]
        remaining = [one for one in ids.pop(rule.key.id) if one.uid != rule.uid]
        if remaining:
            ids[rule.key.id] = remaining
        if not ids:
            del self._of_job[rule.key[:2]]
        return {one.uid for one in remaining}

    def advance_to(self, version: int) -> None:
        """Record that a rule is known at a version, possibly ahead of the feed."""
        self._ahead_version = max(self._ahead_version, version)

    def begin_list(self) -> None:
        """Record that a list begins; it supersedes all that is known ahead of the feed."""
        self._ahead_version = 0

    # ---- output ----------------------------------------------------------

    @property
    def resource_version(self) -> int:
        """Version up to which rules are known: of the feed, or of a later write of this broker."""
        return max(self.cache.resource_version, self._ahead_version)

    def __iter__(self) -> Iterator[Rule]:
        """Yield all rules, rivals included, unordered."""
        return iter(self.cache)

    def view_rules(self, job: Job) -> ViewRules | None:
        """Return the rules of a job; None until all rules have been listed once."""
        if not self.cache.synced:
            return None
        if job not in self._of_job:
            return NO_RULES
        known = self._view_rules.get(job)
        if known is None:
            holders = (rivals[0] for rivals in self._of_job[job].values())
            known = self._view_rules[job] = make_view_rules(map(self._to_view_rule, holders))
        return known

    def _to_view_rule(self, rule: Rule) -> ViewRule:
        return ViewRule(
            id=rule.key.id,
            document=rule.document,
            enable=rule.enable,
            problem=str(self._problems.get(rule.uid, "")),
        )

    def rules_of_job(self, job: Job) -> list[Rule]:
        """Return the rules of a job that hold their ids, ordered by id."""
        ids = self._of_job.get(job, {})
        return [ids[name][0] for name in sorted(ids)]

    def holder_at(self, key: RuleKey) -> Rule | None:
        """Return the rule that holds an id."""
        rivals = self._of_job.get(key[:2], {}).get(key.id)
        return rivals[0] if rivals else None

    def status(self, uid: str) -> Status | None:
        """Return the status of a rule; None if it does not exist."""
        rule = self.cache.get(uid)
        if rule is None:
            return unreadable_status(self.cache.unreadable(uid))
        holder = self.holder_at(rule.key)
        if holder is not None and holder.uid != uid:
            return Status(
                accepted=False,
                reason="IdTaken",
                message=f"{rule.key} is held by an older resource, {rule_name_of(holder)}",
            )
        problem = self._problems.get(uid)
        if problem is None:
            return with_rejected(ACCEPTED, rule)
        return Status(accepted=False, reason="RuleInvalid", message=str(problem))


def rule_problem(rule: Rule) -> StreambrokerError | None:
    """Return what is wrong with a rule regardless of its job; None if it is valid."""
    size = len(canonical(write_rule_spec(rule)))
    if size > MAX_SPEC:
        return ManifestError(path="spec", reason=f"has {size} bytes as JSON; at most {MAX_SPEC}")
    return find_document_problem(rule.document)
