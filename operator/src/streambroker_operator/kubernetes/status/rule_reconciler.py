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
    Event,
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
from streambroker_core.wire.reports.rule_status import ToldRule, ToldRules, read_told
from streambroker_operator.kubernetes.status.conditions import (
    Condition,
    conditions_out,
    cut,
    read_conditions,
    ready,
)
from streambroker_operator.kubernetes.status.events import ShownConditions
from streambroker_operator.kubernetes.status.writer import Name, StatusWrite
from streambroker_operator.runtime.rules import ToldByAgents

COUNTS_S = 60.0
"""How old counts may become in a status of which nothing else has changed, in seconds."""
TYPES = ("Accepted", "Active", "Ready")
_TOLD = ("version", "scheduled", "since", "buckets", "of", "matches", "errors")
_COUNTS = ("matches", "errors")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """What stands in a status.

    Attributes:
        content: digest of all but the counts.
        counts: digest of them.
        since: of each condition: type, status, time of its last transition.
        told: what it says of the job's rule.
        at: when it was written from here, or seen first (monotonic).
    """

    content: str = ""
    counts: str = ""
    since: tuple[tuple[str, str, str], ...] = ()
    told: ToldRule | None = None
    at: float = 0.0

    def status_of(self, condition: str) -> str | None:
        """Return the status of a condition; None where it is not shown."""
        return next((status for name, status, _ in self.since if name == condition), None)


_NOTHING = _Shown()
Written: TypeAlias = "Callable[[StatusWrite, ShownConditions, Mapping[str, Any]], None]"


