"""Responses to field-ownership conflicts (409).

All functions here are pure functions of documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from streambroker_core.wire.encoding.canonical import JsonObject
from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes.apply.patch import Edit, removals_held_by_others
from streambroker_operator.kubernetes.client.documents import Document, FieldCause
from streambroker_operator.kubernetes.client.managed_fields import (
    API,
    FieldManager,
    Path,
    fields_at,
    other_managers,
    own_fields,
)

_OWNER = re.compile(r'conflict with "((?:[^"\\]|\\.)*)"')
_REAPPLYING_MANAGER = "kubectl-client-side-apply"
_UNKNOWN = "an unknown writer"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldConflict:
    """A field and the other manager that owns it.

    Attributes:
        field: name as users write it, such as ``properties.price``.
        at: last write of the manager; None if unknown.
    """

    field: str
    owner: str
    at: datetime | None = None

    @property
    def description(self) -> str:
        """The field as text."""
        kind, _, name = self.field.partition(".")
        return f"property `{name}`" if kind == "properties" and name else f"`{self.field}`"

    @property
    def is_manual(self) -> bool:
        """Whether the owner was a manual command, which does not set the field again by itself."""
        return self.owner.startswith("kubectl-") and self.owner != _REAPPLYING_MANAGER


def field_name(path: Path) -> str:
    """Return a path of a spec in the form that users write."""
    return ".".join(path)


def parse_conflicts(document: Document, causes: Iterable[FieldCause]) -> list[FieldConflict]:
    """Return the conflicts of an apply that the API server reports, with managers' last writes."""
    last_writes = {manager.name: manager.at for manager in other_managers(document)}
    conflicts = []
    for cause in causes:
        match = _OWNER.search(cause.get("message", ""))
        owner = _UNKNOWN if match is None else match[1]
        field = cause.get("field", "").removeprefix(".spec").removeprefix(".")
        conflicts.append(
            FieldConflict(field=field or "spec", owner=owner, at=last_writes.get(owner))
        )
    return conflicts


def removal_conflicts(removals: Iterable[tuple[Path, FieldManager | None]]) -> list[FieldConflict]:
    """Return the conflicts of removals from `removals_held_by_others`."""
    return [
        FieldConflict(
            field=field_name(path),
            owner=_UNKNOWN if manager is None else manager.name,
            at=None if manager is None else manager.at,
        )
        for path, manager in removals
    ]


def owned_by_other_error(
    kind: str, name: str, conflicts: Sequence[FieldConflict], *, removing: bool
) -> RequestError:
    """Return the error for a change that conflicts with other managers (at least one conflict).

    Unlike other changes, `removing` a field cannot be forced.
    """
    first = conflicts[0]
    others = "" if len(conflicts) == 1 else f" So {_list_conflicts(conflicts[1:])}."
    verb = "was" if first.is_manual else "is"
    described = f"{_capital(first.description)} of {kind} {name}"
    detail = f"{described} {verb} {_declared_text(first)}.{others} "
    return RequestError(
        409,
        "OwnedByOther",
        detail + (_removal_advice(first) if removing else _change_advice(first)),
        facts={
            "owner": first.owner,
            "field": first.field,
            "conflicts": [_conflict_body(conflict) for conflict in conflicts],
        },
    )


def takeover_warnings(kind: str, name: str, conflicts: Iterable[FieldConflict]) -> tuple[str, ...]:
    """Return one warning for each field that a forced change took over."""
    return tuple(
        f"{_capital(one.description)} of {kind} {name} was {_declared_text(one)} and is taken over."
        + ("" if one.is_manual else " " + _TAKEOVER_ADVICE)
        for one in conflicts
    )


def check_removals(kind: str, name: str, live: Document, edit: Edit) -> None:
    """Check that an edit removes only fields of our manager.

    Raises:
        RequestError: 409 `OwnedByOther`, a field has another owner or none.
    """
    conflicting: list[tuple[Path, FieldManager | None]] = list(removals_held_by_others(live, edit))
    own = fields_at(own_fields(live, API), ("spec",)) or {}
    reported = {path for path, _ in conflicting}
    unreported = (path for path in edit.removed if path not in reported)
    conflicting += [(path, None) for path in unreported if fields_at(own, path) is None]
    if conflicting:
        raise owned_by_other_error(kind, name, removal_conflicts(conflicting), removing=True)


def object_etag(document: Document | None) -> str | None:
    """Return the ETag of an object; None if there is none."""
    if document is None:
        return None
    return f"{document['metadata']['uid']}.{document['metadata']['generation']}"


_TAKEOVER_ADVICE = (
    "Its next apply may fail with a conflict, or silently undo this: leave the field out of that"
    " manifest, or release the resource in time."
)


def _declared_text(conflict: FieldConflict) -> str:
    verb = "last set" if conflict.is_manual else "declared"
    when = (
        ""
        if conflict.at is None
        else f" ({'' if conflict.is_manual else 'last applied '}{_format_time(conflict.at)})"
    )
    return f'{verb} by "{conflict.owner}"{when}'


def _change_advice(conflict: FieldConflict) -> str:
    if conflict.is_manual:
        return "Nothing was changed. Repeat with force=true to take it over."
    return (
        "A change here would be undone at its next apply. Remove"
        f" {conflict.description.removeprefix('property ')} from that manifest to change it at"
        " run time, or repeat with force=true to override it until then."
    )


def _removal_advice(conflict: FieldConflict) -> str:
    where = "there" if conflict.is_manual else "in that manifest"
    return (
        "Fields that others own cannot be removed here, not even with force=true: remove it"
        f" {where}."
    )


def _list_conflicts(conflicts: Sequence[FieldConflict]) -> str:
    named = [f'{conflict.description} ("{conflict.owner}")' for conflict in conflicts[:5]]
    more = "" if len(conflicts) <= 5 else f" and {len(conflicts) - 5} more"
    return f"{'is' if len(conflicts) == 1 else 'are'} {', '.join(named)}{more}"


def _format_time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M UTC")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _conflict_body(conflict: FieldConflict) -> JsonObject:
    when = None if conflict.at is None else conflict.at.isoformat().replace("+00:00", "Z")
    return {"field": conflict.field, "owner": conflict.owner, "at": when}
