"""Field ownership of an object, read from Kubernetes' ``managedFields``.

An entry lists the fields of one manager as a tree (FieldsV1). Its keys are:

- ``f:name``: a field
- ``k:{...}``: the list item with these keys
- ``v:...``: the list item with this value
- ``i:n``: the list item at this index
- ``.``: the parent itself

A leaf is the complete value, but for an object it is the object without its fields: all objects in
our resources are owned field by field.

All functions here are pure functions of documents.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

from streambroker_operator.kubernetes.client.documents import Document, FieldTree, ManagedFields

API = "streambroker-api"
"""Manager of changes by REST."""
AGENT = "streambroker-agent"
"""Manager of the agents' fields in the status."""

Path: TypeAlias = tuple[str, ...]
"""Field names from the root of a document; never into lists."""

_SELF = "."


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldManager:
    """A manager and its fields.

    Attributes:
        operation: ``Apply`` or ``Update``; the same name with both is two managers.
        at: last write, UTC; None if unknown.
        fields: owned fields of the object, without the status.
    """

    name: str
    operation: str
    at: datetime | None
    fields: FieldTree


def own_fields(document: Document, manager: str, *, subresource: str = "") -> FieldTree:
    """Return the fields that a manager owns by server-side apply; empty if none."""
    return _entry(document, manager, subresource).get("fieldsV1") or {}


def written_at(document: Document, manager: str, *, subresource: str = "") -> datetime | None:
    """Return when a manager last wrote by server-side apply, UTC; None if it never did."""
    return _parse_time(_entry(document, manager, subresource).get("time"))


def other_managers(document: Document, manager: str = API) -> list[FieldManager]:
    """Return the managers of fields outside the status, except the apply of `manager`."""
    return [
        FieldManager(
            name=entry.get("manager", ""),
            operation=entry.get("operation", ""),
            at=_parse_time(entry.get("time")),
            fields=entry.get("fieldsV1") or {},
        )
        for entry in _entries(document)
        if not entry.get("subresource")
        and (entry.get("manager"), entry.get("operation")) != (manager, "Apply")
    ]


def _entries(document: Document) -> Sequence[ManagedFields]:
    return document.get("metadata", {}).get("managedFields") or ()


def _entry(document: Document, manager: str, subresource: str) -> ManagedFields:
    """Return what a manager owns by server-side apply; empty if nothing."""
    for entry in _entries(document):
        matches = entry.get("manager") == manager and entry.get("operation") == "Apply"
        if matches and entry.get("subresource", "") == subresource:
            return entry
    return {}


def _parse_time(text: str | None) -> datetime | None:
    if text is None:
        return None
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC)


def fields_at(fields: FieldTree, path: Path) -> FieldTree | None:
    """Return the owned fields at or below a path; None if there are none."""
    result = fields
    for name in path:
        below = result.get(f"f:{name}")
        if below is None:
            return None
        result = below
    return result


def paths(fields: FieldTree, path: Path = ()) -> Iterator[Path]:
    """Yield the owned paths in order; a list is one path, also if only a part is owned."""
    names = sorted(key[2:] for key in fields if key.startswith("f:"))
    if not names and path:
        yield path
    for name in names:
        yield from paths(fields[f"f:{name}"], (*path, name))


def extracted(value: Any, fields: FieldTree) -> Any:
    """Return the part of a value that a tree of fields names.

    Named but missing fields are omitted. List items keep their order and their identifying keys.


    >>> extracted({"a": 1, "b": {"c": 2, "d": 3}}, {"f:b": {"f:c": {}}})
    {'b': {'c': 2}}
    """
    if isinstance(value, Mapping):
        names = (key[2:] for key in fields if key.startswith("f:"))
        return {n: extracted(value[n], fields[f"f:{n}"]) for n in names if n in value}
    if isinstance(value, list) and fields:
        parts = (_extract_item(index, item, fields) for index, item in enumerate(value))
        return [item for items in parts for item in items]
    return value


def _extract_item(index: int, item: Any, fields: FieldTree) -> list[Any]:
    """Return the owned part of a list item: one element, or none."""
    for key, below in fields.items():
        names = _item_keys(key, index, item)
        if names is None:
            continue
        if isinstance(item, Mapping) and below:
            return [{**{n: item[n] for n in names if n in item}, **extracted(item, below)}]
        return [item]
    return []


def _item_keys(key: str, index: int, item: Any) -> list[str] | None:
    """Return the names of an item's identifying keys if a tree key names it, else None."""
    kind, _, text = key.partition(":")
    if key == _SELF or kind not in ("k", "v", "i"):
        return None
    named = json.loads(text)
    if kind == "k":
        is_match = isinstance(item, Mapping) and all(
            _is_same(item.get(n), v) for n, v in named.items()
        )
        return list(named) if is_match else None
    return [] if _is_same(index if kind == "i" else item, named) else None


def _is_same(value: Any, named: Any) -> bool:
    return type(value) is type(named) and bool(value == named)


def lacks(items: Sequence[Any], fields: FieldTree) -> bool:
    """Return whether a desired list lacks an item that another manager owns and would keep.

    `fields` are the other manager's fields of the list; a leaf owns no single item.
    """
    named = [key for key in fields if key.partition(":")[0] in ("k", "v")]
    return not all(
        any(
            _item_keys(key, index, _with_default_keys(item, key)) is not None
            for index, item in enumerate(items)
        )
        for key in named
    )


def _with_default_keys(item: Any, key: str) -> Any:
    """Return an item with omitted keys set to their default, the empty string."""
    if not key.startswith("k:") or not isinstance(item, Mapping):
        return item
    return {**dict.fromkeys(json.loads(key[2:]), ""), **item}
