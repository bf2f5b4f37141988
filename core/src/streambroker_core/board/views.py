"""Draw a PE's view and a resource's status from the two halves of the board."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from streambroker_core.board.events import Status
from streambroker_core.board.half import Half
from streambroker_core.matching import (
    Match,
    Outcome,
    Refusal,
    canonical_filter,
    expression_problem,
    filter_problem,
)
from streambroker_core.model import Export, Import, PeKey, PortKey, Route
from streambroker_core.wire.registration import Registration
from streambroker_core.wire.view import (
    MAX_REFUSED,
    ExportPort,
    ExportRoute,
    ImportPort,
    ImportRoute,
    RefusedPair,
    View,
    seal,
)

R = TypeVar("R", Export, Import)

MAX_PEERS = 10
"""How many connected ports a status names."""


def view_of(
    pe: PeKey,
    exports: Half[Export],
    imports: Half[Import],
    registration: Callable[[PeKey], Registration | None],
) -> View:
    """Return a PE's sealed view, without point and capabilities."""
    return seal(
        View(
            pe=pe,
            exports={
                export.key.port: _export_port(export, exports, imports)
                for export in exports.holders(pe)
            },
            imports={
                import_.key.port: _import_port(import_, exports, imports, registration)
                for import_ in imports.holders(pe)
            },
        )
    )


def _peers(outcomes: Iterable[tuple[str, Outcome]], half: Half[R]) -> list[tuple[R, Outcome]]:
    found = [
        (resource, outcome)
        for uid, outcome in outcomes
        if (resource := half.shelf.get(uid)) is not None
    ]
    return sorted(found, key=lambda pair: (pair[0].key, pair[0].uid))


def _export_port(export: Export, exports: Half[Export], imports: Half[Import]) -> ExportPort:
    routes = [
        ExportRoute(
            import_=import_.key, uid=import_.uid, filter=outcome.filter, policy=outcome.policy
        )
        for import_, outcome in _peers(exports.outcomes_of(export.uid).items(), imports)
        if isinstance(outcome, Match)
    ]
    return ExportPort(
        uid=export.uid,
        generation=export.generation,
        properties=export.properties,
        stream_id=export.stream_id,
        allow_filter=export.allow_filter,
        congestion_policy=export.congestion_policy,
        buffer=export.buffer,
        schema=export.schema,
        routes=tuple(routes),
    )


def _import_port(
    import_: Import,
    exports: Half[Export],
    imports: Half[Import],
    registration: Callable[[PeKey], Registration | None],
) -> ImportPort:
    peers = _peers(imports.outcomes_of(import_.uid).items(), exports)
    routes = []
    for export, outcome in peers:
        if isinstance(outcome, Match):
            agent = registration(export.key.owner)
            routes.append(
                ImportRoute(
                    export=export.key,
                    uid=export.uid,
                    location=None if agent is None else agent.location,
                    issuer=None if agent is None else _issuer(export, agent),
                    filter=outcome.filter,
                    policy=outcome.policy,
                    schema=export.schema,
                )
            )
    return ImportPort(
        uid=import_.uid,
        generation=import_.generation,
        subscription=import_.subscription,
        streams=import_.streams,
        filter=canonical_filter(import_.filter),
        start=import_.start,
        on_congestion=import_.on_congestion,
        schema=import_.schema,
        routes=tuple(routes),
        refused=_refused(peers),
    )


def _issuer(export: Export, agent: Registration) -> str:
    return f"{agent.instance}/{'filter' if export.allow_filter else 'plain'}"


def _refused(peers: list[tuple[Export, Outcome]]) -> tuple[RefusedPair, ...]:
    found = [
        RefusedPair(export=export.key, reason=outcome.reason, message=outcome.message)
        for export, outcome in peers
        if isinstance(outcome, Refusal)
    ]
    return tuple(found[:MAX_REFUSED])


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
    peers = _peers(exports.outcomes_of(uid).items(), imports)
    return _accepted([r.key for r, outcome in peers if isinstance(outcome, Match)], ())


def import_status(uid: str, exports: Half[Export], imports: Half[Import]) -> Status | None:
    """Return what there is to say about an Import; None where it is not there."""
    import_ = imports.shelf.get(uid)
    if import_ is None:
        return None
    peers = _peers(imports.outcomes_of(uid).items(), exports)
    matched = [r.key for r, outcome in peers if isinstance(outcome, Match)]
    refused = _port_taken(uid, imports)
    if refused is None and (import_.streams or not matched):
        refused = _invalid(import_)
    if refused is not None:
        return refused
    pairs = _refused(peers)
    if import_.schema is None and not matched and _all_invalid(peers):
        return Status(
            accepted=False, reason="FilterInvalid", message=pairs[0].message, refused=pairs
        )
    return _accepted(matched, pairs)


def _all_invalid(peers: list[tuple[Export, Outcome]]) -> bool:
    words = {outcome.reason for _, outcome in peers if isinstance(outcome, Refusal)}
    return words == {"FilterInvalid"}


_ACCEPTED = Status()


def _accepted(matched: list[PortKey], refused: tuple[RefusedPair, ...]) -> Status:
    if not matched and not refused:
        return _ACCEPTED
    return Status(matches=len(matched), peers=tuple(matched[:MAX_PEERS]), refused=refused)


def _invalid(import_: Import) -> Status | None:
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
    resource = half.shelf.get(uid)
    return uid if resource is None else f"{resource.key} ({uid})"
