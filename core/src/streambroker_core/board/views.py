"""Build a PE's view and a resource's status from the port indexes of the board."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from streambroker_core.board.events import Status, Unreadable
from streambroker_core.board.port_index import PeerSet, PortIndex
from streambroker_core.board.route_digests import RouteDigests, issuer_for
from streambroker_core.matching import (
    Match,
    MatchResult,
    NoMatch,
    canonical_filter,
    expression_problem,
    filter_problem,
    is_namespace_allowed,
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
    hash_view,
)
from streambroker_core.wire.broker.view_rules import ViewRules

R = TypeVar("R", Export, Import)

MAX_PEERS = 10
"""Maximum number of connected ports in a status."""
_MAX_PROBLEM_LENGTH = 800
"""Maximum length of a problem in a status, so that the running generation still fits in."""


def build_view(
    pe: PeKey,
    exports: PortIndex[Export],
    imports: PortIndex[Import],
    registration: Callable[[PeKey], Registration | None],
    rules: ViewRules | None,
    held: Mapping[str, str],
) -> View:
    """Return a PE's view without version, point and capabilities.

    ``held`` are the namespaces of held Imports by uid.
    """
    view = _build_ports(pe, exports, imports, rules, held)
    return replace(
        view,
        exports={
            name: replace(port, routes=_build_export_routes(port.uid, exports, imports))
            for name, port in view.exports.items()
        },
        imports={
            name: replace(
                port, routes=_build_import_routes(port.uid, exports, imports, registration)
            )
            for name, port in view.imports.items()
        },
    )


def compute_view_version(
    pe: PeKey,
    exports: PortIndex[Export],
    imports: PortIndex[Import],
    digests: RouteDigests,
    rules: ViewRules | None,
    held: Mapping[str, str],
) -> str:
    """Return the version of a PE's view from the route digests, without iterating over routes."""
    view = _build_ports(pe, exports, imports, rules, held)
    return hash_view(
        view,
        {name: digests.export_digests.get(port.uid, 0) for name, port in view.exports.items()},
        {name: digests.import_digests.get(port.uid, 0) for name, port in view.imports.items()},
    )


def is_affected_by_namespace(pe: PeKey, exports: PortIndex[Export], namespace: str) -> bool:
    """Return whether a PE may have routes of Imports of a namespace."""
    return pe.namespace == namespace or any(
        is_namespace_allowed(export, namespace) for export in exports.holders(pe)
    )


def _build_ports(
    pe: PeKey,
    exports: PortIndex[Export],
    imports: PortIndex[Import],
    rules: ViewRules | None,
    held: Mapping[str, str],
) -> View:
    return View(
        pe=pe,
        rules=rules,
        held=tuple(sorted(uid for uid in held if is_affected_by_namespace(pe, exports, held[uid]))),
        exports={export.key.port: _build_export_port(export) for export in exports.holders(pe)},
        imports={
            import_.key.port: _build_import_port(import_, exports, imports)
            for import_ in imports.holders(pe)
        },
    )


def _iter_peers(peers: PeerSet, index: PortIndex[R]) -> Iterator[tuple[R, MatchResult]]:
    for uid, outcome in peers.items():
        resource = index.cache.get(uid)
        if resource is not None:
            yield resource, outcome


def _build_export_routes(
    uid: str, exports: PortIndex[Export], imports: PortIndex[Import]
) -> tuple[ExportRoute, ...]:
    return tuple(
        ExportRoute(
            import_=import_.key, uid=import_.uid, filter=outcome.filter, policy=outcome.policy
        )
        for import_, outcome in _iter_peers(exports.peers_for(uid), imports)
        if isinstance(outcome, Match)
    )


def _build_import_routes(
    uid: str,
    exports: PortIndex[Export],
    imports: PortIndex[Import],
    registration: Callable[[PeKey], Registration | None],
) -> tuple[ImportRoute, ...]:
    routes = []
    for export, outcome in _iter_peers(imports.peers_for(uid), exports):
        if isinstance(outcome, Match):
            agent = registration(export.key.owner)
            routes.append(
                ImportRoute(
                    export=export.key,
                    uid=export.uid,
                    location=None if agent is None else agent.location,
                    issuer=None if agent is None else issuer_for(export, agent),
                    filter=outcome.filter,
                    policy=outcome.policy,
                    schema=export.schema,
                )
            )
    return tuple(routes)


def _build_export_port(export: Export) -> ExportPort:
    return ExportPort(
        uid=export.uid,
        generation=export.generation,
        properties=export.properties,
        stream_id=export.stream_id,
        allow_filter=export.allow_filter,
        congestion_policy=export.congestion_policy,
        buffer=export.buffer,
        durability=export.durability,
        archive=export.archive,
        schema=export.schema,
        schema_policy=export.schema_policy,
        revoked=export.revoked,
        policies=export.policies,
    )


def _build_import_port(
    import_: Import, exports: PortIndex[Export], imports: PortIndex[Import]
) -> ImportPort:
    return ImportPort(
        uid=import_.uid,
        generation=import_.generation,
        subscription=import_.subscription,
        streams=import_.streams,
        filter=canonical_filter(import_.filter),
        start=import_.start,
        on_congestion=import_.on_congestion,
        schema=import_.schema,
        refused=_refused_pairs(imports.peers_for(import_.uid), exports),
    )


