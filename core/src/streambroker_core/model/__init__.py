"""Domain model: ports, PEs, Exports, Imports, rules and routes.

Everything here is an immutable value that compares by content and does no I/O. Keys have one text
form, which users, metrics, views and datagrams show.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from streambroker_core.errors import ManifestError
from streambroker_core.model.policies import NO_POLICIES, Policies
from streambroker_core.model.properties import Value
from streambroker_core.model.schema import Schema, SchemaPolicy

DEFAULT_NAMESPACE = "default"
DEFAULT_SCOPE = "Default"
MAX_PE = 65535

GIBIBYTE = 1 << 30
TEN_MINUTES_S = 600.0

Properties: TypeAlias = Mapping[str, Value]

Policy: TypeAlias = Literal["wait", "drop"]
Durability: TypeAlias = Literal["local", "stored"]
OnCongestion: TypeAlias = Literal["inherit", "drop"]
Kind: TypeAlias = Literal["Export", "Import"]
RuleKind: TypeAlias = Literal["PatternProcessor"]
AnyKind: TypeAlias = Literal["Export", "Import", "PatternProcessor"]
RULE: RuleKind = "PatternProcessor"

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_RULE_ID = re.compile(r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,251}[A-Za-z0-9])?")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,4}")
_PORT = re.compile(r"[A-Za-z_][-A-Za-z0-9_]{0,62}")


def is_label(text: str) -> bool:
    """Return whether a text is a DNS label, as namespaces and jobs must be."""
    return _LABEL.fullmatch(text) is not None


def is_resource_name(text: str) -> bool:
    """Return whether Kubernetes accepts a text as a resource name."""
    return len(text) <= 253 and _NAME.fullmatch(text) is not None


def is_port_name(text: str) -> bool:
    """Return whether a text is a valid port name."""
    return _PORT.fullmatch(text) is not None


def is_rule_id(text: str) -> bool:
    """Return whether a text is a valid rule id; ids are part of URLs."""
    return _RULE_ID.fullmatch(text) is not None


class PeKey(NamedTuple):
    """Key of an agent process of a job; its text is ``namespace/job/pe``."""

    namespace: str
    job: str
    pe: int

    def __str__(self) -> str:
        return f"{self.namespace}/{self.job}/{self.pe}"

    @classmethod
    def parse(cls, text: str) -> PeKey:
        """Parse the text form.

        Raises:
            ManifestError: the text is not ``namespace/job/pe``.
        """
        parts = text.split("/")
        if len(parts) != 3:
            raise ManifestError(path="", reason=f"{text!r} is not namespace/job/pe")
        return cls(namespace=_label(parts[0]), job=_label(parts[1]), pe=_pe(parts[2]))


class PortKey(NamedTuple):
    """Key of a port of a PE; its text is ``namespace/job/pe/port``."""

    namespace: str
    job: str
    pe: int
    port: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.job}/{self.pe}/{self.port}"

    @property
    def owner(self) -> PeKey:
        """The PE of the port."""
        return PeKey(*self[:3])

    @classmethod
    def parse(cls, text: str) -> PortKey:
        """Parse the text form.

        Raises:
            ManifestError: the text is not ``namespace/job/pe/port``.
        """
        owner, _, port = text.rpartition("/")
        if not is_port_name(port):
            raise ManifestError(path="", reason=f"{text!r} is not namespace/job/pe/port")
        pe = PeKey.parse(owner)
        return cls(namespace=pe.namespace, job=pe.job, pe=pe.pe, port=port)


class Removal(NamedTuple):
    """A port whose resource is to be deleted; with a name, only if the resource has that name."""

    kind: Kind
    key: PortKey
    name: str = ""


class RuleKey(NamedTuple):
    """Key of a rule of a job; its text is ``namespace/job/id``."""

    namespace: str
    job: str
    id: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.job}/{self.id}"


def port_of(key: str) -> str:
    """Return the port name of a port key's text, or of a name alone."""
    return key.rpartition("/")[2]


