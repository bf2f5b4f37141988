"""Published statuses of one reconciler, from lists, the watch, and the responses to its writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from streambroker_core.board import events
from streambroker_core.model import RULE
from streambroker_operator.kubernetes.client.documents import Document
from streambroker_operator.kubernetes.client.http_api import object_at
from streambroker_operator.kubernetes.status.writer import Name


class _Published(Protocol):
    @property
    def content(self) -> str:
        """Digest of what has to be written again if it differs."""


P = TypeVar("P", bound=_Published)


class PublishedStatuses(Generic[P]):
    """Published status of each resource.

    Args:
        read: parses a status; its second argument is the status before, or None after a write.
        on_change: called with a name and the status before and after.
    """

    def __init__(
        self,
        read: Callable[[object, P | None], P],
        nothing: P,
        on_change: Callable[[Name, P, P], None] = lambda *_: None,
    ) -> None:
        self._read = read
        self._nothing = nothing
        self._on_change = on_change
        self._statuses: dict[Name, P] = {}
        self._written_versions: dict[Name, int] = {}

    def get(self, name: Name) -> P:
        """Return a published status."""
        return self._statuses.get(name, self._nothing)

    def names(self) -> list[Name]:
        """Return the names of all observed resources."""
        return list(self._statuses)

    def observe(self, name: Name, body: Document, listed: bool) -> bool:
        """Record the status of an observed object; return whether another writer changed it.

        A list replaces anything older or newer. The watch does not replace a newer written version.
        """
        if not listed and int(body["metadata"]["resourceVersion"]) < self._written_versions.get(
            name, 0
        ):
            return False
        self._written_versions.pop(name, None)
        before = self._statuses.get(name)
        after = self._set(name, self._read(body.get("status"), before))
        return before is not None and before.content != after.content

    def on_written(self, name: Name, answer: Document) -> bool:
        """Record the object that the API server returned; return False if it is another one."""
        metadata = object_at(answer, "metadata")
        if metadata.get("uid") != name[1]:
            return False
        self._written_versions[name] = int(metadata["resourceVersion"])
        self._set(name, self._read(answer.get("status"), None))
        return True

    def _set(self, name: Name, after: P) -> P:
        before = self._statuses.get(name)
        self._statuses[name] = after
        if before is not None:
            self._on_change(name, before, after)
        return after

    def forget(self, name: Name) -> None:
        """Drop a deleted resource."""
        self._statuses.pop(name, None)
        self._written_versions.pop(name, None)

    def unlisted(self, event: events.Synced) -> list[Name]:
        """Return the observed resources of its kind that a list does not contain."""
        listed = {resource.uid for resource, _ in event.listed}
        listed.update(unreadable.uid for unreadable in event.unreadable)
        return [name for name in self._statuses if name[0] == event.kind and name[1] not in listed]


def changed_name(event: events.BoardEvent) -> Name | None:
    """Return the resource that an event changes; None for other events."""
    if isinstance(event, events.ExportApplied):
        return "Export", event.export.uid
    if isinstance(event, events.ImportApplied):
        return "Import", event.import_.uid
    if isinstance(event, events.RuleApplied):
        return RULE, event.rule.uid
    return (event.kind, event.uid) if isinstance(event, events.Unreadable) else None


def affected_names(event: events.BoardEvent, actions: Iterable[events.Action]) -> set[Name]:
    """Return the resources whose status an event and the board's actions may change."""
    changed = changed_name(event)
    affected = {
        (action.kind, action.uid) for action in actions if isinstance(action, events.StatusChanged)
    }
    return affected if changed is None else {*affected, changed}
