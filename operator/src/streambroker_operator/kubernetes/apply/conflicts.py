"""What is said to a caller whose change meets a field that somebody else holds.

Everything here is a pure function of documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes.apply.patch import Edit, removals_held_by_others
from streambroker_operator.kubernetes.client.managed_fields import (
    API,
    Document,
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
    """A field, and who else holds it.

    Attributes:
        field: as users write it, ``properties.price``.
        owner: name of the manager.
        at: when that last wrote; None if nobody noted it.
    """

    field: str
    owner: str
    at: datetime | None = None

    @property
    def description(self) -> str:
        """What it is, in a sentence."""
        kind, _, name = self.field.partition(".")
        return f"property `{name}`" if kind == "properties" and name else f"`{self.field}`"

    @property
    def is_manual(self) -> bool:
        """Whether nothing sets it again by itself."""
        return self.owner.startswith("kubectl-") and self.owner != _REAPPLYING_MANAGER


def field_name(path: Path) -> str:
    """Return a path of a spec as users write it."""
    return ".".join(path)


def parse_conflicts(document: Document, causes: Iterable[Document]) -> list[FieldConflict]:
    """Return what the API server's refusal of an apply names.

    Args:
        document: the object; it says when the holders last wrote.
        causes: of the refusal; each has a field and a sentence with the holder's name.
    """
    at = {holder.name: holder.at for holder in other_managers(document)}
    found = []
    for cause in causes:
        match = _OWNER.search(cause.get("message", ""))
        owner = _UNKNOWN if match is None else match[1]
        field = cause.get("field", "").removeprefix(".spec").removeprefix(".")
        found.append(FieldConflict(field=field or "spec", owner=owner, at=at.get(owner)))
    return found


def removal_conflicts(removals: Iterable[tuple[Path, FieldManager | None]]) -> list[FieldConflict]:
    """Return what others keep where it is, as `removals_held_by_others` found it."""
    return [
        FieldConflict(
            field=field_name(path),
            owner=_UNKNOWN if holder is None else holder.name,
            at=None if holder is None else holder.at,
        )
        for path, holder in removals
    ]


def owned_by_other_error(
    kind: str, name: str, conflicts: Sequence[FieldConflict], *, removing: bool
) -> RequestError:
    """Return the refusal of a change.

    Args:
        kind: of the resource.
        name: of the resource.
        conflicts: the fields; at least one.
        removing: whether the change would take them away, which cannot be forced.
    """
    first = conflicts[0]
    others_too = "" if len(conflicts) == 1 else f" So {_list_conflicts(conflicts[1:])}."
    verb = "was" if first.is_manual else "is"
    described = f"{_capital(first.description)} of {kind} {name}"
    detail = f"{described} {verb} {_declared_text(first)}.{others_too} "
    return RequestError(
        409,
        "OwnedByOther",
        detail + (_removal_advice(first) if removing else _change_advice(first)),
        facts={
            "owner": first.owner,
            "field": first.field,
            "conflicts": [_conflict_body(one) for one in conflicts],
        },
    )


def takeover_warnings(kind: str, name: str, conflicts: Iterable[FieldConflict]) -> tuple[str, ...]:
    """Return the warnings of a change that was forced, one for each field that was taken."""
    return tuple(
        f"{_capital(one.description)} of {kind} {name} was {_declared_text(one)} and is taken over."
        + ("" if one.is_manual else " " + _TAKEOVER_ADVICE)
        for one in conflicts
    )


def check_removals(kind: str, name: str, live: Document, edit: Edit) -> None:
    """Refuse to take away what others hold, or what nobody is known to hold.

    Raises:
        RequestError: 409 `OwnedByOther`.
    """
    found: list[tuple[Path, FieldManager | None]] = list(removals_held_by_others(live, edit))
    ours = fields_at(own_fields(live, API), ("spec",)) or {}
    blamed = {path for path, _ in found}
    strays = (path for path in edit.removed if path not in blamed)
    found += [(path, None) for path in strays if fields_at(ours, path) is None]
    if found:
        raise owned_by_other_error(kind, name, removal_conflicts(found), removing=True)


def object_etag(document: Document | None) -> str | None:
    """Return the ETag of an object; None where there is none."""
    if document is None:
        return None
    return f"{document['metadata']['uid']}.{document['metadata']['generation']}"


_TAKEOVER_ADVICE = (
    "Its next apply may fail with a conflict, or undo this without a word: leave the field out of"
    " that manifest, or release the resource in time."
)


def _declared_text(conflict: FieldConflict) -> str:
    word = "last set" if conflict.is_manual else "declared"
    when = (
        ""
        if conflict.at is None
        else f" ({'' if conflict.is_manual else 'last applied '}{_format_time(conflict.at)})"
    )
    return f'{word} by "{conflict.owner}"{when}'


def _change_advice(conflict: FieldConflict) -> str:
    if conflict.is_manual:
        return "Nothing was changed. Repeat with force=true to take it over."
    return (
        "A change here would be undone at its next apply. Remove"
        f" {conflict.description.removeprefix('property ')} from that manifest to steer it at run"
        f" time, or"
        " repeat with force=true to take it until then."
    )


def _removal_advice(conflict: FieldConflict) -> str:
    where = "there" if conflict.is_manual else "in that manifest"
    return (
        f"What others hold cannot be taken away from here, with force=true neither: remove it"
        f" {where}."
    )


def _list_conflicts(conflicts: Sequence[FieldConflict]) -> str:
    named = [f'{one.description} ("{one.owner}")' for one in conflicts[:5]]
    more = "" if len(conflicts) <= 5 else f" and {len(conflicts) - 5} more"
    return f"{'is' if len(conflicts) == 1 else 'are'} {', '.join(named)}{more}"


def _format_time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M UTC")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _conflict_body(conflict: FieldConflict) -> dict[str, Any]:
    when = None if conflict.at is None else conflict.at.isoformat().replace("+00:00", "Z")
    return {"field": conflict.field, "owner": conflict.owner, "at": when}
