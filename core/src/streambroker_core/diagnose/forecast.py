"""What a set of changes would do to the routes.

The changes are taken one by one in their order, as applying them would: an
identity for what is new, a refusal for what cannot be, and then the routes of
all that these changes concern, before and after. Everything else stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from streambroker_core.board import Board
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
    PortKey,
    Resource,
    Route,
    kind_of,
    name_of,
    route_order,
)


class Removal(NamedTuple):
    """A port whose resource is to be deleted; with a name, only the resource of that name."""

    kind: Kind
    key: PortKey
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Changes that somebody has in mind, in the order in which they would be made.

    Attributes:
        puts: resources to create or replace. One without uid is meant for its
            port: it replaces the resource that holds it, or is a new one, younger
            than all others. One with a uid is taken as it is.
        deletes: ports whose resources are to be deleted, after all puts.
    """

    puts: tuple[Resource, ...] = ()
    deletes: tuple[Removal, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedRoute:
    """A route that would stay with another filter or policy."""

    route: Route
    old_route: Route


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalProblem:
    """What is wrong with one of the changes.

    Attributes:
        index: of the change, puts and deletes counted as one list from 0.
        change: what it is about, as ``import default/alerts/0/trades``.
        code: the word for it.
        detail: a sentence.
        refused: whether the change would not be made at all. One that would be
            made and leads to nothing, as its port or its stream id is another's, or
            to jobs that may wait for each other in a ring, has this False.
    """

    index: int
    change: str
    code: str
    detail: str
    refused: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What the changes would do; every list in order of exporter and importer.

    Attributes:
        unchanged: how many routes of the whole board would stay as they are.
        problems: in order of the changes.
    """

    added: tuple[Route, ...] = ()
    cut: tuple[CutRoute, ...] = ()
    changed: tuple[ChangedRoute, ...] = ()
    unchanged: int = 0
    problems: tuple[ProposalProblem, ...] = ()


_Routes: TypeAlias = "dict[tuple[str, str], Route]"


def forecast(
    board: Board, proposal: Proposal, *, watch: Callable[[int], None] = lambda routes: None
) -> Forecast:
    """Return what applying a proposal to a board would do.

    The board is not changed and not copied: the cost follows the resources
    proposed and those they meet, but for one look at each Export to count its
    routes.

    Args:
        board: the board as it is.
        proposal: the changes.
        watch: called before each resource that is matched, with the number of
            routes found so far; what it raises ends the forecast.
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
        problems=tuple(sorted(problems, key=lambda problem: problem.index)),
    )


def _ordered(routes: Iterable[Route]) -> list[Route]:
    return sorted(routes, key=route_order)


# ---- taking the changes in ---------------------------------------------------------------------


def _apply_proposal(
    overlay: BoardOverlay, proposal: Proposal, watch: Callable[[int], None]
) -> tuple[list[ProposalProblem], dict[int, Resource]]:
    """Make the changes on the overlay; return what is refused, and what was put, by index."""
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


def _make_problem(
    index: int, resource: Resource, code: str, detail: str, *, refused: bool = True
) -> ProposalProblem:
    change = f"{kind_of(resource).lower()} {resource.key}"
    return ProposalProblem(index=index, change=change, code=code, detail=detail, refused=refused)


def _with_identity(overlay: BoardOverlay, index: int, resource: Resource) -> Resource:
    """Return a resource with the identity that it would get."""
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
    """Return the problems of resources that would be there and take no part."""
    found = []
    last = {(kind_of(resource), resource.uid): index for index, resource in put.items()}
    for (kind, uid), index in last.items():
        resource = overlay.get(kind, uid)
        rival = None if resource is None else overlay.find_rival(resource)
        if resource is not None and rival is not None:
            code, older = rival
            taken = f"{resource.key}" if code == "PortTaken" else "its stream id"
            detail = f"{kind} {name_of(resource)}: {taken} is held by an older one, {older.key}."
            found.append(_make_problem(index, resource, code, detail, refused=False))
    return found


