"""Draw a PE's view and a resource's status from the two halves of the board."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from streambroker_core.board.events import Status, Unreadable
from streambroker_core.board.port_index import Half, Met
from streambroker_core.board.route_digests import Marks, issuer_of
from streambroker_core.matching import (
    Match,
    Outcome,
    Refusal,
    admits,
    canonical_filter,
    expression_problem,
    filter_problem,
)
from streambroker_core.model import Export, Import, PeKey, Route, Rule, kind_of, name_of
from streambroker_core.wire.broker.registration import Registration
from streambroker_core.wire.broker.view import (
    MAX_REFUSED,
    ExportPort,
    ExportRoute,
    ImportPort,
    ImportRoute,
    RefusedPair,
    View,
    version_of,
)
from streambroker_core.wire.broker.view_rules import WantedRules

R = TypeVar("R", Export, Import)

NONE_HELD: Mapping[str, str] = {}
"""No Import that is held; else, by uid, in which namespace each is."""
MAX_PEERS = 10
"""How many connected ports a status names."""
_LONGEST = 800
"""Characters of a problem, so that a status still names what runs."""


def view_of(
    pe: PeKey,
    exports: Half[Export],
    imports: Half[Import],
    registration: Callable[[PeKey], Registration | None],
    rules: WantedRules | None = None,
    held: Mapping[str, str] = NONE_HELD,
) -> View:
    """Return a PE's view, without version, point and capabilities."""
    bare = _bare(pe, exports, imports, rules, held)
    return replace(
        bare,
        exports={
            name: replace(port, routes=_export_routes(port.uid, exports, imports))
            for name, port in bare.exports.items()
        },
        imports={
            name: replace(port, routes=_import_routes(port.uid, exports, imports, registration))
            for name, port in bare.imports.items()
        },
    )


def view_version(
    pe: PeKey,
    exports: Half[Export],
    imports: Half[Import],
    marks: Marks,
    rules: WantedRules | None = None,
    held: Mapping[str, str] = NONE_HELD,
) -> str:
    """Return the version of a PE's view, without going through its routes."""
    bare = _bare(pe, exports, imports, rules, held)
    return version_of(
        bare,
        {name: marks.of_exports.get(port.uid, 0) for name, port in bare.exports.items()},
        {name: marks.of_imports.get(port.uid, 0) for name, port in bare.imports.items()},
    )


def concerns(pe: PeKey, exports: Half[Export], namespace: str) -> bool:
    """Say whether a PE may have routes of Imports of a namespace."""
    return pe.namespace == namespace or any(
        admits(export, namespace) for export in exports.holders(pe)
    )


def _bare(
    pe: PeKey,
    exports: Half[Export],
    imports: Half[Import],
    rules: WantedRules | None,
    held: Mapping[str, str],
) -> View:
    """Return a PE's view without routes."""
    return View(
        pe=pe,
        rules=rules,
        held=tuple(sorted(uid for uid in held if concerns(pe, exports, held[uid]))),
        exports={export.key.port: _export_port(export) for export in exports.holders(pe)},
        imports={
            import_.key.port: _import_port(import_, exports, imports)
            for import_ in imports.holders(pe)
        },
    )


def _peers(met: Met, half: Half[R]) -> Iterator[tuple[R, Outcome]]:
    for uid, outcome in met.each():
        resource = half.shelf.get(uid)
        if resource is not None:
            yield resource, outcome


def _export_routes(
    uid: str, exports: Half[Export], imports: Half[Import]
) -> tuple[ExportRoute, ...]:
    return tuple(
        ExportRoute(
            import_=import_.key, uid=import_.uid, filter=outcome.filter, policy=outcome.policy
        )
        for import_, outcome in _peers(exports.met(uid), imports)
        if isinstance(outcome, Match)
    )


def _import_routes(
    uid: str,
    exports: Half[Export],
    imports: Half[Import],
    registration: Callable[[PeKey], Registration | None],
) -> tuple[ImportRoute, ...]:
    routes = []
    for export, outcome in _peers(imports.met(uid), exports):
        if isinstance(outcome, Match):
            agent = registration(export.key.owner)
            routes.append(
                ImportRoute(
                    export=export.key,
                    uid=export.uid,
                    location=None if agent is None else agent.location,
                    issuer=None if agent is None else issuer_of(export, agent),
                    filter=outcome.filter,
                    policy=outcome.policy,
                    schema=export.schema,
                )
            )
    return tuple(routes)


def _export_port(export: Export) -> ExportPort:
    return ExportPort(
        uid=export.uid,
        generation=export.generation,
        properties=export.properties,
        stream_id=export.stream_id,
        allow_filter=export.allow_filter,
        congestion_policy=export.congestion_policy,
        buffer=export.buffer,
        schema=export.schema,
        revoked=export.revoked,
    )


