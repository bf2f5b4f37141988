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
from streambroker_core.board.admission import Cut, refusal, why_cut
from streambroker_core.board.overlay import Overlay
from streambroker_core.board.views import route_of
from streambroker_core.board.wait_cycles import RING, Edge, Ring, found_rings, waiting
from streambroker_core.matching import IndexMatcher, Match, Outcome
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
class Changed:
    """A route that would stay with another filter or policy."""

    route: Route
    was: Route


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
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
        kept: how many routes of the whole board would stay as they are.
        problems: in order of the changes.
    """

    added: tuple[Route, ...] = ()
    cut: tuple[Cut, ...] = ()
    changed: tuple[Changed, ...] = ()
    kept: int = 0
    problems: tuple[Problem, ...] = ()


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
    overlay = Overlay(board)
    problems, put = _take_in(overlay, proposal, watch)
    problems += _left_out(overlay, put)
    exports, imports = _moved(overlay, "Export"), _moved(overlay, "Import")
    before = _routes_before(board, exports, imports)
    after = _routes_after(overlay, exports, imports, watch)
    cut = [
        Cut(route=route, reason=why_cut(overlay, route))
        for pair, route in before.items()
        if pair not in after
    ]
    problems += _rings(overlay, before, after, put)
    changed = [
        Changed(route=route, was=before[pair])
        for pair, route in after.items()
        if pair in before and before[pair] != route
    ]
    return Forecast(
        added=tuple(_ordered(route for pair, route in after.items() if pair not in before)),
        cut=tuple(sorted(cut, key=lambda one: route_order(one.route))),
        changed=tuple(sorted(changed, key=lambda one: route_order(one.route))),
        kept=board.route_count - len(cut) - len(changed),
        problems=tuple(sorted(problems, key=lambda problem: problem.index)),
    )


def _ordered(routes: Iterable[Route]) -> list[Route]:
    return sorted(routes, key=route_order)


# ---- taking the changes in ---------------------------------------------------------------------


def _take_in(
    overlay: Overlay, proposal: Proposal, watch: Callable[[int], None]
) -> tuple[list[Problem], dict[int, Resource]]:
    """Make the changes on the overlay; return what is refused, and what was put, by index."""
    problems: list[Problem] = []
    put: dict[int, Resource] = {}
    for index, resource in enumerate(proposal.puts):
        watch(0)
        fault = refusal(overlay, resource)
        if fault is not None:
            problems.append(_problem(index, resource, fault.code, str(fault)))
            continue
        put[index] = _identified(overlay, index, resource)
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
        problems.append(Problem(index=index, change=change, code=code, detail=detail))
    return problems, put


def _problem(
    index: int, resource: Resource, code: str, detail: str, *, refused: bool = True
) -> Problem:
    change = f"{kind_of(resource).lower()} {resource.key}"
    return Problem(index=index, change=change, code=code, detail=detail, refused=refused)


def _identified(overlay: Overlay, index: int, resource: Resource) -> Resource:
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


def _left_out(overlay: Overlay, put: dict[int, Resource]) -> list[Problem]:
    """Return the problems of resources that would be there and take no part."""
    found = []
    last = {(kind_of(resource), resource.uid): index for index, resource in put.items()}
    for (kind, uid), index in last.items():
        resource = overlay.get(kind, uid)
        rival = None if resource is None else overlay.rival(resource)
        if resource is not None and rival is not None:
            code, older = rival
            taken = f"{resource.key}" if code == "PortTaken" else "its stream id"
            detail = f"{kind} {name_of(resource)}: {taken} is held by an older one, {older.key}."
            found.append(_problem(index, resource, code, detail, refused=False))
    return found


def _rings(
    overlay: Overlay, before: _Routes, after: _Routes, put: dict[int, Resource]
) -> list[Problem]:
    """Return a problem for each ring of waiting jobs that there would be and is not now."""
    board = overlay.board
    gone = {(route.export, route.import_) for route in before.values()}
    come: dict[PeKey, list[Edge]] = {}
    for route in after.values():
        export = overlay.get("Export", route.export_uid)
        if isinstance(export, Export):
            come.setdefault(route.export.owner, []).extend(waiting(export, (route,)))

    def waits(pe: PeKey) -> Iterator[Edge]:
        yield from (edge for edge in board.waits(pe) if edge not in gone)
        yield from come.get(pe, ())

    there = {ring.members for ring in board.rings()}
    seeds = sorted({edge.import_.owner for edges in come.values() for edge in edges})
    rings = [ring for ring in found_rings(seeds, waits) if ring.members not in there]
    return [_ring(ring, put) for ring in rings if put]


def _ring(ring: Ring, put: dict[int, Resource]) -> Problem:
    ports = {port for edge in ring.round for port in edge}
    named = [index for index, resource in put.items() if resource.key in ports]
    index = min(named or put)
    return _problem(index, put[index], RING, ring.told(), refused=False)


# ---- routes before and after -------------------------------------------------------------------

_Moved: TypeAlias = "dict[str, Resource | None]"


def _moved(overlay: Overlay, kind: Kind) -> _Moved:
    """Return the resources whose part is another, by uid; None for no part any more."""
    found: _Moved = {}
    for uid in sorted(overlay.concerned(kind)):
        before = overlay.board.get(kind, uid) if overlay.board.takes_part(kind, uid) else None
        after = overlay.get(kind, uid)
        if after is not None and overlay.rival(after) is not None:
            after = None
        if before != after:
            found[uid] = after
    return found


def _pair(route: Route) -> tuple[str, str]:
    return route.export_uid, route.import_uid


def _routes_before(board: Board, exports: _Moved, imports: _Moved) -> _Routes:
    kinds: tuple[tuple[Kind, _Moved], ...] = (("Export", exports), ("Import", imports))
    return {
        _pair(route): route
        for kind, moved in kinds
        for uid in moved
        for route in board.routes_of(kind, uid)
    }


def _routes_after(
    overlay: Overlay, exports: _Moved, imports: _Moved, watch: Callable[[int], None]
) -> _Routes:
    found: _Routes = {}
    for moved, others in ((exports, imports), (imports, exports)):
        for resource in moved.values():
            watch(len(found))
            if resource is not None:
                _note(found, _met(overlay, resource, others))
    matcher = IndexMatcher()
    for export in exports.values():
        if isinstance(export, Export):
            matcher.put_export(export)
    for import_ in imports.values():
        watch(len(found))
        if isinstance(import_, Import):
            _note(found, _met_anew(matcher, exports, import_))
    return found


def _note(found: _Routes, met: Iterable[tuple[Resource | None, Resource | None, Outcome]]) -> None:
    for export, import_, outcome in met:
        if not isinstance(outcome, Match):
            continue
        if isinstance(export, Export) and isinstance(import_, Import):
            found[(export.uid, import_.uid)] = route_of(export, import_, outcome)


def _met(
    overlay: Overlay, resource: Resource, others: _Moved
) -> Iterator[tuple[Resource | None, Resource | None, Outcome]]:
    """Yield what a moved resource would meet among those that stay as they are."""
    board = overlay.board
    for uid, outcome in board.outcomes_for(resource).items():
        if uid in others:
            continue
        if isinstance(resource, Export):
            yield resource, board.get("Import", uid), outcome
        else:
            yield board.get("Export", uid), resource, outcome


def _met_anew(
    matcher: IndexMatcher, exports: _Moved, import_: Import
) -> Iterator[tuple[Resource | None, Resource | None, Outcome]]:
    """Yield what moved resources would be to each other."""
    for uid, outcome in matcher.outcomes_for(import_).items():
        yield exports[uid], import_, outcome
