"""JSON-like representations of resources, PEs and routes for REST and events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from streambroker_core.board import BoardReader, Status
from streambroker_core.model import Export, PeKey, Route, kind_of
from streambroker_core.wire.broker.registration import Registration
from streambroker_core.wire.encoding.canonical import JsonObject, without_none
from streambroker_core.wire.manifests.ports import Manifest, write_manifest
from streambroker_core.wire.reports.schema_status import write_schema_status
from streambroker_operator.agents.ended_exports import ExportFacts, ExportReports
from streambroker_operator.agents.liveness import AgentLiveness
from streambroker_operator.storage.backend import StoredResource


def route_body(route: Route) -> JsonObject:
    """Return the JSON of a route."""
    return {
        "export": str(route.export),
        "import": str(route.import_),
        "filter": route.filter,
        "policy": route.policy,
    }


def changed_values_body(current: Route, previous: Route) -> JsonObject:
    """Return the previous values of the fields that changed."""
    old, new = route_body(previous), route_body(current)
    return {name: value for name, value in old.items() if value != new[name]}


class ResourceBody(Manifest):
    """Manifest of a port or a rule, with its status."""

    status: JsonObject


def resource_body(
    board: BoardReader, stored: StoredResource, export_reports: ExportReports
) -> ResourceBody:
    """Return a resource's manifest with its status on the board."""
    resource = stored.resource
    return build_resource_body(
        stored, board.status(kind_of(resource), resource.uid), export_reports
    )


def build_resource_body(
    stored: StoredResource, status: Status | None, export_reports: ExportReports
) -> ResourceBody:
    """Return a resource's manifest with a status; empty if None.

    An Export's status also has `ended`, `damaged` if its log is damaged, `stored` if its agent has
    object storage or the Export demands it, and `schemaVersion` once its agent has published rows.
    """
    resource = stored.resource
    status_json: JsonObject = {} if status is None else _status_body(status)
    if status is not None and isinstance(resource, Export):
        facts = export_reports.facts(resource) if status.accepted else ExportFacts()
        stored_json = None if facts.stored is None else asdict(facts.stored)
        reported = without_none(
            ended=facts.ended,
            damaged=facts.damaged or None,
            stored=stored_json,
            schemaVersion=write_schema_status(facts.schema),
        )
        status_json = {**status_json, **reported}
    return {**write_manifest(resource, version=stored.version), "status": status_json}


def _status_body(status: Status) -> JsonObject:
    return {
        "accepted": status.accepted,
        "reason": status.reason,
        "message": status.message,
        "matches": status.matches,
        "topMatches": [str(key) for key in status.peers],
        "refused": [
            {"export": str(pair.export), "reason": pair.reason, "message": pair.message}
            for pair in status.refused
        ],
        **({"ring": status.ring} if status.ring else {}),
    }


def pe_body(board: BoardReader, pe: PeKey, liveness: AgentLiveness) -> JsonObject:
    """Return the JSON of a PE as the board knows it."""
    exports, imports = board.ports(pe)
    agent = board.registration(pe)
    return build_pe_body(pe, agent, board.version(pe), exports, imports, liveness)


def build_pe_body(
    pe: PeKey,
    registration: Registration | None,
    version: str | None,
    exports: Sequence[str],
    imports: Sequence[str],
    liveness: AgentLiveness,
) -> JsonObject:
    """Return the JSON of a PE: its agent, last contact, and port names in order."""
    return {
        "namespace": pe.namespace,
        "job": pe.job,
        "pe": pe.pe,
        "location": None if registration is None else registration.location,
        "seen": liveness.last_contact(pe),
        "version": version,
        "exports": list(exports),
        "imports": list(imports),
    }
