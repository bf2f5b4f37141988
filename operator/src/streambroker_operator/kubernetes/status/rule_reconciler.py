"""Statuses of pattern rules: desired by the broker and the job, published per the watch.

Conditions are written as for ports. Counts change with every report, so a change of counts alone
is written at most once a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from streambroker_core.board import BoardReader, events
from streambroker_core.errors import ManifestError
from streambroker_core.model import RULE, PeKey, Rule, RuleKey, rule_name_of
from streambroker_core.wire.encoding.canonical import JsonObject, digest
from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.manifests.rules import write_rule_spec
from streambroker_core.wire.reports.rule_status import RuleStatus, read_statuses
from streambroker_operator.kubernetes.client.documents import Document
from streambroker_operator.kubernetes.client.http_api import object_at
from streambroker_operator.kubernetes.replicas.agent_reports import RulesReport
from streambroker_operator.kubernetes.status.conditions import (
    Condition,
    StatusBody,
    accepted_condition,
    condition_values,
    false_condition,
    read_conditions,
    ready_condition,
    to_int,
    true_condition,
    write_conditions,
)
from streambroker_operator.kubernetes.status.published import PublishedStatuses, affected_names
from streambroker_operator.kubernetes.status.writer import Name, StatusWrite
from streambroker_operator.runtime.rules import RuleReports

COUNTS_S = 60.0
"""Seconds before a status is written for changed counts alone."""
TYPES = ("Accepted", "Active", "Ready")
_REFUSAL = "The job refuses it: "
_REPORTED_FIELDS = ("version", "scheduled", "since", "buckets", "of", "matches", "errors")
_COUNT_FIELDS = ("matches", "errors")


@dataclass(frozen=True, slots=True, kw_only=True)
class _PublishedRuleStatus:
    """Published status of a rule.

    Attributes:
        content: digest of all except the counts.
        counts: digest of the counts.
        since: type, status and last transition time of each condition.
        reported: the job's report in it.
        at: when it was written from here or first seen (monotonic).
    """

    content: str = ""
    counts: str = ""
    since: tuple[tuple[str, str, str], ...] = ()
    reported: RuleStatus | None = None
    at: float = 0.0


_NOTHING_PUBLISHED = _PublishedRuleStatus()


class RuleReconciler:
    """Computes the statuses of rules for the status writer.

    All methods are called on the board's event loop.

    Args:
        offer: enqueues a status at the writer; the second argument marks it as urgent.
        on_written: called after a write.
    """

    def __init__(
        self,
        board: BoardReader,
        offer: Callable[[Name, bool], None],
        *,
        on_written: Callable[[StatusWrite], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rules, self._offer = board.rules, offer
        self._clock, self._monotonic = clock, monotonic
        self._reports = RuleReports(board.rules)
        self._published = PublishedStatuses(self._read_published, _NOTHING_PUBLISHED)
        # Rules with changed counts only, and when these may be written.
        self._due: dict[str, float] = {}
        self._on_written = on_written

    # ---- input -----------------------------------------------------------

    def observe(self, body: Document, listed: bool) -> None:
        """Process a rule from the API server; enqueue it if another writer changed its status.

        `listed` means that a list contains it, not the watch.
        """
        name: Name = (RULE, str(body["metadata"]["uid"]))
        if self._published.observe(name, body, listed):
            self._offer(name, False)

    def _read_published(
        self, status: object, before: _PublishedRuleStatus | None
    ) -> _PublishedRuleStatus:
        """Parse a status; an unchanged one keeps the time at which it was first seen."""
        after = read_published(status, self._monotonic())
        unchanged = before is not None and (before.content, before.counts) == (
            after.content,
            after.counts,
        )
        return before if before is not None and unchanged else after

    def on_actions(self, event: events.BoardEvent, actions: Iterable[events.Action]) -> None:
        """Process the board's actions after an event; enqueue the affected statuses."""
        uids = {uid for kind, uid in affected_names(event, actions) if kind == RULE}
        if isinstance(event, events.RuleRemoved):
            self._forget(event.uid)
        elif isinstance(event, events.PeWithdrawn):
            self.on_report(event.pe, RulesReport({}))
        elif isinstance(event, events.Synced) and event.kind == RULE:
            for _, uid in self._published.unlisted(event):
                self._forget(uid)
            uids |= set(self._rules.cache.uids())
        for uid in uids:
            self.offer(uid)

    def _forget(self, uid: str) -> None:
        self._published.forget((RULE, uid))
        self._due.pop(uid, None)

    def on_report(self, pe: PeKey, report: RulesReport) -> None:
        """Record an agent's report about its job's rules; enqueue the statuses that differ."""
        for name in self._reports.apply(pe, report.statuses, more=report.more):
            rule = self._rules.holder_at(RuleKey(pe.namespace, pe.job, name))
            if rule is not None:
                self.offer(rule.uid)

    def offer_due(self) -> None:
        """Enqueue statuses whose count update is due; called each second by the leader."""
        now = self._monotonic()
        for uid in [uid for uid, at in self._due.items() if at <= now]:
            del self._due[uid]
            self.offer(uid)

    def offer(self, uid: str) -> None:
        """Enqueue a status."""
        status = self._rules.status(uid)
        self._offer((RULE, uid), status is not None and not status.accepted)

    def offer_all(self) -> None:
        """Enqueue all statuses: this process became leader."""
        for uid in list(self._rules.cache.uids()):
            self.offer(uid)

    # ---- output ----------------------------------------------------------

    def published_status(self, uid: str) -> RuleStatus | None:
        """Return the job's report in the published status, the same at every replica."""
        return self._published.get((RULE, uid)).reported

    def build(self, name: Name) -> StatusWrite | None:
        """Return the status to write; None if it is up to date or the rule is gone."""
        uid = name[1]
        rule, unreadable = self._rules.cache.get(uid), self._rules.cache.unreadable(uid)
        status: events.Status | None = None
        reported: RuleStatus | None = None
        if unreadable is not None:
            namespace, rule_name = unreadable.namespace, unreadable.name
            generation = unreadable.generation
            status = events.Status(
                accepted=False, reason=unreadable.code, message=unreadable.problem
            )
        elif rule is not None:
            namespace, rule_name = rule.key.namespace, rule_name_of(rule)
            generation = rule.generation if rule.rejected is None else rule.rejected.generation
            status, reported = self._rules.status(uid), self._reported_for(rule)
        if status is None:
            return None
        runs = (
            status.accepted or status.running_generation is not None or status.reason == "IdTaken"
        )
        body = self._build_status(uid, generation, status, reported, rule if runs else None)
        if body is None:
            return None
        return StatusWrite(
            kind=RULE,
            namespace=namespace,
            name=rule_name,
            uid=uid,
            status=body,
            before=self._published.get(name).since,
        )

    def _reported_for(self, rule: Rule) -> RuleStatus | None:
        """Return the latest report of a rule, else the published status."""
        holder = self._rules.holder_at(rule.key)
        if holder is None or holder.uid != rule.uid:
            return None
        reported = self._reports.merged_status(rule.key)
        return self.published_status(rule.uid) if reported is None else reported

    def _build_status(
        self,
        uid: str,
        generation: int,
        status: events.Status,
        reported: RuleStatus | None,
        accepted: Rule | None,
    ) -> StatusBody | None:
        published, now = self._published.get((RULE, uid)), self._monotonic()
        conditions = rule_conditions(status, reported)
        accepted_generation = 0 if accepted is None else accepted.generation
        content, counts = _digests(generation, conditions, reported, accepted_generation)
        self._due.pop(uid, None)
        if content == published.content and counts == published.counts:
            return None
        if content == published.content and now - published.at < COUNTS_S:
            # Schedule the update: no further report may arrive.
            self._due[uid] = published.at + COUNTS_S
            return None
        body: StatusBody = {
            "observedGeneration": generation,
            "conditions": write_conditions(conditions, published.since, self._clock(), generation),
        }
        if accepted is not None:
            body["accepted"] = {
                "generation": accepted_generation,
                "spec": write_rule_spec(accepted),
            }
        return body if reported is None else cast(StatusBody, {**body, **_write_reported(reported)})

    def on_written(self, write: StatusWrite, answer: Document) -> None:
        """Handle the rule that the API server returned after a write."""
        current = self._rules.cache.get(write.uid) or self._rules.cache.unreadable(write.uid)
        if current is not None and self._published.on_written((RULE, write.uid), answer):
            self._on_written(write)


