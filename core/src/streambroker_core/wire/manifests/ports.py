"""Manifests of Exports and Imports: converts YAML and JSON documents to and from the model.

Kubernetes, REST, the command line and the store share this reader. It checks form and values.
The caller checks expressions: a cluster's resource with a bad one is shown with the reason.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple, TypedDict, TypeVar

from streambroker_core.errors import ManifestError, PropertyError, SchemaError
from streambroker_core.model import (
    DEFAULT_NAMESPACE,
    DEFAULT_SCOPE,
    MAX_PE,
    RULE,
    AnyKind,
    Application,
    Archive,
    Buffer,
    CatalogEntry,
    Export,
    Import,
    Kind,
    PortKey,
    Properties,
    Resource,
    Rule,
    StreamName,
    is_label,
    is_port_name,
    is_resource_name,
    kind_of,
    name_of,
)
from streambroker_core.model.properties import normalise, oversized
from streambroker_core.model.schema import Schema, from_items, to_items
from streambroker_core.wire.broker.view import CONGESTIONS, DURABILITIES, POLICIES, SCHEMA_POLICIES
from streambroker_core.wire.encoding.canonical import JsonObject, canonical, without_none
from streambroker_core.wire.encoding.fields import Fields, json_type
from streambroker_core.wire.encoding.policies import read_policies, write_policies
from streambroker_core.wire.encoding.quantity import (
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)
from streambroker_core.wire.encoding.start import MAX_START, START_FORMS, is_start

_K = TypeVar("_K", bound=AnyKind)
_R = TypeVar("_R", Resource, Rule)

MAX_SPEC = 48 * 1024
"""Maximum bytes of a spec as JSON, so that a whole manifest fits into a request."""
GROUP = "streambroker.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
"""What is written and stored: release 0.1.0 knows no other, and an upgrade can be rolled back."""
READ_API_VERSIONS = (f"{GROUP}/v1beta1", API_VERSION)
"""What is read. The versions have the same fields."""
PLURALS: Mapping[Kind, str] = {"Export": "exports", "Import": "imports"}
"""Plural of each port kind, in paths, permissions and the command line."""
OBJECTS: Mapping[AnyKind, str] = {
    "Export": "exports",
    "Import": "imports",
    RULE: "patternprocessors",
}
"""Plural of every kind of object in a cluster."""

MAX_EXPRESSION_FIELD = 64 * 1024
"""Bytes accepted here; the expression parser has the real, lower limit."""
MAX_PROPERTIES = 256
MAX_STREAMS = 64
MAX_COLUMNS = 1024
MAX_NAMESPACES = 64
MAX_REVOKED = 64
MAX_DESCRIPTION = 4096
MAX_OWNER = 253
MAX_TAGS = 32
MAX_TAG = 63
MAX_COMMENT = 1024
"""These limits of texts are in characters."""

_IDENTITY = ("job", "pe", "port", "application", "schema")
_EXPORT = (
    *_IDENTITY,
    "streamId",
    "properties",
    "allowFilter",
    "congestionPolicy",
    "buffer",
    "durability",
    "archive",
    "schemaPolicy",
    "allowedNamespaces",
    "revoked",
    "policies",
    "policyDefault",
    "description",
    "owner",
    "tags",
    "columnComments",
)
_IMPORT = (
    *_IDENTITY,
    "subscription",
    "streams",
    "applicationScope",
    "filter",
    "onCongestion",
    "start",
)
_METADATA = (
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
)
"""All metadata fields of Kubernetes; those that are not read are dropped."""
LARGEST = (1 << 63) - 1
"""Maximum of a counter."""


def read_manifest(
    document: object, *, namespace: str = DEFAULT_NAMESPACE, loose: bool = False
) -> Resource:
    """Read a whole document with ``apiVersion``, ``kind``, ``metadata`` and ``spec``.

    Args:
        document: result of a YAML or JSON parser.
        namespace: default if ``metadata.namespace`` is absent.
        loose: ignore unknown fields, which a newer release may have written.

    Raises:
        ManifestError: a field is missing or wrong; the error names it.
        PropertyError: a property's name or value is not allowed.
    """
    kind, metadata, spec = read_document(document, PLURALS, namespace=namespace, loose=loose)
    resource = read_spec(kind, spec, namespace=metadata.namespace, path="spec", loose=loose)
    return metadata.identify(resource)


def read_document(
    document: object, kinds: Iterable[_K], *, namespace: str, loose: bool
) -> tuple[_K, Metadata, object]:
    """Read a document; return its kind (one of ``kinds``), its metadata and the raw spec.

    The other arguments are those of `read_manifest`.

    Raises:
        ManifestError: a field is missing or wrong; the error names it.
    """
    fields = Fields(document, loose=loose)
    fields.allow_only(("apiVersion", "kind", "metadata", "spec", "status"))
    version = fields.text("apiVersion")
    if version not in READ_API_VERSIONS:
        known = " or ".join(READ_API_VERSIONS)
        raise fields.error_at("apiVersion", f"is {version!r}; it has to be {known}")
    words = {str(kind): kind for kind in kinds}
    if not fields.has("kind"):
        raise fields.error_at("kind", "is required")
    kind = fields.word("kind", words, next(iter(words.values())))
    if not fields.has("spec"):
        raise fields.error_at("spec", "is required")
    return kind, read_metadata(fields.child("metadata"), namespace), fields.get("spec")


class ManifestMetadata(TypedDict, total=False):
    """The metadata of a resource as it is written."""

    name: str
    namespace: str
    uid: str
    generation: int
    creationTimestamp: str
    resourceVersion: str


class Manifest(TypedDict):
    """A whole document of this API group."""

    apiVersion: str
    kind: AnyKind
    metadata: ManifestMetadata
    spec: JsonObject


class Metadata(NamedTuple):
    """The metadata of a resource that is used here."""

    name: str
    namespace: str
    uid: str
    generation: int
    created: float

    def identify(self, resource: _R) -> _R:
        """Return a resource with this name, uid, generation and creation time."""
        return replace(
            resource,
            name=self.name,
            uid=self.uid,
            generation=self.generation,
            created=self.created,
        )


def read_metadata(metadata: Fields, namespace: str) -> Metadata:
    """Read the metadata that is used; ``namespace`` is the default.

    Raises:
        ManifestError: a field is wrong, or unknown to Kubernetes; the error names it.
    """
    metadata.allow_only(_METADATA)
    return Metadata(
        namespace=metadata.text("namespace", namespace, check=is_label, expected="a DNS label"),
        name=metadata.text(
            "name", "", check=is_resource_name, expected="made of a-z, 0-9, - and ."
        ),
        uid=metadata.text("uid", ""),
        generation=metadata.integer("generation", 1, low=0, high=LARGEST),
        created=_read_created(metadata),
    )


def read_spec(
    kind: Kind,
    spec: object,
    *,
    namespace: str = DEFAULT_NAMESPACE,
    key: PortKey | None = None,
    path: str = "",
    loose: bool = False,
) -> Resource:
    """Read a spec alone; the caller sets uid, generation and creation time.

    Args:
        kind: kind of the resource.
        spec: the object.
        namespace: namespace of the resource, if ``key`` is None.
        key: port of the resource. With it ``job``, ``pe`` and ``port`` may be absent from the
            spec; if present, they have to be equal.
        path: path of the spec in its document.
        loose: ignore unknown fields.

    Raises:
        ManifestError: a field is missing or wrong; the error names it.
        PropertyError: a property's name or value is not allowed.
    """
    fields = Fields(spec, path, loose=loose)
    fields.allow_only(_EXPORT if kind == "Export" else _IMPORT)
    port = _read_port_key(fields, namespace, key)
    return _read_export(fields, port) if kind == "Export" else _read_import(fields, port)


def _read_port_key(fields: Fields, namespace: str, key: PortKey | None) -> PortKey:
    # Many resources have the same namespace, port and scope: they share one object.
    port = PortKey(
        namespace=sys.intern(namespace if key is None else key.namespace),
        job=fields.text(
            "job", None if key is None else key.job, check=is_label, expected="a DNS label"
        ),
        pe=fields.integer("pe", 0 if key is None else key.pe, high=MAX_PE),
        port=sys.intern(
            fields.text(
                "port",
                None if key is None else key.port,
                check=is_port_name,
                expected="a name of letters, digits, - and _, at most 63, beginning with a letter"
                " or _",
            )
        ),
    )
    if key is not None and port != key:
        name = next(n for n in ("job", "pe", "port") if getattr(port, n) != getattr(key, n))
        raise fields.error_at(
            name, f"is {getattr(port, name)!r}, but the address has {getattr(key, name)!r}"
        )
    return port


def _read_export(fields: Fields, key: PortKey) -> Export:
    stream_id = fields.optional_text("streamId")
    properties = _read_properties(fields)
    if (stream_id is None) == (properties is None):
        what = "both are" if stream_id is not None else "neither is"
        raise fields.error_at("streamId", f"or properties, exactly one, has to be given; {what}")
    schema = _read_schema(fields, empty=())
    return Export(
        key=key,
        uid="",
        application=_read_application(fields),
        stream_id=stream_id,
        properties=properties,
        allow_filter=fields.boolean("allowFilter", True),
        congestion_policy=fields.word("congestionPolicy", POLICIES, "wait"),
        schema=schema,
        buffer=_read_buffer(fields.child("buffer")),
        durability=fields.word("durability", DURABILITIES, "local"),
        archive=_read_archive(fields) if fields.has("archive") else None,
        schema_policy=fields.word("schemaPolicy", SCHEMA_POLICIES, "backward"),
        allowed_namespaces=_read_names(
            fields,
            "allowedNamespaces",
            lambda name: name == "*" or is_label(name),
            MAX_NAMESPACES,
            "not a DNS label or *",
        ),
        revoked=_read_names(
            fields, "revoked", _is_revocable, MAX_REVOKED, "neither namespace nor namespace/job"
        ),
        policies=read_policies(fields, schema),
        catalog=_read_catalog(fields),
    )


def _read_import(fields: Fields, key: PortKey) -> Import:
    subscription = read_expression(fields, "subscription")
    streams = read_streams(fields, "streams")
    if subscription is not None and streams:
        raise fields.error_at("streams", "and subscription exclude each other; leave one out")
    return Import(
        key=key,
        uid="",
        application=_read_application(fields),
        subscription=subscription,
        streams=streams,
        application_scope=sys.intern(fields.text("applicationScope", DEFAULT_SCOPE)),
        filter=read_expression(fields, "filter"),
        on_congestion=fields.word("onCongestion", CONGESTIONS, "inherit"),
        start=sys.intern(
            fields.text("start", "latest", longest=MAX_START, check=is_start, expected=START_FORMS)
        ),
        schema=_read_schema(fields, empty=None),
    )


def read_expression(fields: Fields, key: str) -> str | None:
    """Return the text of an expression, or None if it is absent, empty or blank.

    Raises:
        ManifestError: it is not a text, or longer than `MAX_EXPRESSION_FIELD`.
    """
    value = fields.get(key)
    if isinstance(value, str) and not value.strip():
        return None
    return fields.text(key, longest=MAX_EXPRESSION_FIELD) if fields.has(key) else None


def read_streams(fields: Fields, key: str) -> tuple[StreamName, ...]:
    """Return the streams imported by name, in order.

    Raises:
        ManifestError: an entry is wrong or a duplicate.
    """
    streams: list[StreamName] = []
    for entry in fields.entries(key, max_items=MAX_STREAMS):
        entry.allow_only(("applicationName", "streamId"))
        application = entry.get("applicationName")
        name = StreamName(
            application_name=None if application == "" else entry.optional_text("applicationName"),
            stream_id=entry.text("streamId"),
        )
        if name in streams:
            raise ManifestError(path=entry.path, reason="occurs twice")
        streams.append(name)
    return tuple(streams)


def _read_application(fields: Fields) -> Application:
    entry = fields.child("application")
    entry.allow_only(("name", "scope"))
    return _intern_application(entry.optional_text("name"), entry.text("scope", DEFAULT_SCOPE))


@lru_cache(maxsize=1024)
def _intern_application(name: str | None, scope: str) -> Application:
    return Application(name=name, scope=scope)


def _read_properties(fields: Fields) -> Properties | None:
    if not fields.has("properties"):
        return None
    raw = fields.child("properties").raw()
    if len(raw) > MAX_PROPERTIES:
        raise fields.error_at(
            "properties", f"has {len(raw)} entries, the limit is {MAX_PROPERTIES}"
        )
    return normalise(raw)


def _read_schema(fields: Fields, *, empty: Schema | None) -> Schema | None:
    if not fields.has("schema"):
        return None
    for entry in fields.entries("schema", max_items=MAX_COLUMNS):
        entry.allow_only(("name", "type"))
        entry.text("name", longest=255)
        entry.text("type", longest=4096)
    try:
        return from_items(fields.items("schema", max_items=MAX_COLUMNS)) or empty
    except SchemaError as error:
        raise fields.error_at("schema", f"is wrong: {error}") from error


def _read_buffer(fields: Fields) -> Buffer:
    fields.allow_only(("maxBytes", "maxAge", "grace", "waitLimit"))
    default = Buffer()
    size = read_size(fields, "maxBytes")
    grace = _read_duration(fields, "grace")
    return Buffer(
        max_bytes=default.max_bytes if size is None else size,
        max_age_s=_read_duration(fields, "maxAge"),
        grace_s=default.grace_s if grace is None else grace,
        wait_limit_s=_read_duration(fields, "waitLimit"),
    )


def _read_archive(fields: Fields) -> Archive:
    archive = fields.child("archive")
    archive.allow_only(("maxBytes", "maxAge"))
    size, age = read_size(archive, "maxBytes"), _read_duration(archive, "maxAge")
    if size is None and age is None:
        raise fields.error_at("archive", "needs maxBytes, maxAge or both")
    return Archive(max_bytes=size, max_age_s=age)


_NO_ENTRY = CatalogEntry()


def _read_catalog(fields: Fields) -> CatalogEntry:
    comments = fields.child("columnComments")
    names = [name for name in comments.raw() if comments.has(name)]
    if len(names) > MAX_COLUMNS:
        raise fields.error_at(
            "columnComments", f"has {len(names)} entries, the limit is {MAX_COLUMNS}"
        )
    entry = CatalogEntry(
        description=_read_note(fields, "description", MAX_DESCRIPTION),
        owner=_read_note(fields, "owner", MAX_OWNER),
        tags=_read_names(
            fields,
            "tags",
            lambda tag: 0 < len(tag) <= MAX_TAG,
            MAX_TAGS,
            f"not a text of 1 to {MAX_TAG} characters",
        ),
        column_comments={name: _read_note(comments, name, MAX_COMMENT) or "" for name in names},
    )
    return _NO_ENTRY if entry == _NO_ENTRY else entry


def _read_note(fields: Fields, key: str, most: int) -> str | None:
    text = fields.optional_text(key, longest=4 * most)
    if text is not None and len(text) > most:
        raise fields.error_at(key, f"has {len(text)} characters, the limit is {most}")
    return text


def read_size(fields: Fields, key: str) -> int | None:
    """Return the bytes of a field such as ``512Mi``, None without it; raise ManifestError."""
    if not fields.has(key):
        return None
    size = parse_size(fields.get(key))
    if size is None:
        raise fields.error_at(key, f"is {fields.get(key)!r}; a size is written 512Mi or 4096")
    return size


def _read_duration(fields: Fields, key: str) -> float | None:
    if not fields.has(key):
        return None
    seconds = parse_duration(fields.get(key))
    if seconds is None:
        raise fields.error_at(
            key, f"is {fields.get(key)!r}; a duration is written 30s, 10m or 1h30m"
        )
    return seconds


def _is_revocable(name: str) -> bool:
    return name.count("/") <= 1 and all(is_label(part) for part in name.split("/"))


def _read_names(
    fields: Fields, key: str, is_valid: Callable[[str], bool], max_items: int, otherwise: str
) -> tuple[str, ...]:
    """Return a list of different names, sorted; ``otherwise`` describes an invalid one."""
    items = fields.items(key, max_items=max_items)
    for index, item in enumerate(items):
        if not isinstance(item, str):
            raise fields.error_at(key, f"holds {json_type(item)}, not a text")
        if not is_valid(item):
            raise fields.error_at(key, f"holds {item!r}, which is {otherwise}")
        if item in items[:index]:
            raise fields.error_at(key, f"holds {item!r} twice")
    return tuple(sorted(items))


def _read_created(metadata: Fields) -> float:
    text = metadata.optional_text("creationTimestamp")
    if text is None:
        return 0.0
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        raise metadata.error_at(
            "creationTimestamp", f"is {text!r}, not an RFC 3339 time"
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()


def size_problem(resource: Resource) -> ManifestError | PropertyError | None:
    """Return the error if a resource is too large, or None.

    Parts of a resource can be set one by one, but every reader has to accept the whole.
    """
    size = len(canonical(write_spec(resource)))
    if size > MAX_SPEC:
        return ManifestError(path="spec", reason=f"has {size} bytes as JSON; at most {MAX_SPEC}")
    if isinstance(resource, Export) and resource.properties is not None:
        return oversized(resource.properties)
    return None


def write_spec(resource: Resource) -> JsonObject:
    """Return the spec with all fields that have a value, including defaults."""
    key, application = resource.key, resource.application
    kind = _write_export(resource) if isinstance(resource, Export) else _write_import(resource)
    return {
        "job": key.job,
        "pe": key.pe,
        "port": key.port,
        "application": without_none(name=application.name, scope=application.scope),
        **kind,
        **without_none(schema=None if resource.schema is None else to_items(resource.schema)),
    }


def _write_export(export: Export) -> JsonObject:
    buffer = export.buffer
    durations = {
        "grace": buffer.grace_s,
        "maxAge": buffer.max_age_s,
        "waitLimit": buffer.wait_limit_s,
    }
    return {
        "allowFilter": export.allow_filter,
        "congestionPolicy": export.congestion_policy,
        "buffer": {
            "maxBytes": format_size(buffer.max_bytes),
            **{key: format_duration(n) for key, n in durations.items() if n is not None},
        },
        **without_none(
            durability=None if export.durability == "local" else export.durability,
            archive=None if export.archive is None else _write_archive(export.archive),
            schemaPolicy=None if export.schema_policy == "backward" else export.schema_policy,
            streamId=export.stream_id,
            properties=None if export.properties is None else dict(export.properties),
            allowedNamespaces=list(export.allowed_namespaces) or None,
            revoked=list(export.revoked) or None,
            description=export.catalog.description,
            owner=export.catalog.owner,
            tags=list(export.catalog.tags) or None,
            columnComments=dict(export.catalog.column_comments) or None,
        ),
        **write_policies(export.policies),
    }


def _write_archive(archive: Archive) -> JsonObject:
    size, age = archive.max_bytes, archive.max_age_s
    return without_none(
        maxBytes=None if size is None else format_size(size),
        maxAge=None if age is None else format_duration(age),
    )


def _write_import(import_: Import) -> JsonObject:
    return {
        "applicationScope": import_.application_scope,
        "onCongestion": import_.on_congestion,
        "start": import_.start,
        **without_none(
            subscription=import_.subscription,
            streams=write_streams(import_.streams) or None,
            filter=import_.filter,
        ),
    }


def write_streams(streams: tuple[StreamName, ...]) -> list[dict[str, str]]:
    """Return streams imported by name as JSON-like data."""
    return [
        {"streamId": name.stream_id}
        if name.application_name is None
        else {"applicationName": name.application_name, "streamId": name.stream_id}
        for name in streams
    ]


def make_document(kind: AnyKind, metadata: ManifestMetadata, spec: JsonObject) -> Manifest:
    """Return the document of an object of this API group."""
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


def write_manifest(resource: Resource, *, version: int | None = None) -> Manifest:
    """Return the whole document of a resource, with its identity if it has one.

    A ``version`` of None leaves out the resource version.
    """
    metadata = write_metadata(resource, name_of(resource), version)
    return make_document(kind_of(resource), metadata, write_spec(resource))


def write_metadata(resource: Resource | Rule, name: str, version: int | None) -> ManifestMetadata:
    """Return the metadata of a resource, with its identity if it has one.

    A ``version`` of None leaves out the resource version.
    """
    metadata: ManifestMetadata = {"name": name, "namespace": resource.key.namespace}
    if resource.uid:
        metadata["uid"] = resource.uid
        metadata["generation"] = resource.generation
        metadata["creationTimestamp"] = _format_time(resource.created)
    if version is not None:
        metadata["resourceVersion"] = str(version)
    return metadata


def _format_time(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, tz=UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
