"""One resource against all of the other kind, the nearest first.

Ten thousand pairs are counted, a few are explained: the count needs no words. It
is the distance that the explanation has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from heapq import nsmallest
from typing import TypeVar

from streambroker_core.board import Board
from streambroker_core.diagnose.distance import Nearness
from streambroker_core.diagnose.explain_pair import (
    Obstacle,
    Pair,
    explain_pair,
    filter_faults,
    nearness_of,
)
from streambroker_core.errors import StreambrokerError
from streambroker_core.matching import Match, admits
from streambroker_core.matching.decide import parsed
from streambroker_core.model import Export, Import, Kind, resource_order
from streambroker_core.model.schema import Schema

R = TypeVar("R", Export, Import)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Resources at one moment; a value, so it can be looked at anywhere.

    Attributes:
        exports: in no order.
        imports: in no order.
        taken_exports: why an Export does not take part, by uid.
        taken_imports: why an Import does not, by uid.
        whole: whether these are all resources that there are.
    """

    exports: tuple[Export, ...]
    imports: tuple[Import, ...]
    taken_exports: Mapping[str, Obstacle]
    taken_imports: Mapping[str, Obstacle]
    whole: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Pairs, those with a route first, then by distance, then by port.

    Attributes:
        total: how many pairs there are.
        matched: how many of them have a route.
        pairs: the first of them, explained.
    """

    total: int
    matched: int
    pairs: tuple[Pair, ...]


def survey(board: Board, namespaces: Collection[str] | None = None) -> Survey:
    """Return what a board holds now.

    Args:
        board: the board.
        namespaces: what these may see, None for all: their resources, the Exports that
            admit them, and the Imports that have routes from theirs.
    """
    known = Survey(
        exports=tuple(board.each_export()),
        imports=tuple(board.each_import()),
        taken_exports=_taken(board, "Export"),
        taken_imports=_taken(board, "Import"),
    )
    return known if namespaces is None else _seen_from(board, known, namespaces)


def _seen_from(board: Board, known: Survey, namespaces: Collection[str]) -> Survey:
    fed = {
        uid
        for export in known.exports
        if export.key.namespace in namespaces
        for uid, outcome in board.outcomes("Export", export.uid).items()
        if isinstance(outcome, Match)
    }
    return replace(
        known,
        exports=tuple(x for x in known.exports if any(admits(x, name) for name in namespaces)),
        imports=tuple(i for i in known.imports if i.key.namespace in namespaces or i.uid in fed),
        whole=False,
    )


def _taken(board: Board, kind: Kind) -> dict[str, Obstacle]:
    statuses = {uid: board.status(kind, uid) for uid in board.standing_by(kind)}
    return {
        uid: Obstacle(reason=status.reason, message=status.message)
        for uid, status in statuses.items()
        if status is not None
    }


def explain_import(known: Survey, import_: Import, *, limit: int) -> Ranking:
    """Rank all Exports by how near they are to an Import.

    Args:
        known: all resources.
        import_: the Import; it need not be one of them.
        limit: how many pairs are explained.
    """
    ruler = _Ruler(import_)
    taken = known.taken_exports

    def changes(export: Export) -> int:
        return ruler.changes(export) + (export.uid in taken)

    def explain(export: Export) -> Pair:
        return explain_pair(
            export,
            import_,
            export_taken=taken.get(export.uid),
            import_taken=known.taken_imports.get(import_.uid),
        )

    lost = import_.uid in known.taken_imports
    return _ranked(known.exports, changes, explain, limit=limit, lost=lost)


def explain_export(known: Survey, export: Export, *, limit: int) -> Ranking:
    """Rank all Imports by how near they are to an Export.

    Args:
        known: all resources.
        export: the Export; it need not be one of them.
        limit: how many pairs are explained.
    """
    taken = known.taken_imports

    def changes(import_: Import) -> int:
        return _Ruler(import_).changes(export) + (import_.uid in taken)

    def explain(import_: Import) -> Pair:
        return explain_pair(
            export,
            import_,
            export_taken=known.taken_exports.get(export.uid),
            import_taken=taken.get(import_.uid),
        )

    lost = export.uid in known.taken_exports
    return _ranked(known.imports, changes, explain, limit=limit, lost=lost)


def _ranked(
    resources: tuple[R, ...],
    changes: Callable[[R], int],
    explain: Callable[[R], Pair],
    *,
    limit: int,
    lost: bool,
) -> Ranking:
    by_changes: dict[int, list[R]] = {}
    for resource in resources:
        by_changes.setdefault(changes(resource), []).append(resource)
    nearest: list[R] = []
    for count in sorted(by_changes):
        nearest += nsmallest(limit - len(nearest), by_changes[count], key=resource_order)
        if len(nearest) == limit:
            break
    return Ranking(
        total=len(resources),
        matched=0 if lost else len(by_changes.get(0, ())),
        pairs=tuple(explain(resource) for resource in nearest),
    )


class _Ruler:
    """Count the changes between one Import and many Exports."""

    def __init__(self, import_: Import) -> None:
        self._import = import_
        self._namespace = import_.key.namespace
        self._scope = import_.application_scope
        self._filtered = import_.filter is not None and bool(import_.filter.strip())
        self._columns = frozenset(import_.schema or ())
        self._of_schema: dict[Schema | None, int] = {}
        self._interest = _by_name(import_) if import_.streams else _by_subscription(import_)

    def changes(self, export: Export) -> int:
        """Return the distance of a pair whose both sides hold their ports."""
        count = self._interest(export)
        if export.key.namespace != self._namespace and not admits(export, self._namespace):
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
        """Count what the Export's columns lack; exports of one schema lack the same."""
        lacking = 0 if export.schema is None else len(self._columns.difference(export.schema))
        faults = len(filter_faults(export, self._import)) if self._filtered else 0
        self._of_schema[export.schema] = lacking + faults
        return lacking + faults


def _by_name(import_: Import) -> Callable[[Export], int]:
    names = {(name.stream_id, name.application_name) for name in import_.streams}

    def changes(export: Export) -> int:
        stream = export.stream_id
        if stream is None:
            return 2
        fits = (stream, None) in names or (stream, export.application.name) in names
        return int(not fits)

    return changes


def _by_subscription(import_: Import) -> Callable[[Export], int]:
    text = import_.subscription
    if text is None or not text.strip():
        return lambda export: 1
    expression = parsed(text, "subscription")
    if isinstance(expression, StreambrokerError):
        return lambda export: 1 + (export.properties is None)
    test, made = expression.test, list[Nearness]()

    def nearness() -> Nearness:
        if not made:
            made.append(nearness_of(expression))
        return made[0]

    def changes(export: Export) -> int:
        properties = export.properties
        if properties is None:
            return 1 + nearness().changes({})
        if made:
            return made[0].changes(properties)
        return 0 if test(properties) is True else nearness().changes(properties)

    return changes
