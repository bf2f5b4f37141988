"""Row and column policies of an Export: which rows and columns an import may read.

All policies that name an import apply to it together: rows have to pass each filter, columns have
to be in each list, and the stronger mask counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, TypeAlias

from streambroker_core.errors import StreambrokerError
from streambroker_core.model.schema import Schema

MaskKind: TypeAlias = Literal["null", "hash", "constant"]
_STRENGTH: Mapping[MaskKind, int] = {"hash": 0, "constant": 1, "null": 2}
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_DECIMAL = re.compile(r"decimal\(([0-9]+),([0-9]+)\)")


class PolicyDeniedError(StreambrokerError):
    """The policies of an Export give an import nothing, or not a column that it needs."""

    code = "PolicyDenied"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """What is sent in place of a column's values; ``value`` is the text of a constant."""

    kind: MaskKind
    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPolicy:
    """One policy.

    Attributes:
        namespace, job: the imports that it is for; None for all.
        filter: rows that may be read; None for all.
        columns: columns that may be read; None for all.
        masks: by column, sorted.
    """

    namespace: str | None = None
    job: str | None = None
    filter: str | None = None
    columns: tuple[str, ...] | None = None
    masks: tuple[tuple[str, Mask], ...] = ()

    def is_for(self, namespace: str, job: str) -> bool:
        """Return whether it is for imports of a job."""
        return self.namespace in (None, namespace) and self.job in (None, job)


@dataclass(frozen=True, slots=True)
class Policies:
    """All policies of an Export; with ``deny``, an import without a policy reads nothing."""

    items: tuple[ExportPolicy, ...] = ()
    deny: bool = False

    def __bool__(self) -> bool:
        """Whether there is anything to enforce."""
        return bool(self.items) or self.deny


NO_POLICIES = Policies()


@dataclass(frozen=True, slots=True, kw_only=True)
class Restriction:
    """What the policies of an Export leave to one import.

    Attributes:
        names: the policies, as ``policies[0]``.
        filters: all of them have to be true.
        columns: sorted; None for all.
        masks: by column, sorted.
    """

    names: tuple[str, ...]
    filters: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None
    masks: tuple[tuple[str, Mask], ...] = ()

    def select(self, names: Iterable[str]) -> list[str]:
        """Return the columns that may be read, in their order."""
        return [n for n in names if self.columns is None or n in self.columns]

    def visible(self, schema: Schema) -> Schema:
        """Return the columns of a schema that may be read; masks keep types."""
        return tuple(c for c in schema if self.columns is None or c.name in self.columns)

    def find_withheld(self, names: Iterable[str]) -> str | None:
        """Return the first of some columns that may not be read."""
        return next((n for n in names if self.columns is not None and n not in self.columns), None)

    def __str__(self) -> str:
        """Return the names of the policies."""
        return " and ".join(self.names)

    def describe(self) -> str:
        """Return the policies and what they do, in one line."""
        parts = [f"rows where {' and '.join(f'({f})' for f in self.filters)}"] * bool(self.filters)
        if self.columns is not None:
            parts.append(f"only the columns {', '.join(self.columns) or '(none)'}")
        for name, mask in self.masks:
            value = "" if mask.value is None else f" {mask.value!r}"
            parts.append(f"{name} as {mask.kind}{value}")
        return f"{self}: {'; '.join(parts) or 'all rows and columns'}"


def restrict(policies: Policies, namespace: str, job: str) -> Restriction | None:
    """Return what the policies leave to the imports of a job; None without a policy for it.

    Raises:
        PolicyDeniedError: there is none, and the default is ``deny``.
    """
    found = _join(policies, lambda policy: policy.is_for(namespace, job))
    if found is None and policies.deny:
        raise PolicyDeniedError(
            f"no policy of the export is for {namespace}/{job}, and policyDefault is deny. Its"
            " owner can add a policy."
        )
    return found


