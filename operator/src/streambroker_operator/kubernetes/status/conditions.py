"""Status of a resource: the desired conditions, and whether they are already published.

- A status contains only facts that a user can act on, and nothing that changes with each version.
- An unchanged status is not written. A condition keeps the time of its last transition.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, TypeAlias, TypedDict

from streambroker_core.board import Status
from streambroker_core.board.wait_cycles import RING
from streambroker_core.errors import ManifestError
from streambroker_core.model import Durability, Export, Import, Resource
from streambroker_core.model.properties import Value
from streambroker_core.wire.encoding.canonical import JsonObject, digest
from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.manifests.ports import write_spec
from streambroker_core.wire.reports.schema_status import (
    NO_VERSION,
    SchemaStatus,
    read_schema_status,
    write_schema_status,
)
from streambroker_core.wire.reports.storage_status import StorageStatus, stored_state
from streambroker_operator.kubernetes.client.http_api import object_at
from streambroker_operator.kubernetes.client.objects import MAX_MESSAGE

MANAGER = "streambroker-status"
"""Field manager of the status for server-side apply."""
MAX_SUMMARY = 60
"""Characters of the summary that ``kubectl get`` shows."""

ConditionStatus: TypeAlias = Literal["True", "False", "Unknown"]

ConditionTime: TypeAlias = tuple[str, str, str]
"""Type and status of a condition, and the time of its last transition."""

_TYPES = (
    *("Accepted", "Matched", "Programmed", "Ready", "Held", "Steered", "Ended", "InRing"),
    *("Damaged", "Stored"),
)
_CONDITION_STATUSES: Mapping[str, ConditionStatus] = {"True": "True", "False": "False"}
_CONDITION_FIELDS = ("type", "status", "reason", "message")
_VALID_REASONS = ("PortTaken", "StreamIdTaken")
"""Reasons why a resource with a valid spec is not accepted."""
_UNQUOTED = re.compile(r"[^\s\"'\[\]=]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition, without the time of its last transition."""

    type: str
    status: ConditionStatus
    reason: str
    message: str = ""


class ConditionBody(TypedDict):
    """A condition in API form."""

    type: str
    status: ConditionStatus
    reason: str
    message: str
    observedGeneration: int
    lastTransitionTime: str


class AcceptedBody(TypedDict):
    """The last accepted generation in API form."""

    generation: int
    spec: JsonObject


class StatusBody(TypedDict, total=False):
    """Status of a port or a rule in API form, as far as brokers write it."""

    observedGeneration: int
    conditions: Sequence[ConditionBody]
    accepted: AcceptedBody
    matches: int
    topMatches: Sequence[str]
    summary: str
    schemaVersion: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredStatus:
    """Desired status of a resource.

    Attributes:
        generation: the evaluated generation.
        conditions: in the order of `_TYPES`, each at most once.
        top_matches: ports at the other ends of the first ten routes.
        summary: offer or subscription, at most `MAX_SUMMARY` characters.
        accepted: the last accepted version of the resource; None if there is none.
        schema: version of an Export's columns.
    """

    generation: int
    conditions: tuple[Condition, ...]
    matches: int = 0
    top_matches: tuple[str, ...] = ()
    summary: str = ""
    accepted: Resource | None = None
    schema: SchemaStatus = NO_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedStatus:
    """The parts of a published status that the next status depends on.

    Twenty thousand of these are kept, so the texts themselves are not.

    Attributes:
        content: digest of the content of a `DesiredStatus`; empty if nothing is published.
        routes: digest of generation and matches, which `Programmed` refers to.
        since: type, status and last transition time of each condition.
        nearest: generation and message of a `Matched` condition with reason `NoMatch`.
        damaged: message of `Damaged`; empty without that condition.
        stored: the condition `Stored`, None without it.
        accepted: the last accepted generation; 0 for none.
        schema: version of an Export's columns.
    """

    content: str = ""
    routes: str = ""
    since: tuple[ConditionTime, ...] = ()
    programmed: Condition | None = None
    nearest: tuple[int, str] = (0, "")
    damaged: str = ""
    stored: Condition | None = None
    accepted: int = 0
    schema: SchemaStatus = NO_VERSION

    @property
    def ended(self) -> bool:
        """Whether the status reports that the export has ended."""
        return any((name, status) == ("Ended", "True") for name, status, _ in self.since)


