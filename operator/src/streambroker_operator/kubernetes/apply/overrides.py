"""Fields that are overridden at run time, and who overwrites these overrides.

All functions here are pure functions of documents.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from streambroker_operator.kubernetes.apply.conflicts import field_name
from streambroker_operator.kubernetes.client.documents import Document, FieldTree
from streambroker_operator.kubernetes.client.managed_fields import (
    API,
    FieldManager,
    Path,
    fields_at,
    other_managers,
    own_fields,
    paths,
)
from streambroker_operator.kubernetes.client.objects import MAX_MESSAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Overwritten:
    """Overrides that a manager overwrote, for the Event ``SteeringOverwritten``."""

    fields: tuple[str, ...]
    manager: str

    @property
    def description(self) -> str:
        """The fields as text, short enough for a message."""
        return _join_names(self.fields)


def steered_fields(document: Document) -> tuple[str, ...]:
    """Return the fields of the spec that REST owns, as users write them, in order."""
    return tuple(field_name(path) for path in _own_paths(document))


def steered_text(document: Document) -> str | None:
    """Return which fields are overridden and by whom, as text; None if there are none.

    This is the message of the condition ``Steered``.
    """
    own = _own_paths(document)
    if not own:
        return None
    if ("port",) in own and not any(
        _spec_paths(manager.fields) for manager in other_managers(document)
    ):
        return f"the whole resource, declared by {API}"
    return f"{_join_names(map(field_name, own))} by {API}"


def find_overwritten(before: Document, after: Document) -> Overwritten | None:
    """Return the overrides that another manager took over or dropped.

    Fields that our manager released are not included: then no other manager wrote.
    """
    lost = [path for path in _own_paths(before) if path not in set(_own_paths(after))]
    previous = {(manager.name, manager.operation): manager for manager in other_managers(before)}
    writers = [
        manager
        for manager in other_managers(after)
        if _has_written(previous.get((manager.name, manager.operation)), manager)
    ]
    if not lost or not writers:
        return None
    writer = next((manager for manager in writers if _holds_any(manager, lost)), writers[-1]).name
    return Overwritten(fields=tuple(field_name(path) for path in lost), manager=writer)


class Steering:
    """Overrides of all observed resources; only managedFields of those with overrides are kept."""

    def __init__(self) -> None:
        self._managed_fields: dict[str, Document] = {}

    def observe(self, document: Document) -> Overwritten | None:
        """Process an object; return the overrides that were overwritten since the last call."""
        uid = document["metadata"]["uid"]
        before = self._managed_fields.pop(uid, None)
        if _own_paths(document):
            entries = document["metadata"]["managedFields"]
            self._managed_fields[uid] = {"metadata": {"managedFields": entries}}
        return None if before is None else find_overwritten(before, document)

    def on_deleted(self, uid: str) -> None:
        """Drop a deleted resource."""
        self._managed_fields.pop(uid, None)

    def description(self, uid: str) -> str | None:
        """Return the text about a resource's overrides, as `steered_text` does."""
        document = self._managed_fields.get(uid)
        return None if document is None else steered_text(document)


def _own_paths(document: Document) -> list[Path]:
    return _spec_paths(own_fields(document, API))


def _spec_paths(fields: FieldTree) -> list[Path]:
    return list(paths(fields_at(fields, ("spec",)) or {}))


def _has_written(before: FieldManager | None, after: FieldManager) -> bool:
    """Return whether a manager wrote in between; one that only lost fields did not."""
    if before is None or before.at != after.at:
        return True
    return not set(_spec_paths(after.fields)) <= set(_spec_paths(before.fields))


def _holds_any(holder: FieldManager, lost: Iterable[Path]) -> bool:
    return any(fields_at(holder.fields, ("spec", *path)) is not None for path in lost)


def _join_names(names: Iterable[str]) -> str:
    """Join names to a list short enough for a message."""
    all_names = list(names)
    included: list[str] = []
    remaining = MAX_MESSAGE - 200
    for name in all_names:
        remaining -= len(name) + 2
        if remaining < 0:
            break
        included.append(name)
    omitted = len(all_names) - len(included)
    return ", ".join(included) + (f" and {omitted} more" if omitted else "")