def pe_of(key: str) -> str:
    """Return the text of the PE key in a port key's text."""
    return key.rpartition("/")[0]


def job_of(key: str) -> str:
    """Return ``namespace/job`` of the text of a port key or PE key."""
    return "/".join(key.split("/")[:2])


def _label(text: str) -> str:
    if not is_label(text):
        form = "lower-case letters, digits and hyphens, at most 63"
        raise ManifestError(path="", reason=f"{text!r} is not a DNS label: {form}")
    return text


def _pe(text: str) -> int:
    if _NUMBER.fullmatch(text) is None or int(text) > MAX_PE:
        raise ManifestError(path="", reason=f"{text!r} is not a PE number from 0 to {MAX_PE}")
    return int(text)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Application:
    """Name and scope under which a job offers streams and looks for them."""

    name: str | None = None
    scope: str = DEFAULT_SCOPE


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamName:
    """A stream that is wanted by name; without an application, of any application."""

    application_name: str | None = None
    stream_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """Retention and wait limits of an Export.

    Attributes:
        max_bytes: size of the log in bytes.
        max_age_s: age in seconds after which unclaimed epochs are deleted; None for never.
        grace_s: seconds for which a reader's claims outlive the reader.
        wait_limit_s: seconds for which the Export waits before its slowest readers drop; None
            for no limit.
    """

    max_bytes: int = GIBIBYTE
    max_age_s: float | None = None
    grace_s: float = TEN_MINUTES_S
    wait_limit_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """How much an Export keeps of what no reader claims any more; at least one limit is set.

    Attributes:
        max_bytes: size in bytes beyond which the oldest epochs are deleted; None for no limit.
        max_age_s: age in seconds after which epochs are deleted; None for no limit.
    """

    max_bytes: int | None = None
    max_age_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """What people read about an Export; matching and agents ignore it.

    Attributes:
        tags: sorted.
        column_comments: a text for each column that has one, by the column's name.
    """

    description: str | None = None
    owner: str | None = None
    tags: tuple[str, ...] = ()
    column_comments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedGeneration:
    """A later generation of a resource that is rejected; the resource itself keeps running.

    Attributes:
        code: the reason word.
        problem: a sentence.
        resource: the rejected content; None if it cannot be parsed.
    """

    generation: int
    code: str
    problem: str
    resource: Export | Import | Rule | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A stream that a job offers at a port.

    Exactly one of ``stream_id`` and ``properties`` is set. Empty properties match no subscription.

    Attributes:
        name: of the resource; empty if only its port identifies it.
        uid: identity; deleting and creating again yields a new one.
        generation: counts the changes of the spec.
        created: seconds since 1970, UTC; the older of two rivals wins.
        properties: normalised, as `streambroker_core.model.properties.normalise` returns them.
        schema: columns, or None until they are declared.
        durability: where rows and epochs are safe when a publish ends: on the agent's disk
            (``local``), or in its object storage (``stored``).
        archive: limits of what no reader claims any more; None to apply those of ``buffer``.
        schema_policy: what its publishers may change of the columns, see
            `streambroker_core.model.schema_changes`.
        allowed_namespaces: other namespaces that may import it, or ``*``.
        revoked: importers that must not read any more, not even planned epochs: ``namespace`` or
            ``namespace/job``.
        policies: rows and columns that imports may read.
        catalog: description, owner, tags and comments of columns.
        rejected: a later generation that is rejected while this one runs; None if there is none.
    """

    key: PortKey
    uid: str
    name: str = ""
    generation: int = 1
    created: float = 0.0
    application: Application = Application()
    stream_id: str | None = None
    properties: Properties | None = None
    allow_filter: bool = True
    congestion_policy: Policy = "wait"
    schema: Schema | None = None
    buffer: Buffer = Buffer()
    durability: Durability = "local"
    archive: Archive | None = None
    schema_policy: SchemaPolicy = "backward"
    allowed_namespaces: tuple[str, ...] = ()
    revoked: tuple[str, ...] = ()
    policies: Policies = NO_POLICIES
    catalog: CatalogEntry = CatalogEntry()
    rejected: RejectedGeneration | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """Streams that a job wants at a port.

    At most one of ``subscription`` and ``streams`` is set; with neither it matches nothing.

    Attributes:
        application_scope: scope in which Exports are looked for.
        filter: text of a filter expression, or None for every row.
        start: where it begins in Exports that it never read, see
            `streambroker_core.wire.encoding.start`.
        schema: required columns, by name, or None for all exported columns.
        rejected: see `Export`.
        last_accepted: the last accepted generation from its status; None if it is this one.
        earlier_unknown: an earlier generation may have been accepted, but its status lacks it.
        was_accepted: according to its status, this generation was accepted. Its filter is then
            not checked against Exports again.
        held: rejected while `earlier_unknown`: agents keep its existing routes.
    """

    key: PortKey
    uid: str
    name: str = ""
    generation: int = 1
    created: float = 0.0
    application: Application = Application()
    subscription: str | None = None
    streams: tuple[StreamName, ...] = ()
    application_scope: str = DEFAULT_SCOPE
    filter: str | None = None
    on_congestion: OnCongestion = "inherit"
    start: str = "latest"
    schema: Schema | None = None
    rejected: RejectedGeneration | None = None
    last_accepted: Import | None = None
    earlier_unknown: bool = field(default=False, compare=False)
    was_accepted: bool = field(default=False, compare=False)
    held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A pattern rule for a job.

    For ``uid``, ``generation``, ``created`` and ``rejected`` see `Export`.

    Attributes:
        document: the rule with its id, as `streambroker_core.cep.rules.document.read_rule`
            returns it; as written if `read_rule` rejects it.
        enable: a counter; an increment re-enables a rule that an error disabled.
        last_accepted: see `Import`.
    """

    key: RuleKey
    uid: str
    name: str = ""
    generation: int = 1
    created: float = 0.0
    document: Mapping[str, Any]
    enable: int = 0
    rejected: RejectedGeneration | None = None
    last_accepted: Rule | None = None


