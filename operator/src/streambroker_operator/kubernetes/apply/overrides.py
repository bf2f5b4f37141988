"""What of a resource is steered at run time, and who undid that.

Everything here is a pure function of documents.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from streambroker_operator.kubernetes.apply.conflicts import field_name
from streambroker_operator.kubernetes.client.managed_fields import (
    API,
    Document,
    FieldManager,
    Fields,
    Path,
    fields_at,
    other_managers,
    own_fields,
    paths,
)
from streambroker_operator.kubernetes.status.conditions import MAX_MESSAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Overwritten:
    """What was steered, and is no longer: of the Event ``SteeringOverwritten``.

    Attributes:
        fields: as users write them, in order.
        manager: name of the manager that wrote.
    """

    fields: tuple[str, ...]
    manager: str

    @property
    def description(self) -> str:
        """The fields in a text that fits into a message."""
        return _join_names(self.fields)


def steered_fields(document: Document) -> tuple[str, ...]:
    """Return the fields of the spec that REST holds, as users write them, in order."""
    return tuple(field_name(path) for path in _own_paths(document))


def steered_text(document: Document) -> str | None:
    """Return which fields are steered and by whom, in words; None where nothing is.

    This is the message of the condition ``Steered``.
    """
    found = _own_paths(document)
    if not found:
        return None
    if ("port",) in found and not any(
        _spec_paths(holder.fields) for holder in other_managers(document)
    ):
        return f"the whole resource, declared by {API}"
    return f"{_join_names(map(field_name, found))} by {API}"


def find_overwritten(before: Document, after: Document) -> Overwritten | None:
    """Return what of our fields another manager's write took or dropped.

    Fields that we gave up ourselves are none of it: then nobody else wrote.

    Args:
        before: the object as it was known.
        after: the same object, later.
    """
    lost = [path for path in _own_paths(before) if path not in set(_own_paths(after))]
    known = {(h.name, h.operation): h for h in other_managers(before)}
    writers = [
        h for h in other_managers(after) if _has_written(known.get((h.name, h.operation)), h)
    ]
    if not lost or not writers:
        return None
    by = next((h for h in writers if _holds_any(h, lost)), writers[-1]).name
    return Overwritten(fields=tuple(field_name(path) for path in lost), manager=by)


class Steering:
    """What is steered of all resources, as the feed shows them; only of those is it kept."""

    def __init__(self) -> None:
        self._managed_fields: dict[str, Document] = {}

    def observe(self, document: Document) -> Overwritten | None:
        """Take in an object; return what another's write took of it since it was seen last."""
        uid = document["metadata"]["uid"]
        before = self._managed_fields.pop(uid, None)
        if _own_paths(document):
            entries = document["metadata"]["managedFields"]
            self._managed_fields[uid] = {"metadata": {"managedFields": entries}}
        return None if before is None else find_overwritten(before, document)

    def on_deleted(self, uid: str) -> None:
        """Take in that a resource is gone."""
        self._managed_fields.pop(uid, None)

    def description(self, uid: str) -> str | None:
        """Return what the status says of a resource, as `steered_text` does."""
        known = self._managed_fields.get(uid)
        return None if known is None else steered_text(known)


def _own_paths(document: Document) -> list[Path]:
    return _spec_paths(own_fields(document, API))


def _spec_paths(fields: Fields) -> list[Path]:
    return list(paths(fields_at(fields, ("spec",)) or {}))


def _has_written(before: FieldManager | None, after: FieldManager) -> bool:
    """Say whether a holder wrote in between; who only lost something did not."""
    if before is None or before.at != after.at:
        return True
    return not set(_spec_paths(after.fields)) <= set(_spec_paths(before.fields))


def _holds_any(holder: FieldManager, lost: Iterable[Path]) -> bool:
    return any(fields_at(holder.fields, ("spec", *path)) is not None for path in lost)


def _join_names(names: Iterable[str]) -> str:
    """Return names in a list that fits into a message."""
    every = list(names)
    shown: list[str] = []
    room = MAX_MESSAGE - 200
    for name in every:
        room -= len(name) + 2
        if room < 0:
            break
        shown.append(name)
    left = len(every) - len(shown)
    return ", ".join(shown) + (f" and {left} more" if left else "")
