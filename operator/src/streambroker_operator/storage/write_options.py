"""On what terms a change of resources is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Touched: TypeAlias = tuple[tuple[str, ...], ...]
"""Paths of a spec that a change is about, each with all below; the rest is left as it is."""


def _accept_any(_current: str | None) -> None:
    """Hold whatever there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """On what terms a change is made.

    Attributes:
        check: is given the ETag ``uid.generation`` of what is there, None where nothing is,
            right before the change, and raises if that is not what the caller takes it for.
        force: whether fields are taken from others who hold them.
        owners: ``ownerReferences`` of a resource that is made by this.
    """

    check: Callable[[str | None], None] = _accept_any
    force: bool = False
    owners: tuple[Mapping[str, Any], ...] = ()


UNCONDITIONAL = WriteOptions()
"""Without any condition."""