def rule_conditions(status: events.Status, reported: RuleStatus | None) -> tuple[Condition, ...]:
    """Return the conditions of a rule from the broker's status and the job's report."""
    accepted = _accepted_condition(status, reported)
    active = _active_condition(status, reported)
    return accepted, active, ready_condition((accepted, active))


def _accepted_condition(status: events.Status, reported: RuleStatus | None) -> Condition:
    if status.accepted and reported is not None and reported.reason:
        return false_condition("Accepted", reported.reason, f"{_REFUSAL}{reported.message}.")
    return accepted_condition(status)


def _active_condition(status: events.Status, reported: RuleStatus | None) -> Condition:
    if reported is None:
        message = "" if not status.accepted else "No query of the job has reported it yet."
        return Condition(type="Active", status="Unknown", reason="NotHeard", message=message)
    if reported.version is None:
        return false_condition("Active", "Absent")
    version = f"Version {reported.version}"
    if reported.state == "disabled":
        message = (
            f"{version} is disabled after an error; a new version of the rule, or enabling it,"
            " activates it again."
        )
        return false_condition("Active", "Disabled", message)
    if reported.since is None:
        return false_condition("Active", "Pending", f"{version} has not reached the query yet.")
    scheduled = (
        "" if reported.scheduled is None else f"; version {reported.scheduled} waits for its time"
    )
    return true_condition(
        "Active", "Active", f"{version} since window {reported.since}{scheduled}."
    )


