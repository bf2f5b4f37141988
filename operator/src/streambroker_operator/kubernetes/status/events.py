"""Kubernetes Events: one per transition, repeated ones as a series, with rate limits.

Events are for users of ``kubectl describe``; their failures affect nothing else.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from streambroker_core.model import AnyKind, PortKey, Resource, kind_of
from streambroker_core.wire.encoding.canonical import JsonObject
from streambroker_core.wire.manifests.ports import API_VERSION
from streambroker_operator.cooperative import loop_time
from streambroker_operator.kubernetes.client.http_api import (
    ApiUnreachableError,
    HttpApi,
    micro_time,
)
from streambroker_operator.kubernetes.client.objects import MERGE
from streambroker_operator.kubernetes.status.conditions import ConditionBody, StatusBody
from streambroker_operator.kubernetes.status.writer import StatusWrite
from streambroker_operator.security.token_buckets import TokenBuckets

EventType: TypeAlias = Literal["Normal", "Warning"]

REPORTER = "streambroker.io/broker"
MAX_NOTE = 1000
"""Bytes; the API server rejects more than 1,024."""
SERIES_S = 360.0
"""Seconds after its last occurrence in which a repetition belongs to the same series."""
REFRESH_S = 30.0
"""Minimum seconds between two writes of a series."""
MAX_SERIES = 4096
MAX_AGGREGATES = 256
MAX_WAITING = 1000
PER_S = 10.0
BURST = 100
OBJECT_PER_S = 1 / 30
OBJECT_BURST = 25
TIMEOUT_S = 5.0

_API = "events.k8s.io/v1"

_log = logging.getLogger("streambroker.events")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventNote:
    """Something that happened to a resource.

    Attributes:
        reason: CamelCase reason, such as ``RouteCut``.
        action: what the broker was doing, such as ``Match``.
        series: distinguishes notes of the same resource and reason. Notes of one series become one
            Event with the first text.
    """

    kind: AnyKind
    namespace: str
    name: str
    uid: str
    reason: str
    action: str
    text: str = ""
    event_type: EventType = "Normal"
    series: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventWrite:
    """An Event to write: the whole body if `new`, otherwise the changed part."""

    namespace: str
    name: str
    body: JsonObject
    new: bool


@dataclass(slots=True)
class _AggregatedNotes:
    """Notes that exceeded the rate limit: the first one, and their number."""

    first: EventNote
    count: int


@dataclass(frozen=True, slots=True)
class _Series:
    name: str
    count: int
    last: float
    written: float


def transition_notes(write: StatusWrite) -> list[EventNote]:
    """Return the notes for transitions between the previously published and the written status."""
    notes: list[EventNote] = []
    published = {name: status for name, status, _ in write.before}
    for condition in write.status.get("conditions", ()):
        name, status = condition["type"], condition["status"]
        previous = published.get(name)
        if name not in _ACTIONS or status == "Unknown" or previous == status:
            continue
        if previous is None and (name, status) not in _FIRST_TRANSITIONS:
            continue
        reason = condition["reason"]
        if reason == "NotAccepted" or (name == "Active" and reason != "Disabled"):
            continue
        if name == "Healthy" and any(note.reason == reason for note in notes):
            continue  # `Damaged` or `Stored` has the same reason
        notes.append(
            EventNote(
                kind=write.kind,
                namespace=write.namespace,
                name=write.name,
                uid=write.uid,
                reason=reason,
                action=_ACTIONS[name],
                text=_text(condition, write.status),
                event_type="Warning" if (name, status) in _WARNINGS else "Normal",
            )
        )
    return notes


_ACTIONS = {
    "Accepted": "Accept",
    "Matched": "Match",
    "Active": "Run",
    "InRing": "Match",
    "Damaged": "Keep",
    "Stored": "Store",
    "Healthy": "Run",
}
_ALARMS = {("InRing", "True"), ("Damaged", "True"), ("Stored", "False"), ("Healthy", "False")}
_WARNINGS = {("Accepted", "False"), ("Active", "False"), *_ALARMS}
_FIRST_TRANSITIONS = {("Accepted", "False"), ("Matched", "True"), *_ALARMS}
"""Transitions that deserve an Event for a resource without a previous status."""
_SENTENCES = {
    ("Accepted", "True"): "It is accepted now.",
    ("Matched", "False"): "It is no longer connected to anything.",
    ("Stored", "True"): "Its bucket has it again.",
    ("Healthy", "True"): "It has no problem any more.",
}
_MAX_PEERS = 3
"""Number of peers that an Event names."""


def _text(condition: ConditionBody, after: StatusBody) -> str:
    transition = condition["type"], condition["status"]
    if transition != ("Matched", "True"):
        return str(condition.get("message") or _SENTENCES.get(transition, condition["reason"]))
    named = list(after.get("topMatches", ()))[:_MAX_PEERS]
    more = after.get("matches", 0) - len(named)
    return f"It is connected to {', '.join(named)}{f' and {more} more' if more > 0 else ''}."


def route_cut_note(resource: Resource, peer: PortKey, reason: str) -> EventNote:
    """Return the note that the route from a resource to a peer was cut."""
    direction = "to" if kind_of(resource) == "Export" else "from"
    text = f"The route {direction} {peer} is cut: {reason}."
    return replace(_note(resource, "RouteCut", "Match", text), series=text)


def steering_overwritten_note(resource: Resource, fields: str, owner: str) -> EventNote:
    """Return the note that a manager overwrote run-time overrides.

    `fields` is a text such as ``filter, properties.limit``.
    """
    text = f"Fields set at run time ({fields}) were overwritten by {owner}."
    return replace(_note(resource, "SteeringOverwritten", "Steer", text), event_type="Warning")


def _note(resource: Resource, reason: str, action: str, text: str) -> EventNote:
    return EventNote(
        kind=kind_of(resource),
        namespace=resource.key.namespace,
        name=resource.name,
        uid=resource.uid,
        reason=reason,
        action=action,
        text=text,
    )


class EventAggregator:
    """Converts notes to Events, with series and rate limits."""

    def __init__(self, instance: str) -> None:
        self._instance = instance[:128]
        self._series: OrderedDict[tuple[str, ...], _Series] = OrderedDict()
        self._total_rate = TokenBuckets(PER_S, BURST)
        self._object_rate = TokenBuckets(OBJECT_PER_S, OBJECT_BURST)
        self._aggregates: dict[tuple[str, ...], _AggregatedNotes] = {}
        self.dropped = 0

    def add(self, note: EventNote, now: float, wall: float) -> EventWrite | None:
        """Return the Event to write; None if the series was written recently or a limit applies.

        Beyond the total limit, `flush_aggregates` makes one Event of all notes with the same
        namespace, kind, reason and type. `now` is monotonic, `wall` in seconds since 1970.
        """
        key = (note.uid, note.reason, note.series, note.event_type)
        series = self._series.get(key)
        if series is not None and now - series.last < SERIES_S:
            return self._repeat(note, key, series, now, wall)
        if self._object_rate.take(note.uid, now):
            self.dropped += 1
            return None
        if self._total_rate.take("", now):
            self._aggregate(note)
            return None
        write = self._new_event(note, wall)
        self._store_series(key, _Series(name=write.name, count=1, last=now, written=now))
        return write

    def _repeat(
        self, note: EventNote, key: tuple[str, ...], series_so_far: _Series, now: float, wall: float
    ) -> EventWrite | None:
        counted = replace(series_so_far, count=series_so_far.count + 1, last=now)
        due = now - series_so_far.written >= REFRESH_S or counted.count == 2
        if not due or not self._is_repeat_allowed(note.uid, now):
            self._store_series(key, counted)
            return None
        self._store_series(key, replace(counted, written=now))
        series: JsonObject = {"count": counted.count, "lastObservedTime": micro_time(wall)}
        return EventWrite(
            namespace=note.namespace, name=series_so_far.name, body={"series": series}, new=False
        )

    def _aggregate(self, note: EventNote) -> None:
        key = (note.namespace, note.kind, note.reason, note.event_type)
        aggregate = self._aggregates.get(key)
        if aggregate is not None:
            aggregate.count += 1
        elif len(self._aggregates) < MAX_AGGREGATES:
            self._aggregates[key] = _AggregatedNotes(note, 1)
        else:
            self.dropped += 1

    def flush_aggregates(self, wall: float) -> list[EventWrite]:
        """Return one Event per group of notes aggregated since the last call."""
        aggregates, self._aggregates = self._aggregates, {}
        writes = []
        for aggregate in aggregates.values():
            note, more = aggregate.first, aggregate.count - 1
            if more:
                kinds = f"{note.kind}{'s' if more > 1 else ''}"
                text = f"{note.text} The same happened to {more} more {kinds} of this namespace."
                note = replace(note, text=text)
            writes.append(self._new_event(note, wall))
        return writes

    def _is_repeat_allowed(self, uid: str, now: float) -> bool:
        # Without a token of the total limit, the object keeps its own.
        if self._total_rate.wait("", now, 0) or self._object_rate.take(uid, now):
            self.dropped += 1
            return False
        self._total_rate.take("", now)
        return True

    def _store_series(self, key: tuple[str, ...], series: _Series) -> None:
        self._series[key] = series
        self._series.move_to_end(key)
        if len(self._series) > MAX_SERIES:
            self._series.popitem(last=False)

    def _new_event(self, note: EventNote, wall: float) -> EventWrite:
        identity = "\0".join((note.uid, note.reason, note.text, self._instance, str(wall)))
        suffix = hashlib.sha256(identity.encode()).hexdigest()[:16]
        name = f"{note.name[:200].rstrip('-.')}.{suffix}"
        body: JsonObject = {
            "apiVersion": _API,
            "kind": "Event",
            "metadata": {"name": name, "namespace": note.namespace},
            "eventTime": micro_time(wall),
            "type": note.event_type,
            "reason": note.reason[:128],
            "action": note.action,
            "note": _truncate(note.text),
            "regarding": {
                "apiVersion": API_VERSION,
                "kind": note.kind,
                "namespace": note.namespace,
                "name": note.name,
                "uid": note.uid,
            },
            "reportingController": REPORTER,
            "reportingInstance": self._instance,
        }
        return EventWrite(namespace=note.namespace, name=name, body=body, new=True)


class EventWriter:
    """Writes Events one at a time; failed ones are dropped."""

    def __init__(self, api: HttpApi, instance: str) -> None:
        self._api = api
        self._aggregator = EventAggregator(instance)
        self._waiting: asyncio.Queue[EventWrite] = asyncio.Queue(MAX_WAITING)
        self.writes: Counter[str] = Counter()
        """Writes by result: ``done``, ``refused`` or ``failed``."""

    def record(self, note: EventNote, wall: float) -> None:
        """Enqueue a note and return at once; `wall` is in seconds since 1970."""
        write = self._aggregator.add(note, loop_time(), wall)
        if write is not None:
            self._enqueue(write)

    def _enqueue(self, post: EventWrite) -> None:
        try:
            self._waiting.put_nowait(post)
        except asyncio.QueueFull:
            self.writes["failed"] += 1

    async def run(self) -> None:
        """Write until cancelled."""
        aggregation = asyncio.create_task(self._run_aggregation())
        try:
            while True:
                await self._write(await self._waiting.get())
                self._waiting.task_done()
        finally:
            aggregation.cancel()

    async def _run_aggregation(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            for write in self._aggregator.flush_aggregates(time.time()):
                self._enqueue(write)

    async def flush(self) -> None:
        """Wait until all enqueued Events are processed."""
        await self._waiting.join()

    async def _write(self, post: EventWrite) -> None:
        path = f"/apis/{_API}/namespaces/{post.namespace}/events"
        method, content_type = ("POST", "application/json") if post.new else ("PATCH", MERGE)
        path = path if post.new else f"{path}/{post.name}"
        try:
            response = await self._api.call(
                method, path, post.body, content_type=content_type, timeout_s=TIMEOUT_S
            )
        except ApiUnreachableError as error:
            self.writes["failed"] += 1
            self._log_failure(post, str(error))
            return
        if response.status in (200, 201):
            self.writes["done"] += 1
            return
        self.writes["failed" if response.is_overloaded else "refused"] += 1
        self._log_failure(post, f"{response.status}: {response.body.get('message', '')}")

    def _log_failure(self, post: EventWrite, reason: str) -> None:
        _log.debug("Event %s/%s was not written: %s", post.namespace, post.name, reason)


def _truncate(text: str) -> str:
    raw = text.encode()
    return text if len(raw) <= MAX_NOTE else raw[: MAX_NOTE - 3].decode(errors="ignore") + "…"
