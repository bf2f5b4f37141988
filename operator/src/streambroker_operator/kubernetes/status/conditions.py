"""The status of a resource: what has to stand there, and whether it stands there already.

Rule 1: only facts that a user can act on are told; nothing that moves with every version.
Rule 2: what says the same as before is not written, and a condition keeps the time at which its
status last changed.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from streambroker_core.board import Status
from streambroker_core.board.wait_cycles import RING
from streambroker_core.model import Export, Import, Resource
from streambroker_core.model.properties import Value
from streambroker_core.wire.encoding.canonical import digest
from streambroker_core.wire.manifests.ports import write_spec

MANAGER = "streambroker-status"
"""Who owns these fields, for server-side apply."""
MAX_MESSAGE = 1000
"""Characters of a message; the API server refuses a status with more than 2,048 as a whole."""
MAX_SUMMARY = 60
"""Characters of the line that ``kubectl get`` shows."""

ConditionStatus: TypeAlias = Literal["True", "False", "Unknown"]

ConditionTime: TypeAlias = tuple[str, str, str]
"""Type and status of a condition, and since when it has that."""

_TYPES = (
    *("Accepted", "Matched", "Programmed", "Ready", "Held", "Steered", "Ended", "InRing"),
    "Damaged",
)
_CONDITION_STATUSES: Mapping[str, ConditionStatus] = {"True": "True", "False": "False"}
_VALID_REASONS = ("PortTaken", "StreamIdTaken")
"""Reasons for which a resource is not accepted although its spec is valid."""
_UNQUOTED = re.compile(r"[^\s\"'\[\]=]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition, without the time of its last transition."""

    type: str
    status: ConditionStatus
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredStatus:
    """What there is to tell of a resource.

    Attributes:
        generation: the one that was looked at.
        conditions: in the order of `_TYPES`, each at most once.
        matches: how many routes there are.
        top_matches: the first ten ports at their other ends.
        summary: what it offers or wants, at most `MAX_SUMMARY` characters.
        accepted: the resource as it was accepted last; None if it never was.
    """

    generation: int
    conditions: tuple[Condition, ...]
    matches: int = 0
    top_matches: tuple[str, ...] = ()
    summary: str = ""
    accepted: Resource | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedStatus:
    """What stands in a resource's status, as far as the next one depends on it.

    Twenty thousand of these are kept, so the texts themselves are not.

    Attributes:
        content: digest of all that `DesiredStatus` say; empty where nothing is shown.
        routes: digest of generation and matches, which `Programmed` is about.
        since: of each condition: type, status, time of its last transition.
        programmed: that condition, or None.
        nearest: generation and message of a `Matched` that is false for `NoMatch`.
        damaged: message of `Damaged`; empty where that is not there.
        accepted: the generation that was accepted last; 0 for none.
    """

    content: str = ""
    routes: str = ""
    since: tuple[ConditionTime, ...] = ()
    programmed: Condition | None = None
    nearest: tuple[int, str] = (0, "")
    damaged: str = ""
    accepted: int = 0

    @property
    def ended(self) -> bool:
        """Whether it says that the export has ended."""
        return self.condition_status("Ended") == "True"

    def condition_status(self, condition: str) -> str | None:
        """Return the status of a condition; None where it is not shown."""
        return next((status for name, status, _ in self.since if name == condition), None)


NOTHING_PUBLISHED = PublishedStatus()
_ENDED_CONDITION = Condition(
    type="Ended",
    status="True",
    reason="Finished",
    message="Its program has said that nothing will follow, and nothing has.",
)
_HELD_CONDITION = Condition(
    type="Held",
    status="True",
    reason="EarlierUnknown",
    message="It is not known which generation was accepted before: agents keep the routes that they"
    " have.",
)