class RuleStatuses:
    """What the status writer asks of rules, and tells.

    All methods are called on the board's event loop.

    Args:
        board: read, never changed.
        offer: asks the writer to look at a status; the second argument says whether urgently.
        written: told of a status that was just written, of what stood there, and of what does.
        clock: seconds since 1970.
        monotonic: seconds of a clock that nobody sets.
    """

    def __init__(
        self,
        board: Board,
        offer: Callable[[Name, bool], None],
        *,
        written: Written = lambda *_: None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rules, self._offer = board.rules, offer
        self._clock, self._monotonic = clock, monotonic
        self._told = ToldByAgents(board.rules)
        self._shown: dict[str, _Shown] = {}
        self._answered: dict[str, int] = {}
        # Whose counts alone have changed, and when they may be written.
        self._due: dict[str, float] = {}
        self._drawn: dict[str, _Shown] = {}
        self._tell = written

    # ---- what comes in ---------------------------------------------------

    def look(self, body: Mapping[str, Any], listed: bool) -> None:
        """Take in a whole rule as the API server has it, by a list or by the watch.

        What the watch tells of the time before an answer to a write is passed over.
        """
        uid, version = str(body["metadata"]["uid"]), int(body["metadata"]["resourceVersion"])
        if not listed and version < self._answered.get(uid, 0):
            return
        self._answered.pop(uid, None)
        before, found = self._shown.get(uid), read_shown(body.get("status"), self._monotonic())
        if before is None or (before.content, before.counts) != (found.content, found.counts):
            self._shown[uid] = found
        if before is not None and before.content != found.content:
            self._offer((RULE, uid), False)

    def followed(self, event: Event, actions: Iterable[Action]) -> None:
        """Take in what an event has done to the board, and have looked at what it concerns."""
        uids = {a.uid for a in actions if isinstance(a, StatusChanged) and a.kind == RULE}
        if isinstance(event, RuleApplied):
            uids.add(event.rule.uid)
        if isinstance(event, Unreadable) and event.kind == RULE:
            uids.add(event.uid)
        if isinstance(event, RuleRemoved):
            self._forget((event.uid,))
        if isinstance(event, PeWithdrawn):
            self.heard(event.pe, {})
        if isinstance(event, Synced) and event.kind == RULE:
            self._forget_unlisted(event)
            uids |= set(self._rules.shelf.uids())
        for uid in uids:
            self.offer(uid)

    def _forget_unlisted(self, event: Synced) -> None:
        there = {rule.uid for rule, _ in event.listed} | {what.uid for what in event.unreadable}
        self._forget(self._shown.keys() - there)

    def _forget(self, uids: Iterable[str]) -> None:
        for known in (self._shown, self._answered, self._due, self._drawn):
            for uid in uids:
                known.pop(uid, None)

    def heard(self, pe: PeKey, told: ToldRules, more: bool = False) -> None:
        """Take in what an agent says of its job's rules, and have looked at what says else.

        Args:
            pe: whose agent.
            told: what it says.
            more: whether it has said something of others before.
        """
        for name in self._told.take(pe, told, more=more):
            rule = self._rules.at(RuleKey(pe.namespace, pe.job, name))
            if rule is not None:
                self.offer(rule.uid)

    def listen(self) -> None:
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
        for uid in list(self._rules.shelf.uids()):
            self.offer(uid)

    # ---- what goes out ---------------------------------------------------

    def shows(self, uid: str) -> ToldRule | None:
        """Return what a status says of the job's rule, the same at every replica."""
        return self._shown.get(uid, _NOTHING).told

    def draw(self, uid: str) -> StatusWrite | None:
        """Return what is to be written now; None where it stands there, or the rule is gone."""
        rule, unread = self._rules.get(uid), self._rules.unreadable(uid)
        status: Status | None = None
        told: ToldRule | None = None
        if unread is not None:
            namespace, name, generation = unread.namespace, unread.name, unread.generation
            status = Status(accepted=False, reason=unread.code, message=unread.problem)
        elif rule is not None:
            namespace, name, generation = rule.key.namespace, rule_name_of(rule), rule.generation
            generation = rule.generation if rule.newer is None else rule.newer.generation
            status, told = self._rules.status(uid), self._of(rule)
        if status is None:
            return None
        runs = status.accepted or status.runs is not None or status.reason == "IdTaken"
        found = self._written(uid, generation, status, told, rule if runs else None)
        if found is None:
            return None
        self._drawn[uid] = self._shown.get(uid, _NOTHING)
        return StatusWrite(kind=RULE, namespace=namespace, name=name, uid=uid, status=found)

    def _of(self, rule: Rule) -> ToldRule | None:
        """Return what is told of a rule; while nobody has told here, what is shown stays."""
        holder = self._rules.at(rule.key)
        if holder is None or holder.uid != rule.uid:
            return None
        told = self._told.of(rule.key)
        return self.shows(rule.uid) if told is None else told

    def _written(
        self,
        uid: str,
        generation: int,
        status: Status,
        told: ToldRule | None,
        accepted: Rule | None,
    ) -> dict[str, Any] | None:
        shown, now = self._shown.get(uid, _NOTHING), self._monotonic()
        conditions = conditions_of(status, told)
        runs = 0 if accepted is None else accepted.generation
        content, counts = _digests(generation, conditions, told, runs)
        self._due.pop(uid, None)
        if content == shown.content and counts == shown.counts:
            return None
        if content == shown.content and now - shown.at < COUNTS_S:
            # Maybe nobody tells of it any more.
            self._due[uid] = shown.at + COUNTS_S
            return None
        body: dict[str, Any] = {
            "observedGeneration": generation,
            "conditions": conditions_out(conditions, shown.since, self._clock(), generation),
        }
        if accepted is not None:
            body["accepted"] = {"generation": runs, "spec": write_rule_spec(accepted)}
        return body if told is None else {**body, **_told_out(told)}

    def wrote(self, write: StatusWrite, answer: Mapping[str, Any]) -> None:
        """Take in the rule as the API server has it after a write."""
        metadata, before = answer.get("metadata"), self._drawn.pop(write.uid, _NOTHING)
        there = self._rules.get(write.uid) or self._rules.unreadable(write.uid)
        if not isinstance(metadata, Mapping) or metadata.get("uid") != write.uid or there is None:
            return
        self._answered[write.uid] = int(metadata["resourceVersion"])
        self._shown[write.uid] = read_shown(answer.get("status"), self._monotonic())
        self._tell(write, before, write.status)


def conditions_of(status: Status, told: ToldRule | None) -> tuple[Condition, ...]:
    """Return the conditions of a rule, by what the broker and what the job say of it."""
    accepted = _accepted(status, told)
    active = _active(status, told)
    return accepted, active, ready((accepted, active))


def _accepted(status: Status, told: ToldRule | None) -> Condition:
    if not status.accepted:
        message = cut(status.message)
        return Condition(type="Accepted", status="False", reason=status.reason, message=message)
    if told is not None and told.reason:
        message = cut(f"The job refuses it: {told.message}.")
        return Condition(type="Accepted", status="False", reason=told.reason, message=message)
    return Condition(type="Accepted", status="True", reason="Accepted")


def _active(status: Status, told: ToldRule | None) -> Condition:
    if told is None:
        message = "" if not status.accepted else "No query of the job has told of it yet."
        return Condition(type="Active", status="Unknown", reason="NotHeard", message=message)
    if told.version is None:
        return Condition(type="Active", status="False", reason="Absent")
    version = f"Version {told.version}"
    if told.state == "disabled":
        message = f"{version} is off after an error, until a new version or an enabling."
        return Condition(type="Active", status="False", reason="Disabled", message=message)
    if told.since is None:
        message = f"{version} is on its way to the query."
        return Condition(type="Active", status="False", reason="Pending", message=message)
    told_later = "" if told.scheduled is None else f"; version {told.scheduled} waits for its time"
    message = f"{version} since window {told.since}{told_later}."
    return Condition(type="Active", status="True", reason="Active", message=message)


def _told_out(told: ToldRule) -> dict[str, Any]:
    found = {name: getattr(told, name) for name in _TOLD}
    applied = f"{told.buckets}/{told.of}" if told.of else ""
    return {**{n: v for n, v in found.items() if v is not None}, "applied": applied}


def _digests(
    generation: int, conditions: tuple[Condition, ...], told: ToldRule | None, accepted: int
) -> tuple[str, str]:
    found = {} if told is None else {name: getattr(told, name) for name in _TOLD}
    counts = [found.pop(name, 0) for name in _COUNTS]
    listed = [[c.type, c.status, c.reason, c.message] for c in conditions]
    return digest([generation, listed, found, accepted]), digest(counts)


def read_shown(status: object, now: float) -> _Shown:
    """Return what a rule's status says; anything odd counts as not shown."""
    if not isinstance(status, Mapping):
        return _NOTHING
    conditions, since = read_conditions(status, TYPES)
    if not conditions:
        return _NOTHING
    told = _read_told(status, {c.type: c for c in conditions})
    generation, accepted = status.get("observedGeneration"), status.get("accepted")
    runs = accepted.get("generation") if isinstance(accepted, Mapping) else 0
    content, counts = _digests(
        generation if isinstance(generation, int) else 0,
        tuple(conditions),
        told,
        runs if isinstance(runs, int) else 0,
    )
    return _Shown(content=content, counts=counts, since=since, told=told, at=now)


def _read_told(status: Mapping[str, Any], conditions: Mapping[str, Condition]) -> ToldRule | None:
    active, accepted = conditions.get("Active"), conditions.get("Accepted")
    if active is None or accepted is None or active.reason == "NotHeard":
        return None
    refused = accepted.message.startswith("The job refuses it: ")
    states = {"Disabled": "disabled", "Absent": "absent"}
    found = {
        **{name: status.get(name) for name in _TOLD},
        "state": states.get(active.reason, "active"),
        "reason": accepted.reason if refused else "",
        "message": accepted.message.removeprefix("The job refuses it: ").rstrip(".")
        if refused
        else "",
    }
    try:
        return read_told(Fields({"one": found}))["one"]
    except ManifestError:
        return None
