"""View of a PE: its ports, their routes and the rules of its job.

The broker sends it; the agent applies it and keeps it on disk. `decode` also reads route files
that users write.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from streambroker_core.errors import FormatTooNewError, ManifestError, SchemaError
from streambroker_core.model import (
    DEFAULT_NAMESPACE,
    MAX_PE,
    Archive,
    Buffer,
    Durability,
    OnCongestion,
    PeKey,
    Policy,
    PortKey,
    Properties,
    StreamName,
    is_label,
)
from streambroker_core.model.policies import NO_POLICIES, Policies
from streambroker_core.model.schema import Schema, SchemaPolicy, from_items, to_items
from streambroker_core.wire.broker.hints import Point
from streambroker_core.wire.broker.view_rules import ViewRules, read_view_rules, write_view_rules
from streambroker_core.wire.encoding.canonical import JsonObject, canonical, digest, without_none
from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.encoding.policies import read_policies, write_policies
from streambroker_core.wire.encoding.start import MAX_START, START_FORMS, is_start

VIEW_VERSION = 1
MAX_REFUSED = 20
"""Maximum refused pairs per import in a view."""
DIGEST_MODULUS = 1 << 256
"""Sums of route digests are taken modulo this."""

_LARGEST = (1 << 64) - 1
_TEXT = 8192
_ROUTES = 1_000_000
_T = TypeVar("_T")

POLICIES: Mapping[str, Policy] = {"wait": "wait", "drop": "drop"}
DURABILITIES: Mapping[str, Durability] = {"local": "local", "stored": "stored"}
SCHEMA_POLICIES: Mapping[str, SchemaPolicy] = {
    "none": "none",
    "backward": "backward",
    "forward": "forward",
    "full": "full",
}
CONGESTIONS: Mapping[str, OnCongestion] = {"inherit": "inherit", "drop": "drop"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRoute:
    """Route of one of the PE's exports.

    Attributes:
        uid: identity of the Import.
        filter: canonical text of the filter for this import, or None.
    """

    import_: PortKey
    uid: str
    filter: str | None = None
    policy: Policy = "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRoute:
    """Route of one of the PE's imports.

    Attributes:
        uid: identity of the Export.
        location: where to read, or None while the exporter's agent is not registered.
        capability: token for the exporter's agent, or None if its key is unknown.
        issuer: what else the capability depends on: instance of the exporter's agent, and whether
            filters are allowed. It is not sent, but is part of the view's version.
    """

    export: PortKey
    uid: str
    location: str | None = None
    filter: str | None = None
    policy: Policy = "wait"
    capability: str | None = None
    schema: Schema | None = None
    issuer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedPair:
    """An Export that matches an import except for one fault that the user can fix."""

    export: PortKey
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPort:
    """One of the PE's exports; exactly one of properties and stream id is set.

    Attributes:
        revoked: imports that may not read even what they have planned, as ``namespace``,
            ``namespace/job`` or the key of one import.
    """

    uid: str
    generation: int = 1
    properties: Properties | None = None
    stream_id: str | None = None
    allow_filter: bool = True
    congestion_policy: Policy = "wait"
    buffer: Buffer = field(default_factory=Buffer)
    durability: Durability = "local"
    archive: Archive | None = None
    schema: Schema | None = None
    schema_policy: SchemaPolicy = "backward"
    routes: tuple[ExportRoute, ...] = ()
    revoked: tuple[str, ...] = ()
    policies: Policies = NO_POLICIES


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportPort:
    """One of the PE's imports.

    Attributes:
        filter: canonical text, or None; the original text if it is invalid.
        refused: at most `MAX_REFUSED` pairs that fail for filter or schema.
    """

    uid: str
    generation: int = 1
    subscription: str | None = None
    streams: tuple[StreamName, ...] = ()
    filter: str | None = None
    start: str = "latest"
    on_congestion: OnCongestion = "inherit"
    schema: Schema | None = None
    routes: tuple[ImportRoute, ...] = ()
    refused: tuple[RefusedPair, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A PE's part of the board at one point.

    Attributes:
        version: hash of the content without point, rules version and capabilities; the ETag.
        point: processed versions of (exports, imports).
        rules: pattern rules of the whole job. None means unknown: the job keeps those it has.
        rules_version: version up to which the broker knows the rules; 0 if not reported.
        held: uids of Imports whose running generation is unknown; their routes stay, see
            `retain_held_routes`.
    """

    pe: PeKey
    version: str = ""
    point: Point = (0, 0)
    exports: Mapping[str, ExportPort] = field(default_factory=dict)
    imports: Mapping[str, ImportPort] = field(default_factory=dict)
    rules: ViewRules | None = None
    rules_version: int = 0
    held: tuple[str, ...] = ()

    @property
    def namespace(self) -> str:
        """The PE's namespace."""
        return self.pe.namespace

    @property
    def job(self) -> str:
        """The PE's job."""
        return self.pe.job


