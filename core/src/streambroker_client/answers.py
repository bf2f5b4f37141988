"""What the broker answers, as frozen dataclasses; each is also the dictionary that it sent."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streambroker_core.model import Kind
from streambroker_core.wire.encoding.status import Status, member
from streambroker_core.wire.reports.route_states import route_state


@dataclass(frozen=True, eq=False, kw_only=True)
class PortResource(Status):
    """An Export or Import: its manifest, with ``metadata`` and ``spec``, and its status.

    Attributes:
        kind: ``Export`` or ``Import``.
        name: of the resource.
        namespace: of the resource.
        generation: number of the last change.
        spec: the fields of ``docs/resources.md``.
        accepted: whether it takes part in matching; if not, ``reason`` and ``message`` have why.
        matches: number of its routes.
    """

    kind: Kind
    name: str = member("metadata.name")
    namespace: str = member("metadata.namespace")
    generation: int = member("metadata.generation", 1)
    spec: Mapping[str, Any]
    accepted: bool = member("status.accepted", False)
    reason: str = member("status.reason", "")
    message: str = member("status.message", "")
    matches: int = member("status.matches", 0)

    @property
    def port(self) -> str:
        """Key of the port, ``namespace/job/pe/port``."""
        return f"{self.namespace}/{self.spec['job']}/{self.spec['pe']}/{self.spec['port']}"


@dataclass(frozen=True, eq=False, kw_only=True)
class RuleResource(Status):
    """A rule of patterns: its manifest, with ``metadata`` and ``spec``, and its status.

    Attributes:
        id: of the rule in its job.
        spec: the rule's document, and its job.
        state: ``active``, ``disabled``, ``absent`` or ``unknown``.
        accepted: whether it can be run.
        matches: rows that the job reported for it; None while none are known.
        errors: its errors that the job reported.
    """

    id: str = member("spec.id")
    spec: Mapping[str, Any]
    state: str = member("status.state", "unknown")
    accepted: bool = member("status.accepted", True)
    matches: int | None = member("status.matches", None)
    errors: int | None = member("status.errors", None)


@dataclass(frozen=True, eq=False, kw_only=True)
class PeInfo(Status):
    """A PE as the broker knows it.

    Attributes:
        location: address of its agent; None if it never registered.
        seen: when the agent last registered or reported, ISO 8601; None if not since the broker
            started.
        exports: its export ports.
        imports: its import ports.
    """

    namespace: str
    job: str
    pe: int
    location: str | None
    seen: str | None
    exports: tuple[str, ...]
    imports: tuple[str, ...]

    @property
    def key(self) -> str:
        """Key of the PE, ``namespace/job/pe``."""
        return f"{self.namespace}/{self.job}/{self.pe}"


@dataclass(frozen=True, eq=False, kw_only=True)
class BrokerRoute(Status):
    """A route: two ports, as ``namespace/job/pe/port``, and what holds between them.

    Attributes:
        filter: the importer's filter; None for all rows.
        policy: ``wait`` or ``drop``.
        reason: why it is cut; None of a route that is there.
    """

    export: str
    import_: str
    filter: str | None
    policy: str
    reason: str | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class RouteMetrics(Status):
    """A route with the metrics that agents reported last; None for what is not known.

    Attributes:
        policy: ``wait`` or ``drop``.
        rows_per_second: rows delivered, before the filter.
        bytes_per_second: bytes sent.
        lag_rows: published rows that the slowest reader has not finished.
        lag_seconds: age of the oldest of them.
        congestion: share of the export's buffer that the reader holds, in percent.
        dropped_rows: rows dropped by policy.
        lost_rows: rows lost without consent.
        ended: whether the export has ended.
        age: seconds since the report.
    """

    export: str
    import_: str
    policy: str
    rows_per_second: float | None
    bytes_per_second: float | None
    lag_rows: int | None
    lag_seconds: float | None
    congestion: int | None
    dropped_rows: int | None
    lost_rows: int | None
    ended: bool | None = None
    age: float | None

    @property
    def state(self) -> str:
        """State in a word: one of `streambroker_core.wire.reports.route_states.STATE_ORDER`."""
        return route_state(self)


@dataclass(frozen=True, eq=False, kw_only=True)
class Top(Status):
    """Routes with their metrics, and what jobs report.

    Attributes:
        sides: side inputs; ``docs/rest.md`` has the members of these three.
        rules: what rules of patterns have done.
        rule_waiting: operators with rules for which rows wait.
    """

    routes: tuple[RouteMetrics, ...] = member(each=RouteMetrics)
    sides: tuple[Mapping[str, Any], ...] = ()
    rules: tuple[Mapping[str, Any], ...] = ()
    rule_waiting: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class PortChange(Status):
    """A change of one port or rule, which is on disk, and its effect on routes.

    Routes are empty for a rule, and if the first answer was lost and only the change was confirmed.

    Attributes:
        changed: False if everything was as requested before.
        created: whether the resource is new.
        generation: of the resource after the change.
        warnings: what else the broker reports.
    """

    changed: bool = True
    created: bool = False
    generation: int | None = None
    kept: tuple[BrokerRoute, ...] = member("routes.kept", (), each=BrokerRoute)
    added: tuple[BrokerRoute, ...] = member("routes.added", (), each=BrokerRoute)
    cut: tuple[BrokerRoute, ...] = member("routes.cut", (), each=BrokerRoute)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class ChangeResult(Status):
    """What became of one resource or deletion.

    Attributes:
        port: its key.
        name: of the resource.
        became: ``created``, ``changed``, ``unchanged`` or ``deleted``.
    """

    kind: Kind
    port: str
    name: str
    became: str


@dataclass(frozen=True, eq=False, kw_only=True)
class ChangeProblem(Status):
    """What is wrong with one of several changes.

    Attributes:
        index: of the change: the resources first, then the deletions.
        change: the change in words.
        refused: False if it is only a warning.
    """

    index: int
    change: str
    code: str
    detail: str
    refused: bool


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Forecast(Status):
    """What several changes do, or would do, to the routes.

    Attributes:
        added: new routes.
        cut: routes that end, with the reason.
        kept: number of all other routes of the broker, which go on as they are.
        problems: what is wrong with the changes.
        text: all of it in lines.
        results: of `Broker.apply`: what became of each change; empty if the first answer was lost
            and only the changes were confirmed.
    """

    added: tuple[BrokerRoute, ...] = member("", (), each=BrokerRoute)
    cut: tuple[BrokerRoute, ...] = member("", (), each=BrokerRoute)
    kept: int = 0
    problems: tuple[ChangeProblem, ...] = member("", (), each=ChangeProblem)
    text: str = ""
    results: tuple[ChangeResult, ...] = member("", (), each=ChangeResult)

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True, eq=False, kw_only=True)
class Finding(Status):
    """A probable mistake; ``resource`` is the resource that it is about."""

    code: str
    message: str
    resource: str | None = None


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Lint(Status):
    """Probable mistakes.

    Attributes:
        findings: the first of them.
        total: number of all.
        text: the findings in lines.
    """

    findings: tuple[Finding, ...] = member(each=Finding)
    total: int
    text: str

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True, eq=False, kw_only=True)
class ExplainedPair(Status):
    """An Export and an Import.

    Attributes:
        matched: whether there is a route.
        reason: the first reason against it.
        message: all reasons in words.
        distance: number of changes that a route needs.
    """

    export: str
    import_: str
    matched: bool
    reason: str | None
    message: str
    distance: int


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Explanation(Status):
    """Why ports are connected or not, the nearest pair first.

    Attributes:
        matched: number of connected pairs.
        text: the explanation in lines.
        pairs: the explained pairs.
        lint: probable mistakes of the port.
    """

    matched: int
    text: str
    pairs: tuple[ExplainedPair, ...] = member("", (), each=ExplainedPair)
    lint: tuple[Finding, ...] = member("", (), each=Finding)

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.text)}</pre>"


@dataclass(frozen=True, eq=False, kw_only=True)
class GraphNode(Status):
    """A job, or several in one.

    Attributes:
        kind: ``job``, ``group`` (an application) or ``namespace``.
        exports: number of exports.
        imports: number of imports.
        state: most important state of its routes, see `RouteMetrics.state`; None without routes.
    """

    id: str
    kind: str
    namespace: str
    exports: int
    imports: int
    state: str | None


@dataclass(frozen=True, eq=False, kw_only=True)
class GraphEdge(Status):
    """The routes between two nodes, or inside one.

    Attributes:
        source: id of the exporting node.
        target: id of the importing node.
        routes: number of routes.
        rows_per_second: rows delivered on all of them; None if not known.
        state: the most important of their states.
    """

    id: str
    source: str = member("from")
    target: str = member("to")
    routes: int
    rows_per_second: float | None
    state: str | None


@dataclass(frozen=True, eq=False, kw_only=True)
class Graph(Status):
    """Jobs and the routes between them, in order of their ids.

    Attributes:
        folded: whether a node stands for several jobs.
        hidden: numbers of ``jobs`` and ``routes`` that the limit has no room for.
    """

    nodes: tuple[GraphNode, ...] = member(each=GraphNode)
    edges: tuple[GraphEdge, ...] = member(each=GraphEdge)
    folded: bool
    hidden: Mapping[str, int]
