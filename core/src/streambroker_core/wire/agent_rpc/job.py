"""Other actions of an agent's own job: declarations, view, status, control tuples, reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from streambroker_core.wire.agent_rpc.codec import Request, optional


@dataclass(frozen=True, slots=True, kw_only=True)
class Declare(Request[None]):
    """Declare a port.

    Attributes:
        kind: ``export`` or ``import``.
        spec: the manifest's spec; None attaches to the existing resource.
        schema: columns of an export's rows; they override those of the resource.
        redeclare: replace a resource that differs.
        owner: Kubernetes object that owns the resource.
    """

    action: ClassVar[str] = "declare"
    kind: str
    port: str
    spec: Mapping[str, Any] | None
    schema: Sequence[Any] | None = None
    redeclare: bool = False
    owner: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentView:
    """The agent's view and its version, None while there is none."""

    version: str | None
    view: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetView(Request[CurrentView]):
    """Ask for the view; wait up to ``wait`` seconds while its version is ``seen``."""

    action: ClassVar[str] = "view"
    seen: str | None = optional()
    wait: float = optional(0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GetStatus(Request[dict[str, Any]]):
    """Ask for the agent's status."""

    action: ClassVar[str] = "status"


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeSnapshot(Request[dict[str, Any]]):
    """Take a snapshot of the agent, or ask whether it is complete."""

    action: ClassVar[str] = "agent.snapshot"
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverRenew(Request[None]):
    """Report that the driver runs."""

    action: ClassVar[str] = "driver.renew"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop(Request[None]):
    """End the agent."""

    action: ClassVar[str] = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportEmit(Request[dict[str, Any]]):
    """Send a control tuple to the importers of an export; a repeated ``request`` sends nothing."""

    action: ClassVar[str] = "export.emit"
    export: str
    request: str
    what: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportEmitted(Request[dict[str, Any]]):
    """Ask which readers have applied a control tuple of an export."""

    action: ClassVar[str] = "export.emitted"
    export: str
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPeek(Request[dict[str, Any]]):
    """Ask for the last rows of an export.

    Attributes:
        after: ``position`` of an earlier answer: only what was published since.
        arrow: as an Arrow IPC stream in base64, in place of JSON.
    """

    action: ClassVar[str] = "export.peek"
    export: str
    filter: str | None = None
    columns: Sequence[str] | None = None
    limit: int = 50
    after: str | None = None
    arrow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlAppend(Request[dict[str, Any]]):
    """Append a control tuple to the agent's control log; a repeated ``request`` appends nothing."""

    action: ClassVar[str] = "control.append"
    request: str
    what: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlEntry(Request[dict[str, Any]]):
    """Ask which readers have applied an entry of the control log."""

    action: ClassVar[str] = "control.entry"
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentRules:
    """Rules of the job from the broker.

    Attributes:
        digest: None while the broker has sent no rules.
        rules: None if the caller knows them.
        enabled: how often each rule was enabled, as the query knows.
        away: the broker does not respond.
    """

    digest: str | None
    rules: Sequence[dict[str, Any]] | None
    enabled: Mapping[str, int] = field(default_factory=dict)
    away: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesWanted(Request[CurrentRules]):
    """Ask for rules; wait up to ``wait`` seconds while their digest is ``known``."""

    action: ClassVar[str] = "rules.wanted"
    discoverer: str
    query: str | None = None
    known: str | None = None
    wait: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesReport(Request[None]):
    """Report the status of rules, and the enable counts of a query."""

    action: ClassVar[str] = "rules.report"
    discoverer: str
    query: str | None = None
    rules: Mapping[str, Any]
    enabled: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesLeave(Request[None]):
    """Report that a discoverer ends."""

    action: ClassVar[str] = "rules.leave"
    discoverer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesMetrics(Request[None]):
    """Report the metrics of an operator's rules; no rules for one that has ended.

    Attributes:
        failed: ids of the rules that are off after an error, or that the query has refused.
    """

    action: ClassVar[str] = "rules.figures"
    operator: str
    log: str
    rules: Sequence[Any] = ()
    waiting: Mapping[str, Any] | None = None
    failed: Sequence[str] = optional(())


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowsReport(Request[None]):
    """Report windows of pattern operators, for the program that made them.

    Attributes:
        operators: by the unique id of the operator, ``WindowMetrics`` as JSON objects.
    """

    action: ClassVar[str] = "windows.report"
    operators: Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedWindows:
    """Windows in the order of their reports; ``next_`` asks for those after them."""

    next_: int
    windows: Sequence[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowsReported(Request[ReportedWindows]):
    """Ask for the reported windows of an operator, from a number on."""

    action: ClassVar[str] = "windows.reported"
    operator: str
    first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SidesMetrics(Request[None]):
    """Report the metrics of side inputs, by bucket."""

    action: ClassVar[str] = "sides.told"
    buckets: Sequence[Any] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SidesRunning(Request[None]):
    """Report the running queries: metrics of others are dropped."""

    action: ClassVar[str] = "sides.running"
    queries: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryEnded:
    """Whether all readers of a query have ended."""

    ended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryBegin(Request[QueryEnded]):
    """Register or renew a query; ``query`` is None before it starts.

    ``exports`` are the ports it publishes to, ``frames`` the names of its imports. ``foreign``:
    it also reads other streams.
    """

    action: ClassVar[str] = "query.begin"
    query: str | None
    run: str | None
    exports: Sequence[str]
    frames: Sequence[str]
    foreign: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryEnd(Request[None]):
    """Remove a run of a query.

    Attributes:
        exports: ports that it published to.
        code: error code of its failure, ``QueryFailed`` for an error of other code; empty if it has
            not failed.
        message: what has failed, as sentences.
    """

    action: ClassVar[str] = "query.end"
    query: str | None
    run: str | None
    exports: Sequence[str] = optional(())
    code: str = optional("")
    message: str = optional("")