NOTHING_PUBLISHED = PublishedStatus()
_ENDED_CONDITION = Condition(
    type="Ended",
    status="True",
    reason="Finished",
    message="Its program has finished the stream, and no more rows follow.",
)
_HELD_CONDITION = Condition(
    type="Held",
    status="True",
    reason="EarlierUnknown",
    message="The generation accepted before is not known: agents keep their current routes.",
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
    storage: StorageStatus | None = None,
    schema: SchemaStatus | None = None,
    nearest: str | None = None,
) -> DesiredStatus:
    """Return the desired status of a readable resource.

    For `programmed`, `ended`, `damaged`, `storage` and `schema` None means that an agent has not
    reported yet, for `nearest` that it is not computed yet. Then the published value stays: that of
    `programmed` only for the same routes, that of `nearest` only for the same generation.
    `steered` is the text about fields set at run time, or None.
    """
    accepted = accepted_condition(status)
    if nearest is None:
        nearest = published.nearest[1] if published.nearest[0] == resource.generation else ""
    matched = _matched_condition(resource, status, nearest)
    peers = tuple(str(peer) for peer in status.peers)
    routes = _routes_digest(resource.generation, status.matches, peers)
    runs = status.accepted or status.running_generation is not None
    if not runs or matched.status != "True":
        programmed = false_condition("Programmed", "NoMatch" if runs else "NotAccepted")
    elif programmed is None:
        programmed = _retained_programmed(published, routes)
    conditions = [accepted, matched, programmed, ready_condition((accepted, matched, programmed))]
    if status.held:
        conditions.append(_HELD_CONDITION)
    if steered:
        conditions.append(true_condition("Steered", "Steered", steered))
    if runs and (published.ended if ended is None else ended):
        conditions.append(_ENDED_CONDITION)
    if status.ring:
        conditions.append(
            true_condition("InRing", RING, f"{status.ring[:1].upper()}{status.ring[1:]}")
        )
    damaged = published.damaged if damaged is None else damaged
    if runs and damaged:
        conditions.append(true_condition("Damaged", "LogDamaged", damaged))
    if runs and isinstance(resource, Export):
        stored = stored_condition(resource.durability, storage, published)
        conditions += [] if stored is None else [stored]
        schema = published.schema if schema is None else schema
    else:
        schema = None
    rejected = resource.rejected
    valid = status.reason in _VALID_REASONS or published.accepted == resource.generation
    return DesiredStatus(
        generation=resource.generation if rejected is None else rejected.generation,
        conditions=tuple(conditions),
        matches=status.matches,
        top_matches=peers,
        summary=summarise(resource),
        accepted=resource if runs or valid else None,
        schema=schema or NO_VERSION,
    )


def unreadable_status(
    generation: int, reason: str, message: str, *, is_held: bool = False
) -> DesiredStatus:
    """Return the desired status of an unreadable resource.

    `reason` is a code such as ``PropertyInvalid``; `message` is a sentence with the location of the
    problem. `is_held` means that agents keep its routes.
    """
    rejected = Status(accepted=False, reason=reason, message=message)
    accepted = accepted_condition(rejected)
    matched, programmed = (
        false_condition(name, "NotAccepted") for name in ("Matched", "Programmed")
    )
    conditions = (accepted, matched, programmed)
    held = (_HELD_CONDITION,) if is_held else ()
    return DesiredStatus(
        generation=generation, conditions=(*conditions, ready_condition(conditions), *held)
    )


