"""Rank all resources of the other kind by their distance to one resource.

Of thousands of pairs only the nearest are explained. The others are only counted, with the same
distance that an explanation has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from typing import TypeVar

from streambroker_core.board import BoardReader
from streambroker_core.diagnose.distance import SubscriptionDistance
from streambroker_core.diagnose.explain_pair import (
    Obstacle,
    Pair,
    distance_for,
    explain_pair,
    filter_faults,
)
from streambroker_core.errors import StreambrokerError
from streambroker_core.matching import Match, is_namespace_allowed
from streambroker_core.matching.decide import parse_cached
from streambroker_core.model import Export, Import, Kind, Resource, resource_order
from streambroker_core.model.schema import Schema, find_missing_column
from streambroker_core.wire.manifests.quotas import Quotas

R = TypeVar("R", Export, Import)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardSnapshot:
    """Resources at one moment, as an immutable value: usable in any thread.

    Attributes:
        export_conflicts: why an Export takes no part, by uid.
        import_conflicts: why an Import takes no part, by uid.
        is_complete: whether these are all existing resources.
        quotas: of namespaces.
    """

    exports: tuple[Export, ...]
    imports: tuple[Import, ...]
    export_conflicts: Mapping[str, Obstacle]
    import_conflicts: Mapping[str, Obstacle]
    is_complete: bool = True
    quotas: Quotas = field(default_factory=Quotas)

    def explain(self, export: Export, import_: Import) -> Pair:
        """Explain a pair; neither resource need be in the snapshot."""
        return explain_pair(
            export,
            import_,
            export_conflict=self.export_conflicts.get(export.uid),
            import_conflict=self.import_conflicts.get(import_.uid),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Number of all pairs and of those with a route, and explanations of the first pairs.

    Pairs with a route are first, then pairs by distance, then by port.
    """

    total: int
    matched: int
    pairs: tuple[Pair, ...]


def take_snapshot(board: BoardReader, namespaces: Collection[str] | None = None) -> BoardSnapshot:
    """Return the current resources of a board, or those that some namespaces may see.

    A namespace may see its resources, the Exports that admit it, and the Imports with routes from
    its Exports.
    """
    snapshot = BoardSnapshot(
        exports=tuple(board.iter_exports()),
        imports=tuple(board.iter_imports()),
        export_conflicts=_find_conflicts(board, "Export"),
        import_conflicts=_find_conflicts(board, "Import"),
        quotas=board.quotas,
    )
    return snapshot if namespaces is None else _visible_from(board, snapshot, namespaces)


def _visible_from(
    board: BoardReader, snapshot: BoardSnapshot, namespaces: Collection[str]
) -> BoardSnapshot:
    imported = {
        uid
        for export in snapshot.exports
        if export.key.namespace in namespaces
        for uid, outcome in board.outcomes("Export", export.uid).items()
        if isinstance(outcome, Match)
    }
    return replace(
        snapshot,
        exports=tuple(
            x for x in snapshot.exports if any(is_namespace_allowed(x, name) for name in namespaces)
        ),
        imports=tuple(
            i for i in snapshot.imports if i.key.namespace in namespaces or i.uid in imported
        ),
        is_complete=False,
    )


def _find_conflicts(board: BoardReader, kind: Kind) -> dict[str, Obstacle]:
    statuses = {uid: board.status(kind, uid) for uid in board.standby_uids(kind)}
    return {
        uid: Obstacle(reason=status.reason, message=status.message)
        for uid, status in statuses.items()
        if status is not None
    }


