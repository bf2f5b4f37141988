"""Options of a write: preconditions, forcing and owners."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypedDict

Touched: TypeAlias = tuple[tuple[str, ...], ...]
"""Paths of a spec that a change touches, each with everything below; the rest stays as it is."""


class OwnerReference(TypedDict, total=False):
    """Object of a cluster that owns another one."""

    apiVersion: str
    kind: str
    name: str
    uid: str
    controller: bool
    blockOwnerDeletion: bool


def _accept_any(_current: str | None) -> None:
    """Accept every current state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Options of a write.

    Attributes:
        check: called right before the change with the current ETag ``uid.generation``, or None if
            the object does not exist; raises if the caller's precondition does not hold.
        force: whether to take fields that other managers own.
        owners: ``ownerReferences`` of a resource that the write creates.
        principal: name of the caller, for the history; empty for none.
    """

    check: Callable[[str | None], None] = _accept_any
    force: bool = False
    owners: tuple[OwnerReference, ...] = ()
    principal: str = ""


UNCONDITIONAL = WriteOptions()
"""No preconditions."""