def restrict_unknown(policies: Policies) -> Restriction | None:
    """Return what is left to a reader of unknown job: what all policies together leave.

    Raises:
        PolicyDeniedError: there is no policy, and the default is ``deny``.
    """
    found = _join(policies, lambda policy: True)
    if found is None and policies.deny:
        raise PolicyDeniedError("the export has no policies, and policyDefault is deny.")
    return found


def _join(policies: Policies, applies: Callable[[ExportPolicy], bool]) -> Restriction | None:
    joined: Restriction | None = None
    for number, policy in enumerate(policies.items):
        if applies(policy):
            one = Restriction(
                names=(f"policies[{number}]",),
                filters=() if policy.filter is None else (policy.filter,),
                columns=None if policy.columns is None else tuple(sorted(policy.columns)),
                masks=policy.masks,
            )
            joined = combine(joined, one)
    return joined


def combine(one: Restriction | None, other: Restriction | None) -> Restriction | None:
    """Return what both leave; None leaves everything."""
    if one is None or other is None or one == other:
        return one or other
    columns = one.columns if other.columns is None else other.columns
    if one.columns is not None and other.columns is not None:
        columns = tuple(sorted({*one.columns} & {*other.columns}))
    masks = dict(one.masks)
    for name, mask in other.masks:
        masks[name] = _stronger(masks[name], mask) if name in masks else mask
    return Restriction(
        names=tuple(dict.fromkeys((*one.names, *other.names))),
        filters=tuple(dict.fromkeys((*one.filters, *other.filters))),
        columns=columns,
        masks=tuple(sorted(masks.items(), key=lambda item: item[0])),
    )


def _stronger(one: Mask, other: Mask) -> Mask:
    """Return the mask that shows less; of two constants, null."""
    if one.kind == other.kind:
        return one if one == other else Mask(kind="null")
    return max(one, other, key=lambda mask: _STRENGTH[mask.kind])


def encode_restriction(restriction: Restriction) -> list[Any]:
    """Return a restriction as JSON-like data."""
    masks = [[name, mask.kind, mask.value] for name, mask in restriction.masks]
    return [restriction.names, restriction.filters, restriction.columns, masks]


def decode_restriction(data: Sequence[Any]) -> Restriction:
    """Return a restriction from what `encode_restriction` returned."""
    names, filters, columns, masks = data
    return Restriction(
        names=tuple(names),
        filters=tuple(filters),
        columns=None if columns is None else tuple(columns),
        masks=tuple((name, Mask(kind=kind, value=value)) for name, kind, value in masks),
    )


def mask_problem(mask: Mask, kind: str) -> str | None:
    """Return why a mask cannot replace values of a column of this type; None if it can."""
    if mask.kind == "hash" and not _is_text(kind):
        return f"is {kind}; only text can be hashed, so use null or constant"
    if mask.kind == "constant" and not _is_constant(mask.value or "", kind):
        return f"is {kind}, which {mask.value!r} is no constant of"
    return None


def _is_text(kind: str) -> bool:
    return kind.startswith(("string", "varchar", "char"))


def _is_constant(text: str, kind: str) -> bool:
    """Return whether a text is a value of a column's type."""
    if _is_text(kind):
        return True
    if kind in _BITS:
        limit = 1 << (_BITS[kind] - 1)
        return _INTEGER.fullmatch(text) is not None and -limit <= int(text) < limit
    try:
        if kind in ("float", "double"):
            return text == text.strip() and float(text) is not None
        if kind == "boolean":
            return text in ("true", "false")
        if kind == "date":
            return date.fromisoformat(text).isoformat() == text
        if kind in ("timestamp", "timestamp_ntz"):
            return (datetime.fromisoformat(text).tzinfo is None) == (kind == "timestamp_ntz")
        found = _DECIMAL.fullmatch(kind)
        if found is not None:
            digits, scale = int(found[1]), int(found[2])
            number = Decimal(text)
            return number == round(number, scale) and abs(number) < 10 ** (digits - scale)
    except (ValueError, InvalidOperation):
        return False
    return False