def desired_status(
    resource: Resource,
    status: Status,
    *,
    programmed: Condition | None,
    published: PublishedStatus = NOTHING_PUBLISHED,
    steered: str | None = None,
    ended: bool | None = False,
    damaged: str | None = "",
    nearest: str | None = None,
) -> DesiredStatus:
    """Return what there is to tell of a resource that can be read.

    Args:
        resource: as the board has it.
        status: what the board says of it.
        programmed: whether the agents run it; None while some have not been heard of yet. Then
            what is shown stays, if it is about the same routes.
        published: what stands there.
        steered: which fields are set at run time and by whom, or None.
        ended: whether its agent says that it has ended; None while it was not asked yet. Then
            what is shown stays.
        damaged: what its agent says to be damaged of its log; None while it was not asked yet. Then
            what is shown stays.
        nearest: the sentence about a resource that matches nothing; None while it is not known.
            Then the sentence of the same generation that is shown stays.
    """
    accepted = _accepted_condition(status)
    if nearest is None:
        nearest = published.nearest[1] if published.nearest[0] == resource.generation else ""
    matched = _matched_condition(resource, status, nearest)
    routes = _routes_digest(resource.generation, status.matches, _peer_names(status))
    runs = status.accepted or status.running_generation is not None
    if not runs or matched.status != "True":
        reason = "NoMatch" if runs else "NotAccepted"
        programmed = Condition(type="Programmed", status="False", reason=reason)
    elif programmed is None:
        programmed = _retained_programmed(published, routes)
    found = [accepted, matched, programmed, ready_condition((accepted, matched, programmed))]
    if status.held:
        found.append(_HELD_CONDITION)
    if steered:
        found.append(_true_condition("Steered", "Steered", steered))
    if runs and (published.ended if ended is None else ended):
        found.append(_ENDED_CONDITION)
    if status.ring:
        found.append(_true_condition("InRing", RING, f"{status.ring[:1].upper()}{status.ring[1:]}"))
    damaged = published.damaged if damaged is None else damaged
    if runs and damaged:
        found.append(_true_condition("Damaged", "LogDamaged", damaged))
    newer = resource.rejected
    valid = status.reason in _VALID_REASONS or published.accepted == resource.generation
    return DesiredStatus(
        generation=resource.generation if newer is None else newer.generation,
        conditions=tuple(found),
        matches=status.matches,
        top_matches=_peer_names(status),
        summary=summarise(resource),
        accepted=resource if runs or valid else None,
    )


def unreadable_status(
    generation: int, reason: str, message: str, *, is_held: bool = False
) -> DesiredStatus:
    """Return what there is to tell of a resource that cannot be read.

    Args:
        generation: of the resource.
        reason: the word of the problem, such as ``PropertyInvalid``.
        message: a sentence that says where the fault is.
        is_held: agents keep the routes that they have of it.
    """
    refused = Status(accepted=False, reason=reason, message=message)
    accepted = _accepted_condition(refused)
    matched = Condition(type="Matched", status="False", reason="NotAccepted")
    programmed = Condition(type="Programmed", status="False", reason="NotAccepted")
    found = (accepted, matched, programmed)
    more = (_HELD_CONDITION,) if is_held else ()
    return DesiredStatus(generation=generation, conditions=(*found, ready_condition(found), *more))


def status_to_write(
    desired: DesiredStatus, published: PublishedStatus, now: float
) -> dict[str, Any] | None:
    """Return the status to write; None where it stands there already.

    Args:
        desired: what there is to tell.
        published: what stands there.
        now: seconds since 1970, UTC.
    """
    if (
        _digest(desired, desired.accepted.generation if desired.accepted else 0)
        == published.content
    ):
        return None
    body = {
        "observedGeneration": desired.generation,
        "conditions": write_conditions(
            desired.conditions, published.since, now, desired.generation
        ),
        "matches": desired.matches,
        "topMatches": list(desired.top_matches),
        "summary": desired.summary,
    }
    resource = desired.accepted
    if resource is None:
        return body
    accepted = {"generation": resource.generation, "spec": write_spec(resource)}
    return {**body, "accepted": accepted}


