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
from streambroker_operator.kubernetes.apply.patch import Edit, kept_by_others
from streambroker_operator.kubernetes.client.managed_fields import (
    API,
    Document,
    Holder,
    Path,
    held_at,
    others,
    own_fields,
)

_OWNER = re.compile(r'conflict with "((?:[^"\\]|\\.)*)"')
_APPLIES_AGAIN = "kubectl-client-side-apply"
_UNKNOWN = "an unknown writer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
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
    def words(self) -> str:
        """What it is, in a sentence."""
        kind, _, name = self.field.partition(".")
        return f"property `{name}`" if kind == "properties" and name else f"`{self.field}`"

    @property
    def by_hand(self) -> bool:
        """Whether nothing sets it again by itself."""
        return self.owner.startswith("kubectl-") and self.owner != _APPLIES_AGAIN


def field_of(path: Path) -> str:
    """Return a path of a spec as users write it."""
    return ".".join(path)


def held(document: Document, causes: Iterable[Document]) -> list[Held]:
    """Return what the API server's refusal of an apply names.

    Args:
        document: the object; it says when the holders last wrote.
        causes: of the refusal; each has a field and a sentence with the holder's name.
    """
    at = {holder.manager: holder.at for holder in others(document)}
    found = []
    for cause in causes:
        match = _OWNER.search(cause.get("message", ""))
        owner = _UNKNOWN if match is None else match[1]
        field = cause.get("field", "").removeprefix(".spec").removeprefix(".")
        found.append(Held(field=field or "spec", owner=owner, at=at.get(owner)))
    return found


def kept(found: Iterable[tuple[Path, Holder | None]]) -> list[Held]:
    """Return what others keep where it is, as `kept_by_others` found it."""
    return [
        Held(
            field=field_of(path),
            owner=_UNKNOWN if holder is None else holder.manager,
            at=None if holder is None else holder.at,
        )
        for path, holder in found
    ]


def owned_by_other(kind: str, name: str, what: Sequence[Held], *, removing: bool) -> RequestError:
    """Return the refusal of a change.

    Args:
        kind: of the resource.
        name: of the resource.
        what: the fields; at least one.
        removing: whether the change would take them away, which cannot be forced.
    """
    first = what[0]
    others_too = "" if len(what) == 1 else f" So {_are(what[1:])}."
    verb = "was" if first.by_hand else "is"
    detail = f"{_capital(first.words)} of {kind} {name} {verb} {_declared(first)}.{others_too} "
    return RequestError(
        409,
        "OwnedByOther",
        detail + (_removing(first) if removing else _changing(first)),
        facts={
            "owner": first.owner,
            "field": first.field,
            "conflicts": [_fact(one) for one in what],
        },
    )


def taken(kind: str, name: str, what: Iterable[Held]) -> tuple[str, ...]:
    """Return the warnings of a change that was forced, one for each field that was taken."""
    return tuple(
        f"{_capital(one.words)} of {kind} {name} was {_declared(one)} and is taken over."
        + ("" if one.by_hand else " " + _AFTERWARDS)
        for one in what
    )


def check_others(kind: str, name: str, live: Document, edit: Edit) -> None:
    """Refuse to take away what others hold, or what nobody is known to hold.

    Raises:
        RequestError: 409 `OwnedByOther`.
    """
    found: list[tuple[Path, Holder | None]] = list(kept_by_others(live, edit))
    ours = held_at(own_fields(live, API), ("spec",)) or {}
    blamed = {path for path, _ in found}
    strays = (path for path in edit.removed if path not in blamed)
    found += [(path, None) for path in strays if held_at(ours, path) is None]
    if found:
        raise owned_by_other(kind, name, kept(found), removing=True)


def tag_of(document: Document | None) -> str | None:
    """Return the ETag of an object; None where there is none."""
    if document is None:
        return None
    return f"{document['metadata']['uid']}.{document['metadata']['generation']}"


_AFTERWARDS = (
    "Its next apply may fail with a conflict, or undo this without a word: leave the field out of"
    " that manifest, or release the resource in time."
)


def _declared(one: Held) -> str:
    word = "last set" if one.by_hand else "declared"
    when = "" if one.at is None else f" ({'' if one.by_hand else 'last applied '}{_time(one.at)})"
    return f'{word} by "{one.owner}"{when}'


def _changing(one: Held) -> str:
    if one.by_hand:
        return "Nothing was changed. Repeat with force=true to take it over."
    return (
        "A change here would be undone at its next apply. Remove"
        f" {one.words.removeprefix('property ')} from that manifest to steer it at run time, or"
        " repeat with force=true to take it until then."
    )


def _removing(one: Held) -> str:
    where = "there" if one.by_hand else "in that manifest"
    return (
        f"What others hold cannot be taken away from here, with force=true neither: remove it"
        f" {where}."
    )


def _are(what: Sequence[Held]) -> str:
    named = [f'{one.words} ("{one.owner}")' for one in what[:5]]
    more = "" if len(what) <= 5 else f" and {len(what) - 5} more"
    return f"{'is' if len(what) == 1 else 'are'} {', '.join(named)}{more}"


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M UTC")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _fact(one: Held) -> dict[str, Any]:
    when = None if one.at is None else one.at.isoformat().replace("+00:00", "Z")
    return {"field": one.field, "owner": one.owner, "at": when}