def explain_port(snapshot: BoardSnapshot, resource: Resource, *, limit: int) -> Ranking:
    """Rank all resources of the other kind by their distance; explain at most `limit` pairs.

    The resource need not be in the snapshot.
    """
    export_conflicts, import_conflicts = snapshot.export_conflicts, snapshot.import_conflicts
    if isinstance(resource, Import):
        import_, counter = resource, _DistanceCounter(resource)
        exports, matched = _nearest(
            snapshot.exports,
            lambda export: counter.count_changes(export) + (export.uid in export_conflicts),
            limit,
        )
        total, conflicts = len(snapshot.exports), import_conflicts
        pairs = [snapshot.explain(export, import_) for export in exports]
    else:
        export = resource
        imports, matched = _nearest(
            snapshot.imports,
            lambda import_: (
                _DistanceCounter(import_).count_changes(export) + (import_.uid in import_conflicts)
            ),
            limit,
        )
        total, conflicts = len(snapshot.imports), export_conflicts
        pairs = [snapshot.explain(export, import_) for import_ in imports]
    if resource.uid in conflicts:
        matched = 0
    return Ranking(total=total, matched=matched, pairs=tuple(pairs))


def _nearest(
    resources: tuple[R, ...], changes: Callable[[R], int], limit: int
) -> tuple[list[R], int]:
    """Return the resources with the fewest changes, and the number of those without any."""
    by_changes: dict[int, list[R]] = {}
    for resource in resources:
        by_changes.setdefault(changes(resource), []).append(resource)
    nearest: list[R] = []
    for count in sorted(by_changes):
        nearest += nsmallest(limit - len(nearest), by_changes[count], key=resource_order)
        if len(nearest) == limit:
            break
    return nearest, len(by_changes.get(0, ()))


class _DistanceCounter:
    """Counts the necessary changes between one Import and many Exports."""

    def __init__(self, import_: Import) -> None:
        self._import = import_
        self._namespace = import_.key.namespace
        self._scope = import_.application_scope
        self._filtered = import_.filter is not None and bool(import_.filter.strip())
        self._columns = frozenset(import_.schema or ())
        self._of_schema: dict[Schema | None, int] = {}
        self._interest = (
            _count_by_name(import_) if import_.streams else _count_by_subscription(import_)
        )

    def count_changes(self, export: Export) -> int:
        """Return the distance of a pair if both hold their ports."""
        if export.policies:
            return explain_pair(export, self._import).distance
        count = self._interest(export)
        if export.key.namespace != self._namespace and not is_namespace_allowed(
            export, self._namespace
        ):
            count += 1
        if export.application.scope != self._scope:
            count += 1
        if self._filtered or self._columns:
            known = self._of_schema.get(export.schema)
            count += self._columns_of(export) if known is None else known
            if self._filtered and not export.allow_filter:
                count += 1
        return count

    def _columns_of(self, export: Export) -> int:
        """Count the faults for the Export's columns, cached by schema."""
        exported = export.schema or ()
        missing = sum(
            export.schema is not None and find_missing_column(exported, (column,)) is not None
            for column in self._columns.difference(exported)
        )
        faults = len(filter_faults(export, self._import)) if self._filtered else 0
        self._of_schema[export.schema] = missing + faults
        return missing + faults


def _count_by_name(import_: Import) -> Callable[[Export], int]:
    names = {(name.stream_id, name.application_name) for name in import_.streams}

    def changes(export: Export) -> int:
        stream = export.stream_id
        if stream is None:
            return 2
        fits = (stream, None) in names or (stream, export.application.name) in names
        return int(not fits)

    return changes


def _count_by_subscription(import_: Import) -> Callable[[Export], int]:
    text = import_.subscription
    if text is None or not text.strip():
        return lambda export: 1
    expression = parse_cached(text, "subscription")
    if isinstance(expression, StreambrokerError):
        return lambda export: 1 + (export.properties is None)
    test, distances = expression.test, list[SubscriptionDistance]()

    def nearness() -> SubscriptionDistance:
        if not distances:
            distances.append(distance_for(expression))
        return distances[0]

    def changes(export: Export) -> int:
        properties = export.properties
        if properties is None:
            return 1 + nearness().count_changes({})
        if distances:
            return distances[0].count_changes(properties)
        return 0 if test(properties) is True else nearness().count_changes(properties)

    return changes