def with_version(view: View) -> View:
    """Return the view with the version of its content.

    It excludes capabilities, and which columns policies withhold. The broker adds both per request,
    and each is a function of the route and its issuer, which are included.
    """
    exports = {
        name: sum(
            digest_export_route(route.import_, route.uid, route.filter, route.policy)
            for route in port.routes
        )
        for name, port in view.exports.items()
    }
    imports = {
        name: sum(
            digest_import_route(
                digest_exporter(
                    route.export, route.location, route.issuer or route.capability, route.schema
                ),
                route.uid,
                route.filter,
                route.policy,
            )
            for route in port.routes
        )
        for name, port in view.imports.items()
    }
    return replace(view, version=hash_view(view, exports, imports))


def hash_view(view: View, exports: Mapping[str, int], imports: Mapping[str, int]) -> str:
    """Return the version of a view's content.

    In place of the routes it uses ``exports`` and ``imports``: sums of route digests by port.
    """
    body = encode(replace(view, rules=None))
    del body["point"], body["version"]
    for ports, sums in ((body["exports"], exports), (body["imports"], imports)):
        for name, sum_ in sums.items():
            ports[name]["routes"] = f"{sum_ % DIGEST_MODULUS:x}"
    if view.rules is not None:
        body["patterns"] = view.rules.digest
    return digest(body)


def digest_export_route(import_: PortKey, uid: str, filter_: str | None, policy: Policy) -> int:
    """Return the digest of an export's route, a number below `DIGEST_MODULUS`."""
    return _digest_to_int([str(import_), uid, filter_, policy])


def digest_import_route(exporter_digest: str, uid: str, filter_: str | None, policy: Policy) -> int:
    """Return the digest of an import's route, a number below `DIGEST_MODULUS`.

    ``exporter_digest`` is from `digest_exporter`.
    """
    return _digest_to_int([exporter_digest, uid, filter_, policy])


def digest_exporter(
    export: PortKey, location: str | None, issuer: str | None, schema: Schema | None
) -> str:
    """Return a hash of what all routes from one exporter share."""
    return digest([str(export), location, issuer, None if schema is None else to_items(schema)])


def _digest_to_int(values: list[str | None]) -> int:
    return int.from_bytes(hashlib.sha256(canonical(values)).digest(), "big")


def with_capabilities(
    view: View,
    sign: Callable[[PortKey, ImportRoute], str | None],
    columns: Callable[[PortKey, ImportRoute], Schema | None] = lambda _, route: route.schema,
) -> View:
    """Return the view with a capability in each import route, and the columns that it may read.

    ``sign`` and ``columns`` get the import's port and the route.
    """
    owner = view.pe
    imports = {}
    for name, port in view.imports.items():
        key = PortKey(namespace=owner.namespace, job=owner.job, pe=owner.pe, port=name)
        routes = tuple(
            replace(route, capability=sign(key, route), schema=columns(key, route))
            for route in port.routes
        )
        imports[name] = replace(port, routes=routes)
    return replace(view, imports=imports)


def retain_held_routes(view: View, previous: View | None) -> View:
    """Return the view with the routes of held Imports copied from the previous view."""
    if previous is None or not view.held:
        return view
    exports, imports = dict(view.exports), dict(view.imports)
    for name, port in view.exports.items():
        before = previous.exports.get(name)
        if before is not None and before.uid == port.uid:
            uids = {route.uid for route in port.routes}
            retained = (r for r in before.routes if r.uid in view.held and r.uid not in uids)
            exports[name] = replace(port, routes=(*port.routes, *retained))
    for name, before_ in previous.imports.items():
        current = view.imports.get(name)
        if before_.uid in view.held and (current is None or current.uid == before_.uid):
            imports[name] = before_
    return replace(view, exports=exports, imports=imports)


def encode(view: View) -> dict[str, Any]:
    """Return the view as JSON-like data; ports and routes of exports are sorted."""
    rules = view.rules
    return {
        "v": VIEW_VERSION,
        **without_none(
            patterns=None if rules is None else write_view_rules(rules),
            patternsAt=None if rules is None else view.rules_version,
            held=list(view.held) or None,
        ),
        "namespace": view.pe.namespace,
        "job": view.pe.job,
        "pe": view.pe.pe,
        "version": view.version,
        "point": list(view.point),
        "exports": {name: _write_export(port) for name, port in sorted(view.exports.items())},
        "imports": {name: _write_import(port) for name, port in sorted(view.imports.items())},
    }