def _import_port(import_: Import, exports: Half[Export], imports: Half[Import]) -> ImportPort:
    return ImportPort(
        uid=import_.uid,
        generation=import_.generation,
        subscription=import_.subscription,
        streams=import_.streams,
        filter=canonical_filter(import_.filter),
        start=import_.start,
        on_congestion=import_.on_congestion,
        schema=import_.schema,
        refused=_refused(imports.met(import_.uid), exports),
    )


def _refused(met: Met, exports: Half[Export]) -> tuple[RefusedPair, ...]:
    if met.matches == len(met.outcomes):
        return ()
    found = (
        RefusedPair(export=export.key, reason=outcome.reason, message=outcome.message)
        for export, outcome in _peers(met, exports)
        if isinstance(outcome, Refusal)
    )
    return tuple(islice(found, MAX_REFUSED))


def route_of(export: Export, import_: Import, match: Match) -> Route:
    """Return the route that a match makes."""
    return Route(
        export=export.key,
        export_uid=export.uid,
        import_=import_.key,
        import_uid=import_.uid,
        filter=match.filter,
        policy=match.policy,
    )


def export_status(uid: str, exports: Half[Export], imports: Half[Import]) -> Status | None:
    """Return what there is to say about an Export; None where it is not there."""
    export = exports.shelf.get(uid)
    if export is None:
        return None
    refused = _port_taken(uid, exports) or _stream_taken(export, exports)
    if refused is not None:
        return refused
    return _accepted(exports.met(uid), imports, ())


def import_status(
    uid: str, exports: Half[Export], imports: Half[Import], fault: Status | None
) -> Status | None:
    """Return what there is to say about an Import with some fault; None where it is not there."""
    import_ = imports.shelf.get(uid)
    if import_ is None:
        return None
    met = imports.met(uid)
    refused = _port_taken(uid, imports) or fault
    if refused is not None:
        return refused
    pairs = _refused(met, exports)
    invalid = None if import_.schema is not None or met.matches else _invalid_filter(met)
    if invalid is not None:
        return Status(accepted=False, reason="FilterInvalid", message=invalid, refused=pairs)
    return _accepted(met, exports, pairs)


def _invalid_filter(met: Met) -> str | None:
    """Return why the first Export that allows filters cannot use this one; None if it can."""
    return next(
        (
            outcome.message
            for _, outcome in met.each()
            if isinstance(outcome, Refusal) and outcome.reason == "FilterInvalid"
        ),
        None,
    )


def unread_status(what: Unreadable | None) -> Status | None:
    """Return what there is to say about a resource that cannot be read."""
    if what is None:
        return None
    return Status(accepted=False, reason=what.code, message=what.problem)


def with_newer(status: Status, resource: Export | Import | Rule | None) -> Status:
    """Return a status that says, where a later generation is refused, why and what runs."""
    newer = None if resource is None else resource.newer
    if resource is None or newer is None or not status.accepted:
        return status
    problem = newer.problem.rstrip(".")
    problem = problem if len(problem) <= _LONGEST else f"{problem[:_LONGEST]}…"
    return replace(
        status,
        accepted=False,
        reason=newer.code,
        runs=resource.generation,
        message=f"generation {newer.generation} is refused: {problem};"
        f" generation {resource.generation} runs",
    )


ACCEPTED = Status()
"""Of most resources there is no more to say."""


def _accepted(met: Met, other: Half[R], refused: tuple[RefusedPair, ...]) -> Status:
    if not met.matches and not refused:
        return ACCEPTED
    matched = (r.key for r, outcome in _peers(met, other) if isinstance(outcome, Match))
    return Status(matches=met.matches, peers=tuple(islice(matched, MAX_PEERS)), refused=refused)


def fault_of(import_: Import) -> Status | None:
    """Return what is wrong with an Import by itself, whatever there is to import."""
    problem = expression_problem(import_.subscription, "subscription") or filter_problem(
        import_.filter, import_.schema
    )
    if problem is None:
        return None
    return Status(accepted=False, reason=problem.code, message=str(problem))


def _port_taken(uid: str, half: Half[Export] | Half[Import]) -> Status | None:
    rival = half.roster.port_rival(uid)
    resource = half.shelf.get(uid)
    if rival is None or resource is None:
        return None
    return Status(
        accepted=False,
        reason="PortTaken",
        message=f"{resource.key} is held by an older resource, {_name(rival, half)}",
    )


def _stream_taken(export: Export, exports: Half[Export]) -> Status | None:
    rival = exports.roster.stream_rival(export.uid)
    if rival is None:
        return None
    return Status(
        accepted=False,
        reason="StreamIdTaken",
        message=f"the stream id {export.stream_id!r} is held by an older Export of the same "
        f"application and job, {_name(rival, exports)}",
    )


def _name(uid: str, half: Half[Export] | Half[Import]) -> str:
    """Return kind, namespace and name of a resource, as `kubectl get` takes them."""
    resource = half.shelf.get(uid)
    if resource is None:
        return uid
    return f"{kind_of(resource)} {resource.key.namespace}/{name_of(resource)}"
