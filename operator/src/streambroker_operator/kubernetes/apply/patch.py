"""Computes edits of a spec, and the fields that the manager `streambroker-api` applies.

A server-side apply states all fields of its manager. So a change of one field applies the fields
that the manager already owns, with that field set or omitted.

All functions here are pure functions of documents.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from streambroker_core.wire.encoding.canonical import JsonObject, JsonValue, canonical
from streambroker_operator.kubernetes.client.documents import Document, FieldTree, ObjectMetadata
from streambroker_operator.kubernetes.client.managed_fields import (
    API,
    FieldManager,
    Path,
    extracted,
    fields_at,
    lacks,
    other_managers,
    own_fields,
    paths,
)

_GRANULAR = ("application", "buffer", "properties")
"""Fields of a spec whose subfields are owned individually."""
_SIGNIFICANT_IF_EMPTY = ("properties",)
"""Those of them that are significant even if empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Change of a spec.

    Attributes:
        values: values to set, by path; an empty object is created only if missing.
    """

    values: Mapping[Path, JsonValue]
    removed: tuple[Path, ...]

    def __bool__(self) -> bool:
        """Return whether there is any change."""
        return bool(self.values or self.removed)


def compute_edit(
    current: JsonObject, desired: JsonObject, touched: Collection[Path] | None
) -> Edit:
    """Return the edit from the current to the complete desired spec.

    `touched` limits the edit to these paths and everything below; None means all paths.
    """
    before, after = _leaves(current), _leaves(desired)
    return Edit(
        values={
            path: value
            for path, value in after.items()
            if _is_within(path, touched)
            and not (path in before and canonical(before[path]) == canonical(value))
        },
        removed=tuple(path for path in before if path not in after and _is_within(path, touched)),
    )


def apply_edit(spec: JsonObject, edit: Edit) -> dict[str, JsonValue]:
    """Return a copy of a spec with an edit applied."""
    result = dict(spec)
    for path in edit.removed:
        _remove(result, path)
    for path, value in edit.values.items():
        _set(result, path, value)
    return result


def own_part(document: Document, manager: str = API) -> Document:
    """Return the parts of an object's metadata and spec that a manager owns."""
    part: Document = extracted(document, own_fields(document, manager))
    return part


def spec_to_apply(own_spec: JsonObject, edit: Edit, outcome: JsonObject) -> JsonObject:
    """Return the spec that our manager applies: its own part with the edit.

    Only what is empty in `outcome`, the resulting spec, is stated as empty.
    """
    result = apply_edit(own_spec, edit)
    for name in _GRANULAR:
        if result.get(name) == {} and not (
            name in _SIGNIFICANT_IF_EMPTY and outcome.get(name) == {}
        ):
            del result[name]
    return result


def emptying_removals(document: Document, outcome: JsonObject) -> tuple[Path, ...]:
    """Return the fields whose removal leaves behind an empty object that must remain.

    Server-side apply cannot remove the last field of such an object: it leaves a null. `outcome` is
    the resulting spec.
    """
    live = document.get("spec", {})
    return tuple(
        (name, key)
        for name in _GRANULAR
        if outcome.get(name) == {}
        and (name in _SIGNIFICANT_IF_EMPTY or _is_held_by_others(document, name))
        for key in _object(live.get(name))
    )


def _is_held_by_others(document: Document, name: str) -> bool:
    return any(
        fields_at(manager.fields, ("spec", name)) is not None
        for manager in other_managers(document)
    )


def removal_patch(document: Document, removed: Collection[Path], version: str) -> Document:
    """Return a merge patch that removes fields from exactly this object at a version."""
    spec: dict[str, dict[str, None]] = {}
    for name, key in removed:
        spec.setdefault(name, {})[key] = None
    metadata = ObjectMetadata(uid=document["metadata"]["uid"], resourceVersion=version)
    return {"metadata": metadata, "spec": spec}


