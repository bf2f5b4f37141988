"""Kubernetes Events: one for each transition, several equal ones as a series, never too many.

An Event is for people who run ``kubectl describe``; what fails here changes nothing else.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias

from streambroker_core.model import AnyKind, PortKey, Resource, kind_of
from streambroker_core.wire.manifests.ports import API_VERSION
from streambroker_operator.kubernetes.client.http_api import Api, ApiUnreachableError, micro_time
from streambroker_operator.kubernetes.client.objects import MERGE
from streambroker_operator.kubernetes.status.writer import StatusWrite
from streambroker_operator.rest.guard.rate_limits import Buckets

Weight: TypeAlias = Literal["Normal", "Warning"]

REPORTER = "streambroker.io/broker"
MAX_NOTE = 1000
"""Bytes; the API server refuses more than 1,024."""
SERIES_S = 360.0
"""How long the same thing belongs to one series, in seconds from its last occurrence."""
REFRESH_S = 30.0
"""How often a series is written at most, in seconds."""
MAX_SERIES = 4096
MAX_CROWDS = 256
MAX_WAITING = 1000
PER_S = 10.0
BURST = 100
OBJECT_PER_S = 1 / 30
OBJECT_BURST = 25
TIMEOUT_S = 5.0

_API = "events.k8s.io/v1"

_log = logging.getLogger("streambroker.events")


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something that happened to a resource.

    Attributes:
        reason: the word, such as ``RouteCut``.
        action: what was being done, such as ``Match``.
        text: a sentence.
        series: what tells it from other notes of the same resource and reason; notes of one series
            are one Event, with the first text.
    """

    kind: AnyKind
    namespace: str
    name: str
    uid: str
    reason: str
    action: str
    text: str = ""
    weight: Weight = "Normal"
    series: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """An Event to be written.

    Attributes:
        name: of the Event.
        body: the whole Event, or the part of it that changes.
        new: it is to be created.
    """

    namespace: str
    name: str
    body: Mapping[str, Any]
    new: bool


@dataclass(slots=True)
class _Crowd:
    """Notes of one kind that were too many to get an Event each: the first, and how many."""

    first: Note
    count: int


@dataclass(frozen=True, slots=True)
class _Series:
    name: str
    count: int
    last: float
    written: float


class ShownConditions(Protocol):
    """What a status has shown."""

    def status_of(self, condition: str) -> str | None:
        """Return the status of a condition; None where it is not shown."""


def transitions(
    write: StatusWrite, before: ShownConditions, after: Mapping[str, Any]
) -> list[Note]:
    """Return what a status that was just written tells for the first time.

    Args:
        write: whose status it is.
        before: what stood there.
        after: the status as it was written.
    """
    found = []
    for condition in after.get("conditions", ()):
        name, status = condition["type"], condition["status"]
        known = before.status_of(name)
        if name not in _ACTIONS or status == "Unknown" or known == status:
            continue
        if known is None and (name, status) not in _FIRST:
            continue
        reason = condition["reason"]
        if reason == "NotAccepted" or (name == "Active" and reason != "Disabled"):
            continue
        found.append(
            Note(
                kind=write.kind,
                namespace=write.namespace,
                name=write.name,
                uid=write.uid,
                reason=reason,
                action=_ACTIONS[name],
                text=_text(condition, after),
                weight="Warning" if (name, status) in _WARNINGS else "Normal",
            )
        )
    return found


_ACTIONS = {
    "Accepted": "Accept",
    "Matched": "Match",
    "Active": "Run",
    "InRing": "Match",
    "Damaged": "Keep",
}
_ALARMS = {("InRing", "True"), ("Damaged", "True")}
_WARNINGS = {("Accepted", "False"), ("Active", "False"), *_ALARMS}
_FIRST = {("Accepted", "False"), ("Matched", "True"), *_ALARMS}
"""What is worth an Event of a resource that had no status: the usual course of things is not."""
_SENTENCES = {
    ("Accepted", "True"): "It is accepted now.",
    ("Matched", "False"): "It is connected to nothing any more.",
}
_PEERS = 3
"""How many ports at the other ends an Event names."""