def _write_export(port: ExportPort) -> JsonObject:
    return {
        "uid": port.uid,
        "generation": port.generation,
        "allowFilter": port.allow_filter,
        "congestionPolicy": port.congestion_policy,
        "buffer": _write_buffer(port.buffer),
        "schema": None if port.schema is None else to_items(port.schema),
        "routes": [
            {
                "import": str(route.import_),
                "uid": route.uid,
                "filter": route.filter,
                "policy": route.policy,
            }
            for route in sorted(port.routes, key=lambda route: (route.import_, route.uid))
        ],
        **without_none(
            durability=None if port.durability == "local" else port.durability,
            archive=None if port.archive is None else _write_archive(port.archive),
            schemaPolicy=None if port.schema_policy == "backward" else port.schema_policy,
            properties=None if port.properties is None else dict(port.properties),
            streamId=port.stream_id,
            revoked=list(port.revoked) or None,
        ),
        **write_policies(port.policies),
    }


def _write_buffer(buffer: Buffer) -> JsonObject:
    return {
        "maxBytes": buffer.max_bytes,
        "maxAge": buffer.max_age_s,
        "grace": buffer.grace_s,
        **without_none(waitLimit=buffer.wait_limit_s),
    }


def _write_archive(archive: Archive) -> JsonObject:
    return without_none(maxBytes=archive.max_bytes, maxAge=archive.max_age_s)


def _write_import(port: ImportPort) -> JsonObject:
    return {
        "uid": port.uid,
        "generation": port.generation,
        "subscription": port.subscription,
        "streams": [
            {"applicationName": name.application_name, "streamId": name.stream_id}
            for name in port.streams
        ],
        "filter": port.filter,
        "start": port.start,
        "onCongestion": port.on_congestion,
        "schema": None if port.schema is None else to_items(port.schema),
        "routes": [_write_import_route(route) for route in port.routes],
        "refused": [
            {"export": str(pair.export), "reason": pair.reason, "message": pair.message}
            for pair in port.refused
        ],
    }


def _write_import_route(route: ImportRoute) -> JsonObject:
    return {
        "export": str(route.export),
        "uid": route.uid,
        "location": route.location,
        "filter": route.filter,
        "policy": route.policy,
        "capability": route.capability,
        "schema": None if route.schema is None else to_items(route.schema),
    }


def decode(body: object) -> View:
    """Read a view; ignore unknown keys, which a newer broker may send.

    Raises:
        FormatTooNewError: the view has a higher ``v`` than this release reads.
        ManifestError: a field is missing or wrong; the error names it.
    """
    fields = Fields(body)
    version = fields.integer("v", VIEW_VERSION, low=1, high=_LARGEST)
    if version > VIEW_VERSION:
        raise FormatTooNewError(path="v", found=version, newest=VIEW_VERSION, what="view")
    pe = PeKey(
        namespace=_read_label(fields, "namespace", DEFAULT_NAMESPACE),
        job=_read_label(fields, "job", None),
        pe=fields.integer("pe", 0, high=MAX_PE),
    )
    view = View(
        pe=pe,
        version=fields.text("version") if fields.get("version") else "",
        point=_read_point(fields),
        exports=_read_ports(fields.child("exports"), _read_export),
        imports=_read_ports(fields.child("imports"), _read_import),
        rules=read_view_rules(fields, "patterns", _ROUTES),
        rules_version=fields.integer("patternsAt", 0, high=_LARGEST),
        held=_read_texts(fields, "held"),
    )
    return view if view.version else with_version(view)


def _read_label(fields: Fields, key: str, default: str | None) -> str:
    return fields.text(key, default, check=is_label, expected="a DNS label")


def _read_point(fields: Fields) -> Point:
    parts = fields.items("point", max_items=2) or [0, 0]
    if len(parts) != 2 or any(type(part) is not int or part < 0 for part in parts):
        raise fields.error_at("point", "has to be a list of two integers, none below 0")
    return parts[0], parts[1]


def _read_ports(fields: Fields, read: Callable[[Fields], _T]) -> dict[str, _T]:
    return {name: read(fields.child(name)) for name in fields.names()}


def _read_list(fields: Fields, key: str, read: Callable[[Fields], _T]) -> tuple[_T, ...]:
    return tuple(map(read, fields.entries(key, max_items=_ROUTES)))


