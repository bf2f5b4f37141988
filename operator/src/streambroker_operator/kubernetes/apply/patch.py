"""What a change is, field by field, and what our manager says after it.

A server-side apply states everything its manager wants. So a change of one field
is the fields we hold already, with that one set or left out.

Everything here is a pure function of documents.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from streambroker_core.wire.encoding.canonical import canonical
from streambroker_operator.kubernetes.client.managed_fields import (
    API,
    Document,
    FieldManager,
    Fields,
    Path,
    extracted,
    fields_at,
    lacks,
    other_managers,
    own_fields,
    paths,
)

_GRANULAR = ("application", "buffer", "properties")
"""Fields of a spec whose own fields are held one by one."""
_SIGNIFICANT_IF_EMPTY = ("properties",)
"""Of these, one that says something even if it is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """What becomes of a spec.

    Attributes:
        values: by path, what is set; an empty object is made if there is none.
        removed: paths that are to go.
    """

    values: Mapping[Path, Any]
    removed: tuple[Path, ...]

    def __bool__(self) -> bool:
        """Say whether there is anything to do."""
        return bool(self.values or self.removed)


def compute_edit(current: Document, desired: Document, touched: Collection[Path] | None) -> Edit:
    """Return what has to be done for a spec to be as wanted.

    Args:
        current: the spec as it is.
        desired: the whole spec, as it should be.
        touched: what is changed, with all that is below; the rest stays as it is,
            whatever ``desired`` says of it. None for everything.
    """
    before, after = _leaves(current), _leaves(desired)
    return Edit(
        values={
            path: value
            for path, value in after.items()
            if _is_within(path, touched) and not (path in before and _is_equal(before[path], value))
        },
        removed=tuple(path for path in before if path not in after and _is_within(path, touched)),
    )


def apply_edit(spec: Document, edit: Edit) -> dict[str, Any]:
    """Return a spec after an edit; neither of the two is changed."""
    found = {name: _copy(value) for name, value in spec.items()}
    for path in edit.removed:
        _remove(found, path)
    for path, value in edit.values.items():
        _set(found, path, value)
    return found


def own_part(document: Document, manager: str = API) -> dict[str, Any]:
    """Return what a manager holds of an object's metadata and spec, as it stands there."""
    fields = own_fields(document, manager)
    return {
        part: extracted(document[part], fields[f"f:{part}"])
        for part in ("metadata", "spec")
        if f"f:{part}" in fields and part in document
    }


def spec_to_apply(own_spec: Document, edit: Edit, outcome: Document) -> dict[str, Any]:
    """Return the spec that our manager applies.

    Args:
        own_spec: the spec as far as it is ours.
        edit: what is to be done to it.
        outcome: the whole spec as it will be; only what is empty there is stated as such.
    """
    found = apply_edit(own_spec, edit)
    for name in _GRANULAR:
        if found.get(name) == {} and not (
            name in _SIGNIFICANT_IF_EMPTY and outcome.get(name) == {}
        ):
            del found[name]
    return found


def emptying_removals(document: Document, outcome: Document) -> tuple[Path, ...]:
    """Return the fields whose going leaves an object empty that stays for its own sake.

    Server-side apply cannot take away the last field of such an object: it leaves a null there.

    Args:
        document: the object as it is.
        outcome: the spec as it will be.
    """
    live = document.get("spec", {})
    return tuple(
        (name, key)
        for name in _GRANULAR
        if outcome.get(name) == {}
        and (name in _SIGNIFICANT_IF_EMPTY or _is_held_by_others(document, name))
        for key in live.get(name) or ()
    )


def _is_held_by_others(document: Document, name: str) -> bool:
    return any(fields_at(h.fields, ("spec", name)) is not None for h in other_managers(document))


def removal_patch(document: Document, removed: Collection[Path]) -> dict[str, Any]:
    """Return the body of a merge patch that takes fields from this very object, and no other."""
    metadata = document["metadata"]
    spec: dict[str, Any] = {}
    for name, key in removed:
        spec.setdefault(name, {})[key] = None
    return {"metadata": {n: metadata[n] for n in ("uid", "resourceVersion")}, "spec": spec}