def _write_reported(reported: RuleStatus) -> JsonObject:
    fields = {name: getattr(reported, name) for name in _REPORTED_FIELDS}
    applied = f"{reported.buckets}/{reported.of}" if reported.of else ""
    return {**{n: v for n, v in fields.items() if v is not None}, "applied": applied}


def _digests(
    generation: int, conditions: tuple[Condition, ...], reported: RuleStatus | None, accepted: int
) -> tuple[str, str]:
    fields = (
        {} if reported is None else {name: getattr(reported, name) for name in _REPORTED_FIELDS}
    )
    counts = [fields.pop(name, 0) for name in _COUNT_FIELDS]
    content = [generation, condition_values(conditions), fields, accepted]
    return digest(content), digest(counts)


def read_published(status: object, now: float) -> _PublishedRuleStatus:
    """Parse a published rule status; invalid or missing content counts as not published."""
    conditions, since = read_conditions(status, TYPES)
    if not conditions:
        return _NOTHING_PUBLISHED
    reported = _read_reported(status, {c.type: c for c in conditions})
    generation = to_int(object_at(status).get("observedGeneration"))
    accepted_generation = to_int(object_at(status, "accepted").get("generation"))
    content, counts = _digests(generation, conditions, reported, accepted_generation)
    return _PublishedRuleStatus(
        content=content, counts=counts, since=since, reported=reported, at=now
    )


def _read_reported(status: object, conditions: Mapping[str, Condition]) -> RuleStatus | None:
    active, accepted = conditions.get("Active"), conditions.get("Accepted")
    if active is None or accepted is None or active.reason == "NotHeard":
        return None
    # Only this prefix distinguishes a refusal of the job from one of the broker.
    rejected = accepted.message.startswith(_REFUSAL)
    states = {"Disabled": "disabled", "Absent": "absent"}
    fields = {
        **{name: object_at(status).get(name) for name in _REPORTED_FIELDS},
        "state": states.get(active.reason, "active"),
        "reason": accepted.reason if rejected else "",
        "message": accepted.message.removeprefix(_REFUSAL).removesuffix(".") if rejected else "",
    }
    try:
        return read_statuses(Fields({"one": fields}))["one"]
    except ManifestError:
        return None