def status_to_write(
    desired: DesiredStatus, published: PublishedStatus, now: float
) -> StatusBody | None:
    """Return the status to write at `now` (seconds since 1970); None if it is already published."""
    if (
        _digest(desired, desired.accepted.generation if desired.accepted else 0)
        == published.content
    ):
        return None
    body: StatusBody = {
        "observedGeneration": desired.generation,
        "conditions": write_conditions(
            desired.conditions, published.since, now, desired.generation
        ),
        "matches": desired.matches,
        "topMatches": list(desired.top_matches),
        "summary": desired.summary,
    }
    version = write_schema_status(desired.schema)
    if version is not None:
        body["schemaVersion"] = version
    resource = desired.accepted
    if resource is None:
        return body
    return {**body, "accepted": {"generation": resource.generation, "spec": write_spec(resource)}}


def without_version(status: StatusBody) -> StatusBody:
    """Return a status without the version of the columns."""
    body = status.copy()
    del body["schemaVersion"]
    return body


def write_conditions(
    conditions: Sequence[Condition], published: Sequence[ConditionTime], now: float, generation: int
) -> list[ConditionBody]:
    """Return conditions in API form, each with its last transition time or `now` (since 1970)."""
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
    status: object, types: Sequence[str]
) -> tuple[tuple[Condition, ...], tuple[ConditionTime, ...]]:
    """Return the conditions of some types, in the order of `types`, and their times."""
    items = object_at(status).get("conditions")
    own = {
        str(item.get("type")): item
        for item in (items if isinstance(items, list) else [])
        if isinstance(item, Mapping)
    }
    ordered = [own[name] for name in types if name in own]
    conditions = tuple(
        _read_condition(*(str(item.get(field, "")) for field in _CONDITION_FIELDS))
        for item in ordered
    )
    times = [sys.intern(str(item.get("lastTransitionTime", ""))) for item in ordered]
    since = ((c.type, c.status, time) for c, time in zip(conditions, times, strict=True))
    return conditions, tuple(since)


def read_published(status: object) -> PublishedStatus:
    """Parse a published status; invalid or missing content counts as not published."""
    conditions, since = read_conditions(status, _TYPES)
    if not conditions:
        return NOTHING_PUBLISHED
    body = object_at(status)
    facts = DesiredStatus(
        generation=to_int(body.get("observedGeneration")),
        conditions=conditions,
        matches=to_int(body.get("matches")),
        top_matches=tuple(str(name) for name in body.get("topMatches") or ()),
        summary=str(body.get("summary") or ""),
        schema=_read_schema(body),
    )
    accepted_generation = to_int(object_at(status, "accepted").get("generation"))
    return PublishedStatus(
        accepted=accepted_generation,
        schema=facts.schema,
        content=_digest(facts, accepted_generation),
        routes=_routes_digest(facts.generation, facts.matches, facts.top_matches),
        since=since,
        programmed=next((c for c in conditions if c.type == "Programmed"), None),
        damaged=next((c.message for c in conditions if c.type == "Damaged"), ""),
        stored=next((c for c in conditions if c.type == "Stored"), None),
        nearest=next(
            (
                (facts.generation, c.message)
                for c in conditions
                if (c.type, c.reason) == ("Matched", "NoMatch")
            ),
            (0, ""),
        ),
    )


def _read_schema(status: Mapping[str, Any]) -> SchemaStatus:
    try:
        return read_schema_status(Fields(status))
    except ManifestError:
        return NO_VERSION


def summarise(resource: Resource) -> str:
    """Return the offer or subscription of a resource in at most `MAX_SUMMARY` characters."""
    if isinstance(resource, Import):
        return _subscription_text(resource)
    if resource.stream_id is not None:
        return _shorten(f"stream {resource.stream_id}")
    return _offer_text(resource)


def format_time(now: float) -> str:
    """Return a time in the format of conditions: UTC, whole seconds."""
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# ---- conditions ----------------------------------------------------------


def true_condition(type_: str, reason: str, message: str = "") -> Condition:
    """Return a true condition; a long message is truncated."""
    return Condition(type=type_, status="True", reason=reason, message=truncate(message))


def false_condition(type_: str, reason: str, message: str = "") -> Condition:
    """Return a false condition; a long message is truncated."""
    return Condition(type=type_, status="False", reason=reason, message=truncate(message))


