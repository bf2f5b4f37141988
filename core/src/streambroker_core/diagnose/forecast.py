"""Forecast what a set of changes would do to the routes.

Changes apply one by one, in order: new resources get an identity, invalid changes are refused.
Then the routes of all affected resources are compared before and after. Others do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from streambroker_core.board import BoardReader
from streambroker_core.board.admission import CutRoute, cut_reason, find_put_problem
from streambroker_core.board.overlay import BoardOverlay
from streambroker_core.board.views import build_route
from streambroker_core.board.wait_cycles import RING, Ring, WaitEdge, find_rings, wait_edges
from streambroker_core.matching import IndexMatcher, Match, MatchResult
from streambroker_core.model import (
    Export,
    Import,
    Kind,
    PeKey,
    Removal,
    Resource,
    Route,
    kind_of,
    name_of,
    route_order,
)
from streambroker_core.model.schema_changes import compare_schemas
from streambroker_core.wire.encoding.canonical import JsonObject, JsonValue
from streambroker_core.wire.manifests.ports import write_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Proposed changes, in the order in which they would be made.

    Attributes:
        puts: resources to create or replace. One without uid replaces the holder of its port, or
            is new and younger than all others. One with a uid is used unchanged.
        deletes: ports whose resources are to be deleted, after all puts.
    """

    puts: tuple[Resource, ...] = ()
    deletes: tuple[Removal, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedRoute:
    """A route that would remain, with another filter or policy."""

    route: Route
    old_route: Route


@dataclass(frozen=True, slots=True, kw_only=True)
class EditedResource:
    """A resource that would remain, with another spec."""

    resource: Resource
    old_resource: Resource

    def edits(self) -> dict[str, tuple[JsonValue, JsonValue]]:
        """Return the old and the new value of each field that differs; None where it is absent.

        Fields of objects count one by one, as in ``buffer.maxBytes``.
        """
        old, new = (_flatten(write_spec(one)) for one in (self.old_resource, self.resource))
        names = dict.fromkeys([*old, *new])
        return {
            name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)
        }