def _find_new_rings(
    overlay: BoardOverlay, before: _Routes, after: _Routes, put: dict[int, Resource]
) -> list[ProposalProblem]:
    """Return a problem for each ring of waiting jobs that there would be and is not now."""
    board = overlay.board
    gone = {(route.export, route.import_) for route in before.values()}
    come: dict[PeKey, list[WaitEdge]] = {}
    for route in after.values():
        export = overlay.get("Export", route.export_uid)
        if isinstance(export, Export):
            come.setdefault(route.export.owner, []).extend(wait_edges(export, (route,)))

    def waits(pe: PeKey) -> Iterator[WaitEdge]:
        yield from (edge for edge in board.wait_edges(pe) if edge not in gone)
        yield from come.get(pe, ())

    there = {ring.members for ring in board.rings()}
    seeds = sorted({edge.import_.owner for edges in come.values() for edge in edges})
    rings = [ring for ring in find_rings(seeds, waits) if ring.members not in there]
    return [_ring_problem(ring, put) for ring in rings if put]


def _ring_problem(ring: Ring, put: dict[int, Resource]) -> ProposalProblem:
    ports = {port for edge in ring.cycle for port in edge}
    named = [index for index, resource in put.items() if resource.key in ports]
    index = min(named or put)
    return _make_problem(index, put[index], RING, ring.describe(), refused=False)


# ---- routes before and after -------------------------------------------------------------------

_ChangedResources: TypeAlias = "dict[str, Resource | None]"


def _find_changed(overlay: BoardOverlay, kind: Kind) -> _ChangedResources:
    """Return the resources whose part is another, by uid; None for no part any more."""
    found: _ChangedResources = {}
    for uid in sorted(overlay.concerned_uids(kind)):
        before = overlay.board.get(kind, uid) if overlay.board.is_accepted(kind, uid) else None
        after = overlay.get(kind, uid)
        if after is not None and overlay.find_rival(after) is not None:
            after = None
        if before != after:
            found[uid] = after
    return found


def _uid_pair(route: Route) -> tuple[str, str]:
    return route.export_uid, route.import_uid


def _routes_before(board: Board, exports: _ChangedResources, imports: _ChangedResources) -> _Routes:
    kinds: tuple[tuple[Kind, _ChangedResources], ...] = (("Export", exports), ("Import", imports))
    return {
        _uid_pair(route): route
        for kind, moved in kinds
        for uid in moved
        for route in board.routes_of(kind, uid)
    }


def _routes_after(
    overlay: BoardOverlay,
    exports: _ChangedResources,
    imports: _ChangedResources,
    watch: Callable[[int], None],
) -> _Routes:
    found: _Routes = {}
    for moved, others in ((exports, imports), (imports, exports)):
        for resource in moved.values():
            watch(len(found))
            if resource is not None:
                _add_routes(found, _match_unchanged(overlay, resource, others))
    matcher = IndexMatcher()
    for export in exports.values():
        if isinstance(export, Export):
            matcher.put_export(export)
    for import_ in imports.values():
        watch(len(found))
        if isinstance(import_, Import):
            _add_routes(found, _match_changed(matcher, exports, import_))
    return found


def _add_routes(
    routes: _Routes, outcomes: Iterable[tuple[Resource | None, Resource | None, MatchResult]]
) -> None:
    for export, import_, outcome in outcomes:
        if not isinstance(outcome, Match):
            continue
        if isinstance(export, Export) and isinstance(import_, Import):
            routes[(export.uid, import_.uid)] = build_route(export, import_, outcome)


def _match_unchanged(
    overlay: BoardOverlay, resource: Resource, others: _ChangedResources
) -> Iterator[tuple[Resource | None, Resource | None, MatchResult]]:
    """Yield what a moved resource would meet among those that stay as they are."""
    board = overlay.board
    for uid, outcome in board.outcomes_for(resource).items():
        if uid in others:
            continue
        if isinstance(resource, Export):
            yield resource, board.get("Import", uid), outcome
        else:
            yield board.get("Export", uid), resource, outcome


def _match_changed(
    matcher: IndexMatcher, exports: _ChangedResources, import_: Import
) -> Iterator[tuple[Resource | None, Resource | None, MatchResult]]:
    """Yield what moved resources would be to each other."""
    for uid, outcome in matcher.outcomes_for(import_).items():
        yield exports[uid], import_, outcome