def _read_port_key(fields: Fields, key: str) -> PortKey:
    text = fields.text(key)
    try:
        return PortKey.parse(text)
    except ManifestError as error:
        raise fields.error_at(key, f"is wrong: {error.reason}") from error


def _read_schema(fields: Fields) -> Schema | None:
    if not fields.has("schema"):
        return None
    try:
        return from_items(fields.items("schema", max_items=_ROUTES))
    except SchemaError as error:
        raise fields.error_at("schema", f"is wrong: {error}") from error


def _read_seconds(fields: Fields, key: str, default: float | None) -> float | None:
    value = fields.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise fields.error_at(key, "has to be seconds, at least 0")
    return float(value)


def _read_buffer(fields: Fields) -> Buffer:
    default = Buffer()
    grace = _read_seconds(fields, "grace", default.grace_s)
    return Buffer(
        max_bytes=fields.integer("maxBytes", default.max_bytes, low=1, high=_LARGEST),
        max_age_s=_read_seconds(fields, "maxAge", None),
        grace_s=default.grace_s if grace is None else grace,
        wait_limit_s=_read_seconds(fields, "waitLimit", None),
    )


def _read_archive(fields: Fields) -> Archive:
    return Archive(
        max_bytes=fields.optional_integer("maxBytes", low=1, high=_LARGEST),
        max_age_s=_read_seconds(fields, "maxAge", None),
    )


def _read_export(fields: Fields) -> ExportPort:
    stream_id = fields.optional_text("streamId")
    properties = fields.get("properties")
    if properties is not None:
        properties = dict(fields.child("properties").raw())
    return ExportPort(
        uid=fields.text("uid", ""),
        generation=fields.integer("generation", 1, low=0, high=_LARGEST),
        properties=properties,
        stream_id=stream_id,
        allow_filter=fields.boolean("allowFilter", True),
        congestion_policy=fields.word("congestionPolicy", POLICIES, "wait"),
        buffer=_read_buffer(fields.child("buffer")),
        durability=fields.word("durability", DURABILITIES, "local"),
        archive=_read_archive(fields.child("archive")) if fields.has("archive") else None,
        schema=_read_schema(fields),
        schema_policy=fields.word("schemaPolicy", SCHEMA_POLICIES, "backward"),
        routes=_read_list(fields, "routes", _read_export_route),
        revoked=_read_texts(fields, "revoked"),
        policies=read_policies(fields, None),
    )


def _read_texts(fields: Fields, key: str) -> tuple[str, ...]:
    items = fields.items(key, max_items=_ROUTES)
    if not all(isinstance(item, str) for item in items):
        raise fields.error_at(key, "has to be a list of texts")
    return tuple(items)


def _read_export_route(fields: Fields) -> ExportRoute:
    return ExportRoute(
        import_=_read_port_key(fields, "import"),
        uid=fields.text("uid", ""),
        filter=fields.optional_text("filter", longest=_TEXT),
        policy=fields.word("policy", POLICIES, "wait"),
    )


def _read_import(fields: Fields) -> ImportPort:
    return ImportPort(
        uid=fields.text("uid", ""),
        generation=fields.integer("generation", 1, low=0, high=_LARGEST),
        subscription=fields.optional_text("subscription", longest=_TEXT),
        streams=_read_list(fields, "streams", _read_stream),
        filter=fields.optional_text("filter", longest=_TEXT),
        start=fields.text(
            "start", "latest", longest=MAX_START, check=is_start, expected=START_FORMS
        ),
        on_congestion=fields.word("onCongestion", CONGESTIONS, "inherit"),
        schema=_read_schema(fields),
        routes=_read_list(fields, "routes", _read_import_route),
        refused=_read_list(fields, "refused", _read_refused),
    )


def _read_stream(fields: Fields) -> StreamName:
    return StreamName(
        application_name=fields.optional_text("applicationName"),
        stream_id=fields.text("streamId"),
    )


def _read_import_route(fields: Fields) -> ImportRoute:
    return ImportRoute(
        export=_read_port_key(fields, "export"),
        uid=fields.text("uid", ""),
        location=fields.optional_text("location"),
        filter=fields.optional_text("filter", longest=_TEXT),
        policy=fields.word("policy", POLICIES, "wait"),
        capability=fields.optional_text("capability", longest=_TEXT),
        schema=_read_schema(fields),
    )


def _read_refused(fields: Fields) -> RefusedPair:
    return RefusedPair(
        export=_read_port_key(fields, "export"),
        reason=fields.text("reason"),
        message=fields.optional_text("message", longest=_TEXT) or "",
    )