def _flatten(spec: JsonObject) -> dict[str, JsonValue]:
    fields: dict[str, JsonValue] = {}
    for name, value in spec.items():
        if isinstance(value, Mapping):
            fields |= {f"{name}.{inner}": of for inner, of in value.items()}
        else:
            fields[name] = value
    return fields


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalProblem:
    """A problem of one of the changes.

    Attributes:
        index: of the change; puts and deletes count as one list from 0.
        change: its subject, such as ``import default/alerts/0/trades``.
        code: the reason word.
        detail: a sentence.
        refused: whether the change would not be made at all. It would be made, but be of no use,
            if an older resource has its port or stream id, or if jobs may wait in a ring.
    """

    index: int
    change: str
    code: str
    detail: str
    refused: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Effects of the changes; every list is ordered by exporter and importer.

    Attributes:
        unchanged: number of routes of the whole board that would stay as they are.
        edited: resources that exist and would get another spec, in order of the changes.
        problems: in order of the changes.
    """

    added: tuple[Route, ...] = ()
    cut: tuple[CutRoute, ...] = ()
    changed: tuple[ChangedRoute, ...] = ()
    unchanged: int = 0
    edited: tuple[EditedResource, ...] = ()
    problems: tuple[ProposalProblem, ...] = ()


_Routes: TypeAlias = dict[tuple[str, str], Route]


def forecast(
    board: BoardReader, proposal: Proposal, *, watch: Callable[[int], None] = lambda routes: None
) -> Forecast:
    """Return what applying a proposal to a board would do.

    The board is neither changed nor copied. The cost depends on the proposed resources and their
    peers, plus one pass over all Exports to count routes.

    `watch` is called before each resource is matched, with the number of routes found so far. An
    exception that it raises ends the forecast.
    """
    overlay = BoardOverlay(board)
    problems, put = _apply_proposal(overlay, proposal, watch)
    problems += _find_conflicts(overlay, put)
    exports, imports = _find_changed(overlay, "Export"), _find_changed(overlay, "Import")
    before = _routes_before(board, exports, imports)
    after = _routes_after(overlay, exports, imports, watch)
    cut = [
        CutRoute(route=route, reason=cut_reason(overlay, route))
        for pair, route in before.items()
        if pair not in after
    ]
    problems += _find_new_rings(overlay, before, after, put)
    problems += _find_schema_problems(overlay, after, put)
    changed = [
        ChangedRoute(route=route, old_route=before[pair])
        for pair, route in after.items()
        if pair in before and before[pair] != route
    ]
    return Forecast(
        added=tuple(_ordered(route for pair, route in after.items() if pair not in before)),
        cut=tuple(sorted(cut, key=lambda one: route_order(one.route))),
        changed=tuple(sorted(changed, key=lambda one: route_order(one.route))),
        unchanged=board.route_count - len(cut) - len(changed),
        edited=tuple(_find_edited(overlay, put)),
        problems=tuple(sorted(problems, key=lambda problem: problem.index)),
    )


def _ordered(routes: Iterable[Route]) -> list[Route]:
    return sorted(routes, key=route_order)


# ---- apply the changes -------------------------------------------------------------------------


def _apply_proposal(
    overlay: BoardOverlay, proposal: Proposal, watch: Callable[[int], None]
) -> tuple[list[ProposalProblem], dict[int, Resource]]:
    """Apply the changes to the overlay; return the problems, and the put resources by index."""
    problems: list[ProposalProblem] = []
    put: dict[int, Resource] = {}
    for index, resource in enumerate(proposal.puts):
        watch(0)
        fault = find_put_problem(overlay, resource)
        if fault is not None:
            problems.append(_make_problem(index, resource, fault.code, str(fault)))
            continue
        put[index] = _with_identity(overlay, index, resource)
        overlay.put(put[index])
    for index, removal in enumerate(proposal.deletes, len(proposal.puts)):
        kind, key, name = removal
        holder = overlay.holder(kind, key)
        if holder is not None and name in ("", name_of(holder)):
            overlay.remove(kind, holder.uid)
            continue
        code, detail = "UnknownPort", f"There is no {kind} at {key}."
        if holder is not None:
            code, detail = "PortTaken", f"{kind} {key} is {name_of(holder)!r}, not {name!r}."
        change = f"delete {kind.lower()} {key}"
        problems.append(ProposalProblem(index=index, change=change, code=code, detail=detail))
    return problems, put


def _find_edited(overlay: BoardOverlay, put: dict[int, Resource]) -> Iterator[EditedResource]:
    for kind, uid in dict.fromkeys((kind_of(one), one.uid) for one in put.values()):
        old, new = overlay.board.get(kind, uid), overlay.get(kind, uid)
        if old is not None and new is not None:
            edited = EditedResource(resource=new, old_resource=old)
            if edited.edits():
                yield edited


def _make_problem(
    index: int, resource: Resource, code: str, detail: str, *, refused: bool = True
) -> ProposalProblem:
    change = f"{kind_of(resource).lower()} {resource.key}"
    return ProposalProblem(index=index, change=change, code=code, detail=detail, refused=refused)


def _with_identity(overlay: BoardOverlay, index: int, resource: Resource) -> Resource:
    """Return a resource with the uid, age and generation it would get."""
    if resource.uid:
        return resource
    holder = overlay.holder(kind_of(resource), resource.key)
    if holder is None:
        return replace(resource, uid=f"proposed/{index:08}", created=float("inf"), generation=1)
    named = replace(
        resource,
        uid=holder.uid,
        created=holder.created,
        generation=holder.generation,
        name=resource.name or holder.name,
    )
    return named if named == holder else replace(named, generation=holder.generation + 1)


def _find_conflicts(overlay: BoardOverlay, put: dict[int, Resource]) -> list[ProposalProblem]:
    """Return the problems of resources that would exist but take no part."""
    problems = []
    last_index = {(kind_of(resource), resource.uid): index for index, resource in put.items()}
    for (kind, uid), index in last_index.items():
        resource = overlay.get(kind, uid)
        rival = None if resource is None else overlay.find_rival(resource)
        if resource is not None and rival is not None:
            code, older = rival
            taken = f"{resource.key}" if code == "PortTaken" else "its stream id"
            detail = f"{kind} {name_of(resource)}: {taken} is held by an older one, {older.key}."
            problems.append(_make_problem(index, resource, code, detail, refused=False))
    return problems


def _find_new_rings(
    overlay: BoardOverlay, before: _Routes, after: _Routes, put: dict[int, Resource]
) -> list[ProposalProblem]:
    """Return a problem for each new ring of jobs that may wait for each other."""
    board = overlay.board
    old_edges = {(route.export, route.import_) for route in before.values()}
    new_edges: dict[PeKey, list[WaitEdge]] = {}
    for route in after.values():
        export = overlay.get("Export", route.export_uid)
        if isinstance(export, Export):
            new_edges.setdefault(route.export.owner, []).extend(wait_edges(export, (route,)))

    def waits(pe: PeKey) -> Iterator[WaitEdge]:
        yield from (edge for edge in board.wait_edges(pe) if edge not in old_edges)
        yield from new_edges.get(pe, ())

    known_rings = {ring.members for ring in board.wait_rings.list_all()}
    seeds = sorted({edge.import_.owner for edges in new_edges.values() for edge in edges})
    rings = [ring for ring in find_rings(seeds, waits) if ring.members not in known_rings]
    return [_ring_problem(ring, put) for ring in rings if put]


def _ring_problem(ring: Ring, put: dict[int, Resource]) -> ProposalProblem:
    ports = {port for edge in ring.cycle for port in edge}
    indices = [index for index, resource in put.items() if resource.key in ports]
    index = min(indices or put)
    return _make_problem(index, put[index], RING, ring.describe(), refused=False)


def _find_schema_problems(
    overlay: BoardOverlay, after: _Routes, put: dict[int, Resource]
) -> list[ProposalProblem]:
    """Return what the policies of Exports, or Imports, do not allow of changed columns."""
    problems = []
    for index, export in put.items():
        old = overlay.board.get("Export", export.uid)
        if not isinstance(export, Export) or not isinstance(old, Export):
            continue
        if export.schema is None or old.schema is None or export.schema == old.schema:
            continue
        change = compare_schemas(old.schema, export.schema)
        refused = change.refused_by(export.schema_policy).describe()
        if refused:
            detail = (
                f"{refused}. The schemaPolicy of the Export, {export.schema_policy}, does not allow"
                " that, so its job cannot publish these columns."
            )
            problems.append(
                _make_problem(index, export, "SchemaIncompatible", detail, refused=False)
            )
        routes = (r for r in after.values() if r.export_uid == export.uid)
        imports = (overlay.get("Import", r.import_uid) for r in routes)
        stopped = [
            str(one.key)
            for one in imports
            if isinstance(one, Import) and one.schema and change.breaks(one.schema)
        ]
        if stopped:
            detail = (
                f"{change.describe()}. The queries of these Imports stop before rows of that:"
                f" {', '.join(sorted(stopped))}. Start them again with the wider types in schema=."
            )
            problems.append(_make_problem(index, export, "SchemaWidened", detail, refused=False))
    return problems


# ---- routes before and after -------------------------------------------------------------------

_ChangedResources: TypeAlias = "dict[str, Resource | None]"


def _find_changed(overlay: BoardOverlay, kind: Kind) -> _ChangedResources:
    """Return resources whose accepted state would change, by uid; None if no longer accepted."""
    changed: _ChangedResources = {}
    for uid in sorted(overlay.concerned_uids(kind)):
        before = overlay.board.get(kind, uid) if overlay.board.is_accepted(kind, uid) else None
        after = overlay.get(kind, uid)
        if after is not None and overlay.find_rival(after) is not None:
            after = None
        if before != after:
            changed[uid] = after
    return changed


def _uid_pair(route: Route) -> tuple[str, str]:
    return route.export_uid, route.import_uid


def _routes_before(
    board: BoardReader, exports: _ChangedResources, imports: _ChangedResources
) -> _Routes:
    kinds: tuple[tuple[Kind, _ChangedResources], ...] = (("Export", exports), ("Import", imports))
    return {
        _uid_pair(route): route
        for kind, changed in kinds
        for uid in changed
        for route in board.routes_of(kind, uid)
    }


def _routes_after(
    overlay: BoardOverlay,
    exports: _ChangedResources,
    imports: _ChangedResources,
    watch: Callable[[int], None],
) -> _Routes:
    board, routes = overlay.board, _Routes()
    for changed, others in ((exports, imports), (imports, exports)):
        for resource in changed.values():
            watch(len(routes))
            if resource is not None:
                kind: Kind = "Import" if isinstance(resource, Export) else "Export"
                for uid, outcome in board.outcomes_for(resource).items():
                    other = None if uid in others else board.get(kind, uid)
                    _add_route(routes, resource, other, outcome)
    matcher = IndexMatcher()
    for export in exports.values():
        if isinstance(export, Export):
            matcher.put(export)
    for import_ in imports.values():
        watch(len(routes))
        if isinstance(import_, Import):
            for uid, outcome in matcher.outcomes_for(import_).items():
                _add_route(routes, import_, exports[uid], outcome)
    return routes


def _add_route(
    routes: _Routes, one: Resource, other: Resource | None, outcome: MatchResult
) -> None:
    if isinstance(outcome, Match):
        export, import_ = (one, other) if isinstance(one, Export) else (other, one)
        if isinstance(export, Export) and isinstance(import_, Import):
            routes[(export.uid, import_.uid)] = build_route(export, import_, outcome)