def without_removals(edit: Edit, removed: Collection[Path]) -> Edit:
    """Return the edit without some of its removals."""
    return Edit(
        values=edit.values, removed=tuple(path for path in edit.removed if path not in removed)
    )


def released_spec(document: Document) -> JsonObject:
    """Return the spec without the fields that only our manager owns; shared objects stay."""
    own = fields_at(own_fields(document, API), ("spec",)) or {}
    others = [fields_at(other.fields, ("spec",)) or {} for other in other_managers(document)]
    spec = dict(document.get("spec", {}))
    for path in paths(own):
        if all(fields_at(fields, path) is None for fields in others):
            _remove(spec, path)
    for name in _GRANULAR:
        if spec.get(name) == {} and all(fields_at(fields, (name,)) is None for fields in others):
            del spec[name]
    return spec


def apply_body(document: Document, spec: JsonObject) -> Document:
    """Return the body of a server-side apply to exactly this object and version.

    `spec` contains all fields of our manager in the spec.
    """
    body = object_identity(document)
    body["metadata"] = {**own_part(document).get("metadata", {}), **body["metadata"]}
    return {**body, "spec": spec} if spec else body


def object_identity(document: Document) -> Document:
    """Return the fields that identify an object and its version in a body."""
    metadata = document["metadata"]
    return {
        "apiVersion": document["apiVersion"],
        "kind": document["kind"],
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
        },
    }


def removals_held_by_others(document: Document, edit: Edit) -> list[tuple[Path, FieldManager]]:
    """Return the removals of an edit that other managers prevent.

    Server-side apply removes only what its manager owns alone. Fields and list items of other
    managers remain, even with force.
    """
    return [
        (path, manager)
        for manager in other_managers(document)
        for path in _held_removals(fields_at(manager.fields, ("spec",)) or {}, edit)
    ]


def _held_removals(fields: FieldTree, edit: Edit) -> list[Path]:
    removed = [path for path in edit.removed if fields_at(fields, path) is not None]
    lists = ((path, value) for path, value in edit.values.items() if isinstance(value, list))
    return [
        *(path for path in removed if not _is_emptied(fields, path, edit)),
        *(path for path, value in lists if lacks(value, fields_at(fields, path) or {})),
    ]


def _is_emptied(fields: FieldTree, path: Path, edit: Edit) -> bool:
    """Return whether an edit removes every owned subfield individually, so these are reported."""
    below = fields_at(fields, path) or {}
    names = [key[2:] for key in below if key.startswith("f:")]
    return bool(names) and all((*path, name) in edit.removed for name in names)


def _leaves(spec: JsonObject) -> dict[Path, JsonValue]:
    leaves: dict[Path, JsonValue] = {}
    for name, value in spec.items():
        if name in _GRANULAR and isinstance(value, Mapping):
            if name in _SIGNIFICANT_IF_EMPTY:
                leaves[(name,)] = {}
            leaves.update({(name, key): subvalue for key, subvalue in value.items()})
        else:
            leaves[(name,)] = value
    return leaves


def _is_within(path: Path, touched: Collection[Path] | None) -> bool:
    return touched is None or any(path[: len(prefix)] == prefix for prefix in touched)


def _object(value: JsonValue) -> JsonObject:
    return value if isinstance(value, Mapping) else {}


def _set(spec: dict[str, JsonValue], path: Path, value: JsonValue) -> None:
    name, *keys = path
    before = spec.get(name)
    if keys:
        spec[name] = {**_object(before), keys[0]: value}
    elif value != {} or not isinstance(before, Mapping):
        spec[name] = value


def _remove(spec: dict[str, JsonValue], path: Path) -> None:
    name, *keys = path
    before = spec.get(name)
    if not keys:
        spec.pop(name, None)
    elif isinstance(before, Mapping):
        spec[name] = {key: value for key, value in before.items() if key != keys[0]}
