"""The statuses of rules of patterns: what has to stand there, and what stands there.

Conditions are told as those of ports are. Counts move with every report, so that a status is
written anew for them alone at most once a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from streambroker_core.board import (
    Action,
    Board,
    BoardEvent,
    PeWithdrawn,
    RuleApplied,
    RuleRemoved,
    Status,
    StatusChanged,
    Synced,
    Unreadable,
)
from streambroker_core.errors import ManifestError
from streambroker_core.model import RULE, PeKey, Rule, RuleKey, rule_name_of
from streambroker_core.wire.encoding.canonical import digest
from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.manifests.rules import write_rule_spec
from streambroker_core.wire.reports.rule_status import RuleStatus, RuleStatusMap, read_statuses
from streambroker_operator.kubernetes.status.conditions import (
    Condition,
    read_conditions,
    ready_condition,
    truncate,
    write_conditions,
)
from streambroker_operator.kubernetes.status.events import PublishedConditions
from streambroker_operator.kubernetes.status.writer import Name, StatusWrite
from streambroker_operator.runtime.rules import RuleReports

COUNTS_S = 60.0
"""How old counts may become in a status of which nothing else has changed, in seconds."""
TYPES = ("Accepted", "Active", "Ready")
_REPORTED_FIELDS = ("version", "scheduled", "since", "buckets", "of", "matches", "errors")
_COUNT_FIELDS = ("matches", "errors")


@dataclass(frozen=True, slots=True, kw_only=True)
class _PublishedRuleStatus:
    """What stands in a status.

    Attributes:
        content: digest of all but the counts.
        counts: digest of them.
        since: of each condition: type, status, time of its last transition.
        reported: what it says of the job's rule.
        at: when it was written from here, or seen first (monotonic).
    """

    content: str = ""
    counts: str = ""
    since: tuple[tuple[str, str, str], ...] = ()
    reported: RuleStatus | None = None
    at: float = 0.0

    def condition_status(self, condition: str) -> str | None:
        """Return the status of a condition; None where it is not shown."""
        return next((status for name, status, _ in self.since if name == condition), None)


_NOTHING_PUBLISHED = _PublishedRuleStatus()
OnWritten: TypeAlias = "Callable[[StatusWrite, PublishedConditions, Mapping[str, Any]], None]"


class RuleReconciler:
    """What the status writer asks of rules, and tells.

    All methods are called on the board's event loop.

    Args:
        board: read, never changed.
        offer: asks the writer to look at a status; the second argument says whether urgently.
        on_written: told of a status that was just written, of what stood there, and of what does.
        clock: seconds since 1970.
        monotonic: seconds of a clock that nobody sets.
    """

    def __init__(
        self,
        board: Board,
        offer: Callable[[Name, bool], None],
        *,
        on_written: OnWritten = lambda *_: None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rules, self._offer = board.rules, offer
        self._clock, self._monotonic = clock, monotonic
        self._reports = RuleReports(board.rules)
        self._published: dict[str, _PublishedRuleStatus] = {}
        self._written_versions: dict[str, int] = {}
        # Whose counts alone have changed, and when they may be written.
        self._due: dict[str, float] = {}
        self._before_write: dict[str, _PublishedRuleStatus] = {}
        self._on_written = on_written

    # ---- what comes in ---------------------------------------------------

    def observe(self, body: Mapping[str, Any], listed: bool) -> None:
        """Take in a whole rule as the API server has it, by a list or by the watch.

        What the watch tells of the time before an answer to a write is passed over.
        """
        uid, version = str(body["metadata"]["uid"]), int(body["metadata"]["resourceVersion"])
        if not listed and version < self._written_versions.get(uid, 0):
            return
        self._written_versions.pop(uid, None)
        before, found = (
            self._published.get(uid),
            read_published(body.get("status"), self._monotonic()),
        )
        if before is None or (before.content, before.counts) != (found.content, found.counts):
            self._published[uid] = found
        if before is not None and before.content != found.content:
            self._offer((RULE, uid), False)

    def on_actions(self, event: BoardEvent, actions: Iterable[Action]) -> None:
        """Take in what an event has done to the board, and have looked at what it concerns."""
        uids = {a.uid for a in actions if isinstance(a, StatusChanged) and a.kind == RULE}
        if isinstance(event, RuleApplied):
            uids.add(event.rule.uid)
        if isinstance(event, Unreadable) and event.kind == RULE:
            uids.add(event.uid)
        if isinstance(event, RuleRemoved):
            self._forget((event.uid,))
        if isinstance(event, PeWithdrawn):
            self.on_report(event.pe, {})
        if isinstance(event, Synced) and event.kind == RULE:
            self._forget_unlisted(event)
            uids |= set(self._rules.cache.uids())
        for uid in uids:
            self.offer(uid)

    def _forget_unlisted(self, event: Synced) -> None:
        there = {rule.uid for rule, _ in event.listed} | {what.uid for what in event.unreadable}
        self._forget(self._published.keys() - there)

    def _forget(self, uids: Iterable[str]) -> None:
        for known in (self._published, self._written_versions, self._due, self._before_write):
            for uid in uids:
                known.pop(uid, None)

    def on_report(self, pe: PeKey, reported: RuleStatusMap, more: bool = False) -> None:
        """Take in what an agent says of its job's rules, and have looked at what says else.

        Args:
            pe: whose agent.
            reported: what it says.
            more: whether it has said something of others before.
        """
        for name in self._reports.apply(pe, reported, more=more):
            rule = self._rules.holder_at(RuleKey(pe.namespace, pe.job, name))
            if rule is not None:
                self.offer(rule.uid)

    def offer_due(self) -> None:
        """Have looked at counts that have waited long enough; asked of who leads each second."""
        now = self._monotonic()
        for uid in [uid for uid, at in self._due.items() if at <= now]:
            del self._due[uid]
            self.offer(uid)

    def offer(self, uid: str) -> None:
        """Have a status looked at."""
        status = self._rules.status(uid)
        self._offer((RULE, uid), status is not None and not status.accepted)

    def offer_all(self) -> None:
        """Have all looked at: this process leads from now on."""
        for uid in list(self._rules.cache.uids()):
            self.offer(uid)

    # ---- what goes out ---------------------------------------------------

    def published_status(self, uid: str) -> RuleStatus | None:
        """Return what a status says of the job's rule, the same at every replica."""
        return self._published.get(uid, _NOTHING_PUBLISHED).reported

    def build(self, uid: str) -> StatusWrite | None:
        """Return what is to be written now; None where it stands there, or the rule is gone."""
        rule, unread = self._rules.get(uid), self._rules.unreadable(uid)
        status: Status | None = None
        told: RuleStatus | None = None
        if unread is not None:
            namespace, name, generation = unread.namespace, unread.name, unread.generation
            status = Status(accepted=False, reason=unread.code, message=unread.problem)
        elif rule is not None:
            namespace, name, generation = rule.key.namespace, rule_name_of(rule), rule.generation
            generation = rule.generation if rule.rejected is None else rule.rejected.generation
            status, told = self._rules.status(uid), self._reported_for(rule)
        if status is None:
            return None
        runs = (
            status.accepted or status.running_generation is not None or status.reason == "IdTaken"
        )
        found = self._build_status(uid, generation, status, told, rule if runs else None)
        if found is None:
            return None
        self._before_write[uid] = self._published.get(uid, _NOTHING_PUBLISHED)
        return StatusWrite(kind=RULE, namespace=namespace, name=name, uid=uid, status=found)

    def _reported_for(self, rule: Rule) -> RuleStatus | None:
        """Return what is told of a rule; while nobody has told here, what is shown stays."""
        holder = self._rules.holder_at(rule.key)
        if holder is None or holder.uid != rule.uid:
            return None
        told = self._reports.merged_status(rule.key)
        return self.published_status(rule.uid) if told is None else told

    def _build_status(
        self,
        uid: str,
        generation: int,
        status: Status,
        reported: RuleStatus | None,
        accepted: Rule | None,
    ) -> dict[str, Any] | None:
        shown, now = self._published.get(uid, _NOTHING_PUBLISHED), self._monotonic()
        conditions = rule_conditions(status, reported)
        runs = 0 if accepted is None else accepted.generation
        content, counts = _digests(generation, conditions, reported, runs)
        self._due.pop(uid, None)
        if content == shown.content and counts == shown.counts:
            return None
        if content == shown.content and now - shown.at < COUNTS_S:
            # Maybe nobody tells of it any more.
            self._due[uid] = shown.at + COUNTS_S
            return None
        body: dict[str, Any] = {
            "observedGeneration": generation,
            "conditions": write_conditions(conditions, shown.since, self._clock(), generation),
        }
        if accepted is not None:
            body["accepted"] = {"generation": runs, "spec": write_rule_spec(accepted)}
        return body if reported is None else {**body, **_write_reported(reported)}

    def on_written(self, write: StatusWrite, answer: Mapping[str, Any]) -> None:
        """Take in the rule as the API server has it after a write."""
        metadata, before = (
            answer.get("metadata"),
            self._before_write.pop(write.uid, _NOTHING_PUBLISHED),
        )
        there = self._rules.get(write.uid) or self._rules.unreadable(write.uid)
        if not isinstance(metadata, Mapping) or metadata.get("uid") != write.uid or there is None:
            return
        self._written_versions[write.uid] = int(metadata["resourceVersion"])
        self._published[write.uid] = read_published(answer.get("status"), self._monotonic())
        self._on_written(write, before, write.status)