def write_conditions(
    conditions: Sequence[Condition], published: Sequence[ConditionTime], now: float, generation: int
) -> list[dict[str, Any]]:
    """Return conditions to write, each with the time at which its status last changed.

    Args:
        conditions: what there is to tell.
        published: those that stand there.
        now: seconds since 1970, UTC.
        generation: of the resource, which the conditions are about.
    """
    since = {(name, status): time for name, status, time in published}
    return [
        {
            "type": condition.type,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message,
            "observedGeneration": generation,
            "lastTransitionTime": since.get((condition.type, condition.status), format_time(now)),
        }
        for condition in conditions
    ]


def read_conditions(
    status: Mapping[str, Any], types: Sequence[str]
) -> tuple[tuple[Condition, ...], tuple[ConditionTime, ...]]:
    """Return those conditions of a status that are of some types, in their order, and their times.

    Args:
        status: as the API server has it.
        types: whose order it is.
    """
    items = status.get("conditions")
    own = {
        str(item.get("type")): item
        for item in (items if isinstance(items, list) else [])
        if isinstance(item, Mapping)
    }
    ordered = [own[name] for name in types if name in own]
    conditions = tuple(_read_condition(item) for item in ordered)
    times = [sys.intern(str(item.get("lastTransitionTime", ""))) for item in ordered]
    since = ((c.type, c.status, time) for c, time in zip(conditions, times, strict=True))
    return conditions, tuple(since)


def read_published(status: object) -> PublishedStatus:
    """Return what a resource's status says of the facts; anything odd counts as not shown.

    Args:
        status: as the API server has it, or None.
    """
    if not isinstance(status, Mapping):
        return NOTHING_PUBLISHED
    conditions, since = read_conditions(status, _TYPES)
    if not conditions:
        return NOTHING_PUBLISHED
    accepted = status.get("accepted")
    accepted = accepted if isinstance(accepted, Mapping) else {}
    facts = DesiredStatus(
        generation=_to_int(status.get("observedGeneration")),
        conditions=conditions,
        matches=_to_int(status.get("matches")),
        top_matches=tuple(str(name) for name in status.get("topMatches") or ()),
        summary=str(status.get("summary") or ""),
    )
    last = _to_int(accepted.get("generation"))
    return PublishedStatus(
        accepted=last,
        content=_digest(facts, last),
        routes=_routes_digest(facts.generation, facts.matches, facts.top_matches),
        since=since,
        programmed=next((c for c in conditions if c.type == "Programmed"), None),
        damaged=next((c.message for c in conditions if c.type == "Damaged"), ""),
        nearest=next(
            ((facts.generation, c.message) for c in conditions if is_unmatched(c)), (0, "")
        ),
    )


def is_unmatched(condition: Condition) -> bool:
    """Return whether a condition is the `Matched` of a resource that nothing fits."""
    return condition.type == "Matched" and condition.reason == "NoMatch"


def summarise(resource: Resource) -> str:
    """Return what a resource offers or wants, in one line of at most `MAX_SUMMARY` characters."""
    if isinstance(resource, Import):
        return _subscription_text(resource)
    if resource.stream_id is not None:
        return _shorten(f"stream {resource.stream_id}")
    return _offer_text(resource)


