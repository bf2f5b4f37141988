"""The broker's control plane as typed calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import quote

from streambroker_client.answers import (
    BrokerRoute,
    Explanation,
    Forecast,
    Graph,
    Lint,
    PeInfo,
    PortChange,
    PortResource,
    RuleResource,
    Top,
)
from streambroker_client.connection import Connection
from streambroker_client.errors import BrokerUnavailableError
from streambroker_client.events import Event, follow_events
from streambroker_core.model import DEFAULT_NAMESPACE, Kind, PeKey, PortKey, Removal
from streambroker_core.model.properties import Value
from streambroker_core.wire.broker.paths import JOBS
from streambroker_core.wire.encoding.status import Status, member

Port: TypeAlias = "PortKey | str"
"""A port as ``job/pe/port`` in the namespace of the client, or as ``namespace/job/pe/port``."""

Deletion: TypeAlias = "tuple[Kind, Port] | tuple[Kind, Port, str]"
"""A port to delete; with a name, only if its resource has that name."""


class Broker:
    """One broker, as a program sees it. Make it with `streambroker.connect`; thread-safe.

    Every call raises BrokerUnavailableError or BrokerRefusedError if it fails. A call is retried
    for a minute if the rate limit refuses it. A change has a request id: if its answer is lost, it
    is sent once more and made once.

    Attributes:
        connection: sends the requests.
        namespace: where ports, jobs and lists are looked for; ``*`` only lists.
    """

    def __init__(self, connection: Connection, namespace: str = DEFAULT_NAMESPACE) -> None:
        self.connection = connection
        self.namespace = namespace

    def in_namespace(self, namespace: str) -> Broker:
        """Return a client of the same broker for another namespace."""
        return Broker(self.connection, namespace)

    # ---- resources -----------------------------------------------------------------------------

    def exports(self) -> list[PortResource]:
        """Return all Exports of the namespace, from one snapshot."""
        return self.connection.all(PortResource, "/exports", self.namespace)

    def imports(self) -> list[PortResource]:
        """Return all Imports of the namespace, from one snapshot."""
        return self.connection.all(PortResource, "/imports", self.namespace)

    def pes(self) -> list[PeInfo]:
        """Return all PEs of the namespace, from one snapshot."""
        return self.connection.all(PeInfo, "/pes", self.namespace)

    def routes(self) -> list[BrokerRoute]:
        """Return all routes that touch the namespace, from one snapshot."""
        return self.connection.all(BrokerRoute, "/routes", self.namespace)

    def get(self, kind: Kind, port: Port) -> PortResource:
        """Return the Export or Import of a port.

        Raises:
            UnknownPortError: there is none.
        """
        return self.connection.get(PortResource, *self._port(kind, port))

    def apply(
        self,
        resources: Iterable[Mapping[str, Any]] = (),
        *,
        delete: Iterable[Deletion] = (),
        max_removed: int | None = None,
    ) -> Forecast:
        """Create or replace resources and delete ports: all of them, or none.

        Args:
            resources: manifests of Exports and Imports, up to 1,000 and 900 kB.
            delete: ports as ``(kind, port)`` or ``(kind, port, name)``, up to 1,000; with a name, a
                port is deleted only if its resource has that name.
            max_removed: number of routes that may be cut; None for any number.

        Raises:
            BrokerRefusedError: nothing was changed. ``WouldCut``: more routes would be cut.
                ``problem["problems"]`` has what is wrong with each change.
        """
        query = {} if max_removed is None else {"maxRemoved": str(max_removed)}
        body = _proposal(resources, map(self._removal, delete))
        return self.connection.made(Forecast, "POST", "/apply", self.namespace, body, **query)

    def what_if(
        self,
        resources: Iterable[Mapping[str, Any]] = (),
        *,
        delete: Iterable[Deletion] = (),
    ) -> Forecast:
        """Return what `apply` with these arguments would do; nothing is changed."""
        body = _proposal(resources, map(self._removal, delete))
        return self.connection.get(Forecast, "/whatif", self.namespace, body=body)

    def delete(self, kind: Kind, port: Port) -> PortChange:
        """Delete the Export or Import of a port."""
        return self.connection.made(PortChange, "DELETE", *self._port(kind, port))

    def delete_pe(self, pe: PeKey | str) -> None:
        """Forget a PE without ports, ``job/pe`` or ``namespace/job/pe``."""
        key = pe if isinstance(pe, PeKey) else PeKey.parse(_qualified(pe, 2, self.namespace))
        self.connection.change("DELETE", pe_path(key), namespace=key.namespace)

    # ---- changes of a running port -------------------------------------------------------------

    def set_filter(
        self,
        port: Port,
        filter: str | None,  # noqa: A002
        *,
        force: bool = False,
    ) -> PortChange:
        """Replace the filter of an Import; None for all rows.

        ``force`` takes over a field that a manifest of a cluster declares, as in the other setters.
        """
        return self._set("Import", port, "filter", {"filter": filter}, force=force)

    def set_subscription(self, port: Port, subscription: str, *, force: bool = False) -> PortChange:
        """Replace the subscription of an Import; its filter and scope stay."""
        body = {"subscription": subscription}
        return self._set("Import", port, "subscription", body, force=force)

    def set_properties(
        self, port: Port, properties: Mapping[str, Value], *, force: bool = False
    ) -> PortChange:
        """Replace all properties of an Export at once."""
        return self._set("Export", port, "properties", dict(properties), force=force)

    def release(self, kind: Kind, port: Port) -> PortChange:
        """Give up what was set by REST, so that the manifest of a cluster applies again."""
        path, namespace = self._port(kind, port)
        return self.connection.made(PortChange, "POST", f"{path}/release", namespace)

    def patterns(self, job: str) -> JobPatterns:
        """Return the rules of patterns of a job; sends no request."""
        return JobPatterns(self, job)

    # ---- diagnosis -----------------------------------------------------------------------------

    def explain(
        self, *, import_: Port | None = None, export: Port | None = None, limit: int = 20
    ) -> Explanation:
        """Return why an Import and an Export are connected or not, or what comes nearest to one.

        Args:
            import_: port of the Import.
            export: port of the Export.
            limit: explained pairs, 1 to 500.
        """
        ends = {"import": import_, "export": export}
        query = {name: str(self._key(port)) for name, port in ends.items() if port is not None}
        return self.connection.get(
            Explanation, "/explain", self.namespace, limit=str(limit), **query
        )

    def lint(self, *, limit: int = 1_000) -> Lint:
        """Return probable mistakes in the namespace, at most 100,000."""
        return self.connection.get(Lint, "/lint", self.namespace, limit=str(limit))

    def graph(
        self,
        *,
        focus: str | None = None,
        hops: int = 1,
        match: str | None = None,
        group: str | None = None,
        limit: int = 2_000,
    ) -> Graph:
        """Return jobs and the routes between them.

        Args:
            focus: ``namespace/job``: this job, and those up to ``hops`` (1 or 2) routes away.
            hops: with ``focus``.
            match: a part of a name, ``name=value``, or a subscription.
            group: ``namespace/application`` whose jobs are not folded.
            limit: nodes and edges, 1 to 2,000.
        """
        around = {} if focus is None else {"focus": focus, "hops": str(hops)}
        words = {"match": match, "group": group}
        query = {name: word for name, word in words.items() if word}
        return self.connection.get(
            Graph, "/graph", self.namespace, limit=str(limit), **around, **query
        )

    def top(self) -> Top:
        """Return the routes that touch the namespace, with the metrics that agents reported."""
        return self.connection.get(Top, "/top", self.namespace)

    def watch(
        self, *, on_away: Callable[[BrokerUnavailableError], object] = lambda _: None
    ) -> Iterator[Event]:
        """Yield changes of Exports, Imports, PEs and routes of the namespace, forever.

        The first event is a ``reset``: list then. A later ``reset`` means that events were lost.

        Args:
            on_away: called when the broker goes away; the iteration continues when it is back.

        Raises:
            BrokerUnavailableError: it does not answer at the start.
            BrokerRefusedError: the namespace cannot be read.
        """
        return follow_events(self.connection, self.namespace, on_away)

    # ---- requests ------------------------------------------------------------------------------

    def _key(self, port: Port) -> PortKey:
        return (
            port
            if isinstance(port, PortKey)
            else PortKey.parse(_qualified(port, 3, self.namespace))
        )

    def _removal(self, deletion: Deletion) -> Removal:
        return Removal(deletion[0], self._key(deletion[1]), *deletion[2:])

    def _port(self, kind: Kind, port: Port) -> tuple[str, str]:
        """Return the path and the namespace of a port."""
        key = self._key(port)
        return port_path(kind, key), key.namespace

    def _set(self, kind: Kind, port: Port, part: str, body: Any, *, force: bool) -> PortChange:
        path, namespace = self._port(kind, port)
        query = {"force": "true"} if force else {}
        return self.connection.made(PortChange, "PUT", f"{path}/{part}", namespace, body, **query)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Rules(Status):
    patterns: tuple[RuleResource, ...] = member(each=RuleResource)


class JobPatterns:
    """The rules of patterns of one job."""

    def __init__(self, broker: Broker, job: str) -> None:
        self._connection = broker.connection
        self._namespace = broker.namespace
        self._path = f"{JOBS}/{quote(job, safe='')}/patterns"

    def list(self) -> list[RuleResource]:
        """Return all rules, in the order of their ids."""
        return list(self._connection.get(_Rules, self._path, self._namespace).patterns)

    def get(self, rule: str) -> RuleResource:
        """Return the rule with an id."""
        return self._connection.get(RuleResource, self._rule(rule), self._namespace)

    def put(self, rule: str, document: Mapping[str, Any], *, force: bool = False) -> PortChange:
        """Create or replace a rule by its document, or by a whole manifest."""
        return self._change("PUT", self._rule(rule), dict(document), force=force)

    def delete(self, rule: str) -> PortChange:
        """Delete a rule."""
        return self._change("DELETE", self._rule(rule))

    def enable(self, rule: str, *, force: bool = False) -> PortChange:
        """Let a rule run again that an error has turned off."""
        return self._change("POST", f"{self._rule(rule)}/enable", force=force)

    def _rule(self, rule: str) -> str:
        return f"{self._path}/{quote(rule, safe='')}"

    def _change(
        self, method: str, path: str, body: Any = None, *, force: bool = False
    ) -> PortChange:
        query = {"force": "true"} if force else {}
        return self._connection.made(PortChange, method, path, self._namespace, body, **query)


def _qualified(text: str, slashes: int, namespace: str) -> str:
    return text if text.count("/") >= slashes else f"{namespace}/{text}"


def _proposal(
    resources: Iterable[Mapping[str, Any]], removals: Iterable[Removal]
) -> dict[str, Any]:
    return {
        "resources": [dict(resource) for resource in resources],
        "delete": [
            {"kind": kind, **key._asdict(), **({"name": name} if name else {})}
            for kind, key, name in removals
        ],
    }


def pe_path(pe: PeKey) -> str:
    """Return the path of a PE below the API prefix."""
    return f"/job/{pe.job}/pe/{pe.pe}"


def port_path(kind: str, key: PortKey) -> str:
    """Return the path of a port below the API prefix."""
    return f"{pe_path(key.owner)}/{kind.lower()}/{key.port}"