def rule_conditions(status: Status, reported: RuleStatus | None) -> tuple[Condition, ...]:
    """Return the conditions of a rule, by what the broker and what the job say of it."""
    accepted = _accepted_condition(status, reported)
    active = _active_condition(status, reported)
    return accepted, active, ready_condition((accepted, active))


def _accepted_condition(status: Status, reported: RuleStatus | None) -> Condition:
    if not status.accepted:
        message = truncate(status.message)
        return Condition(type="Accepted", status="False", reason=status.reason, message=message)
    if reported is not None and reported.reason:
        message = truncate(f"The job refuses it: {reported.message}.")
        return Condition(type="Accepted", status="False", reason=reported.reason, message=message)
    return Condition(type="Accepted", status="True", reason="Accepted")


def _active_condition(status: Status, reported: RuleStatus | None) -> Condition:
    if reported is None:
        message = "" if not status.accepted else "No query of the job has told of it yet."
        return Condition(type="Active", status="Unknown", reason="NotHeard", message=message)
    if reported.version is None:
        return Condition(type="Active", status="False", reason="Absent")
    version = f"Version {reported.version}"
    if reported.state == "disabled":
        message = f"{version} is off after an error, until a new version or an enabling."
        return Condition(type="Active", status="False", reason="Disabled", message=message)
    if reported.since is None:
        message = f"{version} is on its way to the query."
        return Condition(type="Active", status="False", reason="Pending", message=message)
    told_later = (
        "" if reported.scheduled is None else f"; version {reported.scheduled} waits for its time"
    )
    message = f"{version} since window {reported.since}{told_later}."
    return Condition(type="Active", status="True", reason="Active", message=message)