Resource: TypeAlias = Export | Import


def kind_of(resource: Resource) -> Kind:
    """Return the kind as in manifests."""
    return "Export" if isinstance(resource, Export) else "Import"


def resource_order(resource: Resource) -> tuple[PortKey, float, str]:
    """Return the sort key for display: port, then age."""
    return resource.key, resource.created, resource.uid


def seniority(resource: Resource) -> tuple[float, str]:
    """Return the sort key among rivals for a port or a name: the lowest holds it."""
    return resource.created, resource.uid


def rule_name_of(rule: Rule) -> str:
    """Return the name of a rule's resource; if it has none, one derived from job and id.

    Kubernetes names allow no capitals and no ``_``: ids that differ only in these need a name.
    """
    return rule.name or f"{rule.key.job}.{rule.key.id}".lower().replace("_", "-")[:253].rstrip("-.")


def name_of(resource: Resource) -> str:
    """Return the resource's name; if it has none, ``job-pe-port`` in lower case."""
    key = resource.key
    return resource.name or f"{key.job}-{key.pe}-{key.port}".lower().replace("_", "-").rstrip("-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One Export connected to one Import.

    Attributes:
        filter: canonical text of the Import's filter, or None.
        policy: what the exporter does if the importer is slow.
    """

    export: PortKey
    export_uid: str
    import_: PortKey
    import_uid: str
    filter: str | None = None
    policy: Policy = "wait"


def route_order(route: Route) -> tuple[PortKey, PortKey, str, str]:
    """Return the sort key of a route: the exporter's port, then the importer's."""
    return route.export, route.import_, route.export_uid, route.import_uid
