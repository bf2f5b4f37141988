"""Changes of an export's columns: what readers can read across versions, and what a policy allows.

Added columns are null in earlier rows, and a widened column has its earlier values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from streambroker_core.model.schema import Column, Schema, SchemaPolicy, widens

_ALLOWED: Mapping[SchemaPolicy, tuple[str, ...]] = {
    "backward": ("added", "widened"),
    "forward": ("added", "removed", "narrowed"),
    "full": ("added", "removed"),
}


def is_readable(exported: str, wanted: str) -> bool:
    """Return whether rows of one type can be read as another without loss."""
    return exported == wanted or widens(exported, wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """How columns of an export differ from the earlier ones, in the order of the columns.

    Attributes:
        widened: pairs of the column before and after, as ``narrowed`` and ``retyped`` are.
        retyped: columns whose types have no common values in general.
    """

    added: tuple[Column, ...] = ()
    removed: tuple[Column, ...] = ()
    widened: tuple[tuple[Column, Column], ...] = ()
    narrowed: tuple[tuple[Column, Column], ...] = ()
    retyped: tuple[tuple[Column, Column], ...] = ()

    @property
    def keeps_stream(self) -> bool:
        """Whether the rows before can be read in the new columns, so that the stream goes on."""
        return not (self.removed or self.narrowed or self.retyped)

    def refused_by(self, policy: SchemaPolicy) -> SchemaChange:
        """Return the part of the change that a policy does not allow."""
        if policy == "none":
            return SchemaChange()
        allowed: Collection[str] = _ALLOWED[policy]
        return SchemaChange(
            **{name: getattr(self, name) for name in self.__slots__ if name not in allowed}
        )

    def describe(self) -> str:
        """Return the changes in one line, such as ``adds `x` int; `n` int becomes bigint``."""
        parts = [f"adds `{c.name}` {c.type}" for c in self.added]
        parts += [f"removes `{c.name}` {c.type}" for c in self.removed]
        pairs = (*self.widened, *self.narrowed, *self.retyped)
        parts += [f"`{old.name}` {old.type} becomes {new.type}" for old, new in pairs]
        return "; ".join(parts)

    def breaks(self, wanted: Schema) -> bool:
        """Return whether a reader of these columns cannot read the rows after the change."""
        lost = {c.name for c in self.removed} | {old.name for old, _ in self.retyped}
        grown = {old.name: new.type for old, new in self.widened}
        return any(
            c.name in lost or (c.name in grown and not is_readable(grown[c.name], c.type))
            for c in wanted
        )


def compare_schemas(before: Schema, after: Schema) -> SchemaChange:
    """Return how the columns ``after`` differ from those ``before``; the order is ignored."""
    old, new = ({c.name: c for c in schema} for schema in (before, after))
    pairs = [(old[c.name], c) for c in after if c.name in old and old[c.name] != c]
    widened = [pair for pair in pairs if widens(pair[0].type, pair[1].type)]
    narrowed = [pair for pair in pairs if widens(pair[1].type, pair[0].type)]
    return SchemaChange(
        added=tuple(c for c in after if c.name not in old),
        removed=tuple(c for c in before if c.name not in new),
        widened=tuple(widened),
        narrowed=tuple(narrowed),
        retyped=tuple(pair for pair in pairs if pair not in widened and pair not in narrowed),
    )