def _write_reported(reported: RuleStatus) -> dict[str, Any]:
    found = {name: getattr(reported, name) for name in _REPORTED_FIELDS}
    applied = f"{reported.buckets}/{reported.of}" if reported.of else ""
    return {**{n: v for n, v in found.items() if v is not None}, "applied": applied}


def _digests(
    generation: int, conditions: tuple[Condition, ...], reported: RuleStatus | None, accepted: int
) -> tuple[str, str]:
    found = {} if reported is None else {name: getattr(reported, name) for name in _REPORTED_FIELDS}
    counts = [found.pop(name, 0) for name in _COUNT_FIELDS]
    listed = [[c.type, c.status, c.reason, c.message] for c in conditions]
    return digest([generation, listed, found, accepted]), digest(counts)


def read_published(status: object, now: float) -> _PublishedRuleStatus:
    """Return what a rule's status says; anything odd counts as not shown."""
    if not isinstance(status, Mapping):
        return _NOTHING_PUBLISHED
    conditions, since = read_conditions(status, TYPES)
    if not conditions:
        return _NOTHING_PUBLISHED
    told = _read_reported(status, {c.type: c for c in conditions})
    generation, accepted = status.get("observedGeneration"), status.get("accepted")
    runs = accepted.get("generation") if isinstance(accepted, Mapping) else 0
    content, counts = _digests(
        generation if isinstance(generation, int) else 0,
        tuple(conditions),
        told,
        runs if isinstance(runs, int) else 0,
    )
    return _PublishedRuleStatus(content=content, counts=counts, since=since, reported=told, at=now)


def _read_reported(
    status: Mapping[str, Any], conditions: Mapping[str, Condition]
) -> RuleStatus | None:
    active, accepted = conditions.get("Active"), conditions.get("Accepted")
    if active is None or accepted is None or active.reason == "NotHeard":
        return None
    refused = accepted.message.startswith("The job refuses it: ")
    states = {"Disabled": "disabled", "Absent": "absent"}
    found = {
        **{name: status.get(name) for name in _REPORTED_FIELDS},
        "state": states.get(active.reason, "active"),
        "reason": accepted.reason if refused else "",
        "message": accepted.message.removeprefix("The job refuses it: ").rstrip(".")
        if refused
        else "",
    }
    try:
        return read_statuses(Fields({"one": found}))["one"]
    except ManifestError:
        return None