def _refused_pairs(peers: PeerSet, exports: PortIndex[Export]) -> tuple[RefusedPair, ...]:
    if peers.matches == len(peers.outcomes):
        return ()
    pairs = (
        RefusedPair(export=export.key, reason=outcome.reason, message=outcome.message)
        for export, outcome in _iter_peers(peers, exports)
        if isinstance(outcome, NoMatch)
    )
    return tuple(islice(pairs, MAX_REFUSED))


def build_route(export: Export, import_: Import, match: Match) -> Route:
    """Return the route of a match."""
    return Route(
        export=export.key,
        export_uid=export.uid,
        import_=import_.key,
        import_uid=import_.uid,
        filter=match.filter,
        policy=match.policy,
    )


def export_status(
    uid: str, exports: PortIndex[Export], imports: PortIndex[Import]
) -> Status | None:
    """Return the status of an Export; None if it does not exist or is unreadable."""
    export = exports.cache.get(uid)
    if export is None:
        return None
    refused = _port_conflict(uid, exports) or _stream_conflict(export, exports)
    if refused is not None:
        return refused
    return _accepted_status(exports.peers_for(uid), imports, ())


def import_status(
    uid: str, exports: PortIndex[Export], imports: PortIndex[Import], fault: Status | None
) -> Status | None:
    """Return the status of an Import, given its own fault if any; None if it does not exist."""
    import_ = imports.cache.get(uid)
    if import_ is None:
        return None
    peers = imports.peers_for(uid)
    refused = _port_conflict(uid, imports) or fault
    if refused is not None:
        return refused
    pairs = _refused_pairs(peers, exports)
    invalid = None if import_.schema is not None or peers.matches else _find_invalid_filter(peers)
    if invalid is not None:
        return Status(accepted=False, reason="FilterInvalid", message=invalid, refused=pairs)
    return _accepted_status(peers, exports, pairs)


def _find_invalid_filter(peers: PeerSet) -> str | None:
    """Return why an Export rejects the filter (`FilterInvalid`); None if none does."""
    return next(
        (
            outcome.message
            for _, outcome in peers.items()
            if isinstance(outcome, NoMatch) and outcome.reason == "FilterInvalid"
        ),
        None,
    )


def unreadable_status(entry: Unreadable | None) -> Status | None:
    """Return the status of an unreadable resource."""
    if entry is None:
        return None
    return Status(accepted=False, reason=entry.code, message=entry.problem)


def with_rejected(status: Status, resource: Export | Import | Rule | None) -> Status:
    """Return a status with the rejected later generation, if any, and the running one."""
    newer = None if resource is None else resource.rejected
    if resource is None or newer is None or not status.accepted:
        return status
    problem = newer.problem.rstrip(".")
    problem = (
        problem if len(problem) <= _MAX_PROBLEM_LENGTH else f"{problem[:_MAX_PROBLEM_LENGTH]}…"
    )
    return replace(
        status,
        accepted=False,
        reason=newer.code,
        running_generation=resource.generation,
        message=f"generation {newer.generation} is refused: {problem};"
        f" generation {resource.generation} runs",
    )


ACCEPTED = Status()
"""Status of most resources: accepted, without matches."""


def _accepted_status(
    peers: PeerSet, other: PortIndex[R], refused: tuple[RefusedPair, ...]
) -> Status:
    if not peers.matches and not refused:
        return ACCEPTED
    matched = (r.key for r, outcome in _iter_peers(peers, other) if isinstance(outcome, Match))
    return Status(matches=peers.matches, peers=tuple(islice(matched, MAX_PEERS)), refused=refused)


def find_fault(import_: Import) -> Status | None:
    """Return the fault of an Import that does not depend on any Export, if there is one."""
    problem = expression_problem(import_.subscription, "subscription") or filter_problem(
        import_.filter, import_.schema
    )
    if problem is None:
        return None
    return Status(accepted=False, reason=problem.code, message=str(problem))


def _port_conflict(uid: str, index: PortIndex[Export] | PortIndex[Import]) -> Status | None:
    rival = index.ownership.port_rival(uid)
    resource = index.cache.get(uid)
    if rival is None or resource is None:
        return None
    return Status(
        accepted=False,
        reason="PortTaken",
        message=f"{resource.key} is held by an older resource, {_display_name(rival, index)}",
    )


def _stream_conflict(export: Export, exports: PortIndex[Export]) -> Status | None:
    rival = exports.ownership.stream_rival(export.uid)
    if rival is None:
        return None
    return Status(
        accepted=False,
        reason="StreamIdTaken",
        message=f"the stream id {export.stream_id!r} is held by an older Export of the same "
        f"application and job, {_display_name(rival, exports)}",
    )


def _display_name(uid: str, index: PortIndex[Export] | PortIndex[Import]) -> str:
    """Return kind, namespace and name of a resource, in the form of `kubectl get`."""
    resource = index.cache.get(uid)
    if resource is None:
        return uid
    return f"{kind_of(resource)} {resource.key.namespace}/{name_of(resource)}"