def _text(condition: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    transition = condition["type"], condition["status"]
    if transition != ("Matched", "True"):
        return str(condition.get("message") or _SENTENCES.get(transition, condition["reason"]))
    named = list(after.get("topMatches", ()))[:_PEERS]
    more = after.get("matches", 0) - len(named)
    return f"It is connected to {', '.join(named)}{f' and {more} more' if more > 0 else ''}."


def route_cut(resource: Resource, peer: PortKey, reason: str) -> Note:
    """Return the note of a route that ended.

    Args:
        resource: one end of the route.
        peer: the port at its other end.
        reason: the word for why.
    """
    way = "to" if kind_of(resource) == "Export" else "from"
    text = f"The route {way} {peer} is cut: {reason}."
    return replace(_note(resource, "RouteCut", "Match", text), series=text)


def steering_overwritten(resource: Resource, fields: str, owner: str) -> Note:
    """Return the note of fields that were set at run time and are somebody else's now.

    Args:
        resource: whose fields they are.
        fields: in words, as ``filter, properties.limit``.
        owner: who wrote them.
    """
    text = f"What was set at run time ({fields}) was overwritten by {owner}."
    return replace(_note(resource, "SteeringOverwritten", "Steer", text), weight="Warning")


def _note(resource: Resource, reason: str, action: str, text: str) -> Note:
    return Note(
        kind=kind_of(resource),
        namespace=resource.key.namespace,
        name=resource.name,
        uid=resource.uid,
        reason=reason,
        action=action,
        text=text,
    )


class EventLog:
    """Makes Events out of notes: series, and limits on how many.

    Args:
        instance: name of this process.
    """

    def __init__(self, instance: str) -> None:
        self._instance = instance[:128]
        self._series: OrderedDict[tuple[str, ...], _Series] = OrderedDict()
        self._all = Buckets(PER_S, BURST)
        self._each = Buckets(OBJECT_PER_S, OBJECT_BURST)
        self._crowds: dict[tuple[str, ...], _Crowd] = {}
        self.dropped = 0

    def note(self, note: Note, now: float, wall: float) -> Post | None:
        """Return the Event to write; None for a series that was written, or too many notes.

        Of too many notes at once `crowds` makes one Event for all that have namespace, kind of
        resource and reason in common.

        Args:
            note: what happened.
            now: a monotonic clock, in seconds.
            wall: seconds since 1970.
        """
        key = (note.uid, note.reason, note.series, note.weight)
        known = self._series.get(key)
        if known is not None and now - known.last < SERIES_S:
            return self._repeated(note, key, known, now, wall)
        if self._each.take(note.uid, now):
            self.dropped += 1
            return None
        if self._all.take("", now):
            self._gather(note)
            return None
        name = _event_name(note, self._instance, wall)
        self._keep(key, _Series(name=name, count=1, last=now, written=now))
        return Post(
            namespace=note.namespace, name=name, body=self._body(note, name, wall), new=True
        )

    def _repeated(
        self, note: Note, key: tuple[str, ...], known: _Series, now: float, wall: float
    ) -> Post | None:
        counted = replace(known, count=known.count + 1, last=now)
        due = now - known.written >= REFRESH_S or counted.count == 2
        if not due or not self._allowed(note.uid, now):
            self._keep(key, counted)
            return None
        self._keep(key, replace(counted, written=now))
        series = {"count": counted.count, "lastObservedTime": micro_time(wall)}
        return Post(namespace=note.namespace, name=known.name, body={"series": series}, new=False)

    def _gather(self, note: Note) -> None:
        key = (note.namespace, note.kind, note.reason, note.weight)
        crowd = self._crowds.get(key)
        if crowd is not None:
            crowd.count += 1
        elif len(self._crowds) < MAX_CROWDS:
            self._crowds[key] = _Crowd(note, 1)
        else:
            self.dropped += 1

    def crowds(self, wall: float) -> list[Post]:
        """Return an Event for each crowd of notes that came since this was called last.

        Args:
            wall: seconds since 1970.
        """
        gathered, self._crowds = self._crowds, {}
        posts = []
        for crowd in gathered.values():
            note, more = crowd.first, crowd.count - 1
            if more:
                kinds = f"{note.kind}{'s' if more > 1 else ''}"
                text = f"{note.text} The same happened to {more} more {kinds} of this namespace."
                note = replace(note, text=text)
            name = _event_name(note, self._instance, wall)
            body = self._body(note, name, wall)
            posts.append(Post(namespace=note.namespace, name=name, body=body, new=True))
        return posts

    def _allowed(self, uid: str, now: float) -> bool:
        if self._each.take(uid, now) or self._all.take("", now):
            self.dropped += 1
            return False
        return True

    def _keep(self, key: tuple[str, ...], series: _Series) -> None:
        self._series[key] = series
        self._series.move_to_end(key)
        if len(self._series) > MAX_SERIES:
            self._series.popitem(last=False)

    def _body(self, note: Note, name: str, wall: float) -> dict[str, Any]:
        return {
            "apiVersion": _API,
            "kind": "Event",
            "metadata": {"name": name, "namespace": note.namespace},
            "eventTime": micro_time(wall),
            "type": note.weight,
            "reason": note.reason[:128],
            "action": note.action,
            "note": _cut(note.text),
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


class EventWriter:
    """Writes Events one after the other; what cannot be written is forgotten.

    Args:
        api: makes the calls.
        instance: name of this process.
    """

    def __init__(self, api: Api, instance: str) -> None:
        self._api = api
        self._log = EventLog(instance)
        self._waiting: asyncio.Queue[Post] = asyncio.Queue(MAX_WAITING)
        self.written = 0
        self.failed = 0
        self.refused = 0

    @property
    def dropped(self) -> int:
        """How many notes were too many."""
        return self._log.dropped

    def tell(self, note: Note, wall: float) -> None:
        """Have something told; returns at once.

        Args:
            note: what happened.
            wall: seconds since 1970.
        """
        post = self._log.note(note, asyncio.get_running_loop().time(), wall)
        if post is not None:
            self._put(post)

    def _put(self, post: Post) -> None:
        try:
            self._waiting.put_nowait(post)
        except asyncio.QueueFull:
            self.failed += 1

    async def run(self) -> None:
        """Write until cancelled."""
        gathering = asyncio.create_task(self._gathering())
        try:
            while True:
                await self._write(await self._waiting.get())
                self._waiting.task_done()
        finally:
            gathering.cancel()

    async def _gathering(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            for post in self._log.crowds(time.time()):
                self._put(post)

    async def written_all(self) -> None:
        """Return when nothing waits."""
        await self._waiting.join()

    async def _write(self, post: Post) -> None:
        path = f"/apis/{_API}/namespaces/{post.namespace}/events"
        try:
            if post.new:
                answer = await self._api.call("POST", path, post.body, timeout_s=TIMEOUT_S)
            else:
                answer = await self._api.call(
                    "PATCH",
                    f"{path}/{post.name}",
                    post.body,
                    content_type=MERGE,
                    timeout_s=TIMEOUT_S,
                )
        except ApiUnreachableError as error:
            self.failed += 1
            self._missed(post, str(error))
            return
        if answer.status in (200, 201):
            self.written += 1
            return
        if answer.status == 429 or answer.status >= 500:
            self.failed += 1
        else:
            self.refused += 1
        self._missed(post, f"{answer.status}: {answer.body.get('message', '')}")

    def _missed(self, post: Post, why: str) -> None:
        _log.debug("Event %s/%s was not written: %s", post.namespace, post.name, why)


def _event_name(note: Note, instance: str, wall: float) -> str:
    told = "\0".join((note.uid, note.reason, note.text, instance, str(wall)))
    return f"{note.name[:200].rstrip('-.')}.{hashlib.sha256(told.encode()).hexdigest()[:16]}"


def _cut(text: str) -> str:
    raw = text.encode()
    return text if len(raw) <= MAX_NOTE else raw[: MAX_NOTE - 3].decode(errors="ignore") + "…"
