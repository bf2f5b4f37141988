"""Who holds which field of an object: Kubernetes' ``managedFields``, read.

An entry of ``managedFields`` says which fields one manager holds, as a tree whose
keys are ``f:name`` for a field, ``k:{...}`` for the item of a list with these keys,
``v:...`` for the item with this value, ``i:n`` for the item at this place, and
``.`` for the thing itself (FieldsV1). A leaf is the whole of what it names, except
that a leaf which is an object is that object without any of its fields: all
objects of our resources are held field by field.

Everything here is a pure function of documents.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, TypeAlias

API = "streambroker-api"
"""Manager of what is changed by REST."""
AGENT = "streambroker-agent"
"""Manager of what agents say of themselves, in the status."""

Document: TypeAlias = Mapping[str, Any]
Fields: TypeAlias = Mapping[str, Any]
"""A tree of FieldsV1."""
Path: TypeAlias = tuple[str, ...]
"""Names of fields from the root of a document; lists are not entered."""

_SELF = "."


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldManager:
    """One manager and what it holds.

    Attributes:
        name: its name.
        operation: ``Apply`` or ``Update``; two of one name are two holders.
        at: when it last wrote, UTC; None where nobody noted it.
        fields: what it holds of the object, its status apart.
    """

    name: str
    operation: str
    at: datetime | None
    fields: Fields


def field_managers(document: Document) -> list[FieldManager]:
    """Return who holds fields of an object outside of its status."""
    return [_parse_manager(entry) for entry in _entries(document) if not entry.get("subresource")]


def own_fields(document: Document, manager: str, *, subresource: str = "") -> Fields:
    """Return what a manager holds by server-side apply; nothing if it is not there."""
    entry = _entry(document, manager, subresource)
    return {} if entry is None else _fields(entry)


def written_at(document: Document, manager: str, *, subresource: str = "") -> datetime | None:
    """Return when a manager last wrote by server-side apply, UTC; None if it never did."""
    entry = _entry(document, manager, subresource)
    return None if entry is None else _parse_time(entry.get("time"))


def other_managers(document: Document, manager: str = API) -> list[FieldManager]:
    """Return all holders but a manager's own server-side apply."""
    return [h for h in field_managers(document) if (h.name, h.operation) != (manager, "Apply")]


def _entries(document: Document) -> Sequence[Document]:
    return document.get("metadata", {}).get("managedFields") or ()


def _entry(document: Document, manager: str, subresource: str) -> Document | None:
    for entry in _entries(document):
        named = entry.get("manager") == manager and entry.get("operation") == "Apply"
        if named and entry.get("subresource", "") == subresource:
            return entry
    return None


def _parse_manager(entry: Document) -> FieldManager:
    return FieldManager(
        name=entry.get("manager", ""),
        operation=entry.get("operation", ""),
        at=_parse_time(entry.get("time")),
        fields=_fields(entry),
    )


def _fields(entry: Document) -> Fields:
    return entry.get("fieldsV1") or {}


def _parse_time(text: str | None) -> datetime | None:
    if text is None:
        return None
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(timezone.utc)


def fields_at(fields: Fields, path: Path) -> Fields | None:
    """Return what is held at a path or below; None where nothing is."""
    found = fields
    for name in path:
        below = found.get(f"f:{name}")
        if below is None:
            return None
        found = below
    return found


def paths(fields: Fields, path: Path = ()) -> Iterator[Path]:
    """Yield the paths that are held, in order; a list is one, whatever of it is held."""
    names = sorted(key[2:] for key in fields if key.startswith("f:"))
    if not names and path:
        yield path
    for name in names:
        yield from paths(fields[f"f:{name}"], (*path, name))


def extracted(value: Any, fields: Fields) -> Any:
    """Return the part of a value that a tree of fields names.

    What the tree names and the value has not is left out; items of lists keep their
    order, and have the keys by which they are told apart.

    >>> extracted({"a": 1, "b": {"c": 2, "d": 3}}, {"f:b": {"f:c": {}}})
    {'b': {'c': 2}}
    """
    if isinstance(value, Mapping):
        names = (key[2:] for key in fields if key.startswith("f:"))
        return {n: extracted(value[n], fields[f"f:{n}"]) for n in names if n in value}
    if isinstance(value, list) and fields:
        found = (_extract_item(place, item, fields) for place, item in enumerate(value))
        return [part for held in found for part in held]
    return value


def _extract_item(index: int, item: Any, fields: Fields) -> list[Any]:
    """Return the part of a list's item that is held: one, or none."""
    for key, below in fields.items():
        keys = _item_keys(key, index, item)
        if keys is None:
            continue
        if isinstance(item, Mapping) and below:
            return [{**keys, **extracted(item, below)}]
        return [item]
    return []


def _item_keys(key: str, index: int, item: Any) -> dict[str, Any] | None:
    """Return what tells an item apart where a key of a tree names it, else None."""
    kind, _, text = key.partition(":")
    if key == _SELF or kind not in ("k", "v", "i"):
        return None
    named = json.loads(text)
    if kind == "k":
        same = isinstance(item, Mapping) and all(_is_same(item.get(n), v) for n, v in named.items())
        return {n: item[n] for n in named if n in item} if same else None
    return {} if _is_same(index if kind == "i" else item, named) else None


def _is_same(value: Any, named: Any) -> bool:
    return type(value) is type(named) and bool(value == named)


def lacks(items: Sequence[Any], fields: Fields) -> bool:
    """Say whether a list lacks an item that a tree names: its holder would keep it there.

    Args:
        items: a list as somebody wants it.
        fields: what another holds of that list; a leaf holds no single item.
    """
    named = [key for key in fields if key.partition(":")[0] in ("k", "v")]
    return not all(
        any(
            _item_keys(key, place, _with_default_keys(item, key)) is not None
            for place, item in enumerate(items)
        )
        for key in named
    )


def _with_default_keys(item: Any, key: str) -> Any:
    """Return an item with the keys that were left out, which stand for an empty text."""
    if not key.startswith("k:") or not isinstance(item, Mapping):
        return item
    return {**dict.fromkeys(json.loads(key[2:]), ""), **item}