def accepted_condition(status: Status) -> Condition:
    """Return `Accepted` as the board has decided."""
    condition = true_condition("Accepted", status.reason, status.message)
    return condition if status.accepted else replace(condition, status="False")


def stored_condition(
    durability: Durability, storage: StorageStatus | None, published: PublishedStatus
) -> Condition | None:
    """Return `Stored`, None without it; without a report what is published stays."""
    if storage is None:
        return published.stored
    state = stored_state(storage, durability)
    if state is None:
        return None
    condition = true_condition("Stored", state.reason, state.message)
    return condition if state.is_stored else replace(condition, status="False")


def _matched_condition(resource: Resource, status: Status, nearest: str) -> Condition:
    if not status.accepted and status.running_generation is None:
        return false_condition("Matched", "NotAccepted")
    message = _refusals_text(status)
    if status.matches:
        return true_condition("Matched", "Matched", message)
    if status.refused:
        reason = status.refused[0].reason
    elif isinstance(resource, Import) and resource.subscription is None and not resource.streams:
        reason, message = "NothingWanted", "It has neither a subscription nor streams."
    else:
        reason, message = "NoMatch", nearest
    return false_condition("Matched", reason, message)


def _refusals_text(status: Status) -> str:
    if not status.refused:
        return ""
    first, remaining = status.refused[0], len(status.refused) - 1
    suffix = f" ({remaining} more)" if remaining else ""
    return f"{first.export} is refused, {first.reason}: {first.message}{suffix}"


def ready_condition(conditions: Sequence[Condition]) -> Condition:
    """Return `Ready`, with reason and message of the first condition that is not true."""
    for condition in conditions:
        if condition.status != "True":
            return replace(condition, type="Ready")
    return true_condition("Ready", "Ready")


def _retained_programmed(published: PublishedStatus, routes: str) -> Condition:
    condition = published.programmed
    if condition is not None and published.routes == routes and condition.reason != "NoAgent":
        return condition
    return Condition(
        type="Programmed",
        status="Unknown",
        reason="NotHeard",
        message="Not all agents have reported since the broker started.",
    )


def truncate(message: str) -> str:
    """Return a message shortened to the length that the API server accepts."""
    return _shorten(message, MAX_MESSAGE)


# ---- comparison ----------------------------------------------------------


def _digest(desired: DesiredStatus, accepted: int) -> str:
    """Return the digest of a status; the accepted spec is represented by its generation."""
    return digest(
        [
            accepted,
            desired.generation,
            condition_values(desired.conditions),
            desired.matches,
            desired.top_matches,
            desired.summary,
            write_schema_status(desired.schema),
        ]
    )


def condition_values(conditions: Iterable[Condition]) -> list[list[str]]:
    """Return conditions as lists, for a digest."""
    return [[getattr(condition, field) for field in _CONDITION_FIELDS] for condition in conditions]


def _routes_digest(generation: int, matches: int, names: Sequence[str]) -> str:
    return digest([generation, matches, names])


@lru_cache(maxsize=256)
def _read_condition(type_: str, status: str, reason: str, message: str) -> Condition:
    """Return a cached condition: thousands of resources share a few."""
    known = _CONDITION_STATUSES.get(status, "Unknown")
    return Condition(type=sys.intern(type_), status=known, reason=reason, message=message)


def to_int(value: object) -> int:
    """Return a whole number; 0 for any other value."""
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
    """Return as many items as fit, and the number of the others."""
    for count in range(min(len(items), MAX_SUMMARY // 2), 0, -1):
        omitted = len(items) - count
        text = " ".join(items[:count]) + (f" +{omitted}" if omitted else "")
        if len(text) <= MAX_SUMMARY:
            return text
    suffix = f" +{len(items) - 1}" if len(items) > 1 else ""
    return _shorten(items[0], MAX_SUMMARY - len(suffix)) + suffix if items else ""


def _value_text(value: Value) -> str:
    if isinstance(value, list):
        return "[" + " ".join(_value_text(item) for item in value) + "]"
    if isinstance(value, str):
        return value if _UNQUOTED.fullmatch(value) else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)


def _shorten(text: str, most: int = MAX_SUMMARY) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