def without_removals(edit: Edit, removed: Collection[Path]) -> Edit:
    """Return an edit that leaves some fields where they are."""
    return Edit(values=edit.values, removed=tuple(p for p in edit.removed if p not in removed))


def released_spec(document: Document, manager: str = API) -> dict[str, Any]:
    """Return a spec without what a manager alone holds; an object that others hold stays."""
    ours = fields_at(own_fields(document, manager), ("spec",)) or {}
    theirs = [
        fields_at(holder.fields, ("spec",)) or {} for holder in other_managers(document, manager)
    ]
    spec = {name: _copy(value) for name, value in document.get("spec", {}).items()}
    for path in paths(ours):
        if all(fields_at(fields, path) is None for fields in theirs):
            _remove(spec, path)
    for name in _GRANULAR:
        if spec.get(name) == {} and all(fields_at(fields, (name,)) is None for fields in theirs):
            del spec[name]
    return spec


def apply_body(document: Document, spec: Document) -> dict[str, Any]:
    """Return the body of a server-side apply to this very object, and to no other.

    Args:
        document: the object as it was read.
        spec: all that our manager wants of its spec.
    """
    body = object_identity(document)
    body["metadata"] = {**own_part(document).get("metadata", {}), **body["metadata"]}
    return {**body, "spec": dict(spec)} if spec else body


def object_identity(document: Document) -> dict[str, Any]:
    """Return what of a body says which object is meant, and as it was at which version."""
    metadata = document["metadata"]
    return {
        "apiVersion": document["apiVersion"],
        "kind": document["kind"],
        "metadata": {n: metadata[n] for n in ("name", "namespace", "uid", "resourceVersion")},
    }


def removals_held_by_others(document: Document, edit: Edit) -> list[tuple[Path, FieldManager]]:
    """Return what an edit would take away and somebody else keeps there.

    Server-side apply takes away what one holds alone; neither a field of another
    manager nor its items of a list go by it, forced or not.
    """
    return [
        (path, holder)
        for holder in other_managers(document)
        for path in _held_removals(fields_at(holder.fields, ("spec",)) or {}, edit)
    ]


def _held_removals(fields: Fields, edit: Edit) -> list[Path]:
    gone = [path for path in edit.removed if fields_at(fields, path) is not None]
    lists = ((path, value) for path, value in edit.values.items() if isinstance(value, list))
    return [
        *(path for path in gone if not _is_emptied(fields, path, edit)),
        *(path for path, value in lists if lacks(value, fields_at(fields, path) or {})),
    ]


def _is_emptied(fields: Fields, path: Path, edit: Edit) -> bool:
    """Say whether all that is held of an object is named by itself, and blamed so."""
    below = fields_at(fields, path) or {}
    names = [key[2:] for key in below if key.startswith("f:")]
    return bool(names) and all((*path, name) in edit.removed for name in names)


def _leaves(spec: Document) -> dict[Path, Any]:
    found: dict[Path, Any] = {}
    for name, value in spec.items():
        if name in _GRANULAR and isinstance(value, Mapping):
            if name in _SIGNIFICANT_IF_EMPTY:
                found[(name,)] = {}
            found.update({(name, key): below for key, below in value.items()})
        else:
            found[(name,)] = value
    return found


def _is_within(path: Path, touched: Collection[Path] | None) -> bool:
    return touched is None or any(path[: len(of)] == of for of in touched)


def _is_equal(one: Any, other: Any) -> bool:
    return canonical(one) == canonical(other)


def _copy(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def _set(spec: dict[str, Any], path: Path, value: Any) -> None:
    if len(path) == 1:
        if value == {} and isinstance(spec.get(path[0]), dict):
            return
        spec[path[0]] = _copy(value)
        return
    spec.setdefault(path[0], {})[path[1]] = value


def _remove(spec: dict[str, Any], path: Path) -> None:
    if len(path) == 1:
        spec.pop(path[0], None)
    elif isinstance(spec.get(path[0]), dict):
        spec[path[0]].pop(path[1], None)