def format_time(now: float) -> str:
    """Return a time as conditions carry it: UTC, whole seconds."""
    return datetime.fromtimestamp(int(now), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


# ---- conditions ----------------------------------------------------------


def _true_condition(type_: str, reason: str, message: str) -> Condition:
    return Condition(type=type_, status="True", reason=reason, message=truncate(message))


def _accepted_condition(status: Status) -> Condition:
    return Condition(
        type="Accepted",
        status="True" if status.accepted else "False",
        reason=status.reason,
        message=truncate(status.message),
    )


def _matched_condition(resource: Resource, status: Status, nearest: str) -> Condition:
    if not status.accepted and status.running_generation is None:
        return Condition(type="Matched", status="False", reason="NotAccepted")
    message = _refusals_text(status)
    if status.matches:
        return Condition(type="Matched", status="True", reason="Matched", message=message)
    if status.refused:
        reason = status.refused[0].reason
    elif isinstance(resource, Import) and resource.subscription is None and not resource.streams:
        reason, message = "NothingWanted", "It has neither a subscription nor streams."
    else:
        reason, message = "NoMatch", truncate(nearest)
    return Condition(type="Matched", status="False", reason=reason, message=message)


def _refusals_text(status: Status) -> str:
    if not status.refused:
        return ""
    first, more = status.refused[0], len(status.refused) - 1
    rest = f" ({more} more)" if more else ""
    return truncate(f"{first.export} is refused, {first.reason}: {first.message}{rest}")


def ready_condition(conditions: Sequence[Condition]) -> Condition:
    """Return `Ready`, with reason and message of the first condition that is not true."""
    for condition in conditions:
        if condition.status != "True":
            return replace(condition, type="Ready")
    return Condition(type="Ready", status="True", reason="Ready")


def _retained_programmed(published: PublishedStatus, routes: str) -> Condition:
    known = published.programmed
    if known is not None and published.routes == routes and known.reason != "NoAgent":
        return known
    return Condition(
        type="Programmed",
        status="Unknown",
        reason="NotHeard",
        message="Not all agents have been heard of since the broker started.",
    )


def truncate(message: str) -> str:
    """Return a message of a length that the API server takes."""
    return message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 1]}…"


# ---- what is compared ----------------------------------------------------


def _peer_names(status: Status) -> tuple[str, ...]:
    return tuple(str(peer) for peer in status.peers)


def _digest(desired: DesiredStatus, accepted: int) -> str:
    """Return what stands for facts; a spec needs no more than its generation."""
    return digest(
        [
            accepted,
            desired.generation,
            [[c.type, c.status, c.reason, c.message] for c in desired.conditions],
            desired.matches,
            desired.top_matches,
            desired.summary,
        ]
    )


def _routes_digest(generation: int, matches: int, names: Sequence[str]) -> str:
    return digest([generation, matches, names])


def _read_condition(item: Mapping[str, Any]) -> Condition:
    return _condition(
        str(item["type"]),
        _CONDITION_STATUSES.get(str(item.get("status")), "Unknown"),
        str(item.get("reason", "")),
        str(item.get("message", "")),
    )


@lru_cache(maxsize=256)
def _condition(name: str, status: ConditionStatus, reason: str, message: str) -> Condition:
    """Return a condition; thousands of resources share few of them."""
    return Condition(type=sys.intern(name), status=status, reason=reason, message=message)


def _to_int(value: object) -> int:
    return value if isinstance(value, int) else 0


# ---- summaries -----------------------------------------------------------


def _subscription_text(import_: Import) -> str:
    if import_.subscription is not None:
        return _shorten(" ".join(import_.subscription.split()))
    names = [
        f"{name.application_name}/{name.stream_id}" if name.application_name else name.stream_id
        for name in import_.streams
    ]
    return _join_items([f"stream {names[0]}", *names[1:]]) if names else ""


def _offer_text(export: Export) -> str:
    properties = export.properties or {}
    return _join_items([f"{name}={_value_text(properties[name])}" for name in sorted(properties)])


def _join_items(items: Sequence[str]) -> str:
    """Return as many items as fit, and how many more there are."""
    for count in range(min(len(items), MAX_SUMMARY // 2), 0, -1):
        left = len(items) - count
        text = " ".join(items[:count]) + (f" +{left}" if left else "")
        if len(text) <= MAX_SUMMARY:
            return text
    rest = f" +{len(items) - 1}" if len(items) > 1 else ""
    return _shorten(items[0], MAX_SUMMARY - len(rest)) + rest if items else ""


def _value_text(value: Value) -> str:
    if isinstance(value, list):
        return "[" + " ".join(_value_text(item) for item in value) + "]"
    if isinstance(value, str):
        return value if _UNQUOTED.fullmatch(value) else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)


def _shorten(text: str, most: int = MAX_SUMMARY) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
