"""Ports of a running PE: read and change subscriptions, filters and properties."""

from __future__ import annotations

import logging
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pe_agent.datasource.options import SOURCE_FIELD, fetch_schema
from pe_agent.datasource.schemas import Columns, as_ddl
from pe_agent.job.agent.view_cache import KnownPort
from pe_agent.job.applied import wait_applied
from pe_agent.job.arguments import Congestion, StartAt, check_choice, check_start
from pe_agent.job.context import JobContext
from pe_agent.job.port_client import PortClient
from pe_agent.job.port_settings import Property
from pe_agent.job.send_control import SentControl, build_request, send_to_importers
from pe_agent.job.statuses import Route
from pe_agent.spark.pushed_filters import PUSHDOWN
from pe_agent.spark.session import active_session
from pe_agent.transport.agent_client import send
from pe_agent.transport.expression_errors import mark_expression_errors
from streambroker_client.answers import Explanation
from streambroker_core.control.tuples import ALL_TARGETS, Delivery, Target
from streambroker_core.control.tuples.payloads import Codec, default_delivery
from streambroker_core.deprecation import deprecated_name, warn_deprecated
from streambroker_core.errors import StreambrokerError
from streambroker_core.expression import parse
from streambroker_core.matching import canonical_filter
from streambroker_core.model.durations import Duration
from streambroker_core.model.properties import Value, normalise
from streambroker_core.wire.agent_rpc.job import GetStatus, GetView
from streambroker_core.wire.agent_rpc.publisher import PublisherFinish
from streambroker_core.wire.encoding.status import attribute_table, row_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

P = TypeVar("P")
POLL_SECONDS = 0.02
_SHOWN_FIELDS = ("subscription", "streams", "filter", "properties", "congestionPolicy")

log = logging.getLogger("pe_agent")
_OLD_NAMES = {"NotAppliedError": "pe_agent.job.applied"}


class QueryActiveError(StreambrokerError):
    """The operation requires a stopped query; this one is running."""

    code = "QueryActive"


class PortMissingError(StreambrokerError, KeyError):
    """This PE has no such port; it is a `KeyError` as well."""

    code = "UnknownPort"
    __str__ = Exception.__str__


class PortsByName(dict[str, P]):
    """Ports by name; ``method`` of the PE makes a port of this ``kind``.

    ``ports[name]`` also finds a port that this program has not made, if its agent knows it.
    """

    def __init__(
        self, kind: str, method: str, find: Callable[[str], P | None] = lambda _: None
    ) -> None:
        super().__init__()
        self._kind, self._method, self._find = kind, method, find

    def __missing__(self, name: object) -> P:
        """Return a port that the agent knows; raise a PortMissingError that suggests a name."""
        found = self._find(str(name))
        if found is not None:
            self[str(name)] = found
            return found
        near = get_close_matches(str(name), sorted(self), n=1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        known = ", ".join(sorted(self)) or "none yet"
        raise PortMissingError(
            f"this PE has no {self._kind} {name!r}.{meant} Known: {known}. {self._method}()"
            " creates one."
        )


@dataclass(frozen=True, slots=True)
class Change:
    """A change that the broker has accepted and stored.

    Attributes:
        generation: generation of the resource; later changes have higher ones.
        routes: ``{"kept": …, "added": …, "cut": …}`` from the broker's response.
    """

    generation: int
    routes: Mapping[str, Any]
    _port: _Port = field(repr=False)

    def applied(self) -> bool:
        """Return whether it applies: the agent has it, and every active reader has pinned it.

        A reader that has pinned a change of its import has informed the exporters. Without a reader
        the agent's view is enough.

        Raises:
            AgentUnreachableError: the agent does not answer.
        """
        return self._port.is_applied(self.generation)

    def _repr_html_(self) -> str:
        counts = {kind: len(routes) for kind, routes in self.routes.items()}
        shown = {"generation": self.generation, "routes": counts}
        return attribute_table(f"Change of {self._port.kind} {self._port.name}", shown)

    def programmed(self) -> bool:
        """Deprecated: use ``applied``."""
        warn_deprecated("Change.programmed", "Change.applied")
        return self.applied()

    def wait_applied(self, timeout: Duration = "30s") -> Mapping[str, Any]:
        """Wait until the change applies, and return where.

        Returns:
            For an import, what each active reader has pinned, by reader id; for an export, its
            routes.

        Raises:
            NotAppliedError: not within ``timeout``; the change stays accepted.
        """
        port = self._port
        return wait_applied(
            partial(port.find_applied, self.generation),
            timeout,
            lambda: (
                f"generation {self.generation} of {port.kind} {port.name} is accepted, but not seen"
                " applied (is the query running, and the agent connected to the broker?)"
            ),
            every=POLL_SECONDS,
        )


class _Port(ABC):
    """A port of a PE; requests to the broker end at ``deadline`` (monotonic)."""

    kind = ""

    def __init__(self, job: JobContext, name: str, *, deadline: float = math.inf) -> None:
        self._job, self.name = job, name
        self._client = PortClient(job, self.kind, name, deadline=deadline)

    def __repr__(self) -> str:
        return f"{type(self).__name__}('{self._job.key}/{self.name}')"

    def _repr_html_(self) -> str:
        """Return what is known of the port and its routes, for notebooks; sends no request."""
        known: Any = self._client.cached_port() or {}
        shown = {name: known[name] for name in _SHOWN_FIELDS if known.get(name)}
        rows = [(one.peer, one.filter, one.policy) for one in self.routes]
        title = f"{type(self).__name__} {self._job.key}/{self.name}"
        return attribute_table(title, shown) + row_table(
            "Routes", ("peer", "filter", "policy"), rows
        )

    def explain(self, other: str | None = None, *, limit: int = 20) -> Explanation:
        """Ask the broker why the port is connected or not.

        Args:
            other: the port at the other end, ``namespace/job/pe/port``; without it the nearest.
            limit: maximum number of pairs, 1 to 500.

        Raises:
            BrokerRefusedError: the broker does not know one of the ports.
            BrokerUnavailableError: the broker does not answer.
        """
        query = {self.kind: f"{self._job.key}/{self.name}", "limit": str(limit)}
        if other is not None:
            query["import" if self.kind == "export" else "export"] = other
        answer = self._job.broker().request("GET", "/explain", query=query)
        return Explanation.from_json(answer.body)

    @property
    def routes(self) -> list[Route]:
        """The port's routes in the agent's view; the last known ones while it does not answer."""
        known = self._client.port_in_view()
        return [] if known is None else [Route.from_json(one) for one in known["routes"]]

    @property
    def stale(self) -> bool:
        """Whether the broker does not confirm the values of the getters now; never raises.

        True while the broker is unreachable, while nothing is known, and until a change by another
        client has reached the agent. Sends a request to the broker.
        """
        known = self._client.cached_port()
        try:
            metadata = self._client.request("GET", await_declared=False).body["metadata"]
            current = (metadata["uid"], metadata["generation"])
        except Exception:
            return True
        return known is None or current != (known["uid"], known["generation"])

    def on_routes(self, callback: Callable[[list[Route]], None]) -> Callable[[], None]:
        """Call ``callback`` with the routes now and after each change, in a thread of its own.

        Returns:
            A function that ends the calls; ``pe.stop()`` ends them, too.
        """
        ended = threading.Event()

        def follow() -> None:
            seen: str | None = ""
            last = None
            while not (ended.is_set() or self._job.stopped.is_set()):
                try:
                    answer = send(self._job.agent, GetView(seen=seen, wait=1.0))
                except StreambrokerError:
                    ended.wait(0.5)
                    continue
                seen = answer.version
                ports = (answer.view or {}).get(f"{self.kind}s", {})
                routes = ports.get(self.name, {}).get("routes", [])
                if routes != last:
                    last = routes
                    try:
                        callback([Route.from_json(one) for one in routes])
                    except Exception:
                        log.exception("the listener to routes failed", extra={"port": self.name})

        threading.Thread(target=follow, daemon=True, name=f"routes of {self.name}").start()
        return ended.set

    def _put(
        self,
        subresource: str,
        body: Any,
        fields: KnownPort,
        headers: Mapping[str, str] | None = None,
    ) -> Change:
        answer = self._client.put(subresource, body, fields, headers=headers)
        return Change(int(answer["generation"]), answer.get("routes", {}), self)

    @abstractmethod
    def is_applied(self, generation: int) -> bool:
        """Return whether a change applies; a port without readers needs none."""

    def find_applied(self, generation: int) -> Mapping[str, Any] | None:
        """Return where a change applies; None while it does not, or the agent does not answer."""
        try:
            return self._get_applied(generation)
        except StreambrokerError:
            return None

    @abstractmethod
    def _get_applied(self, generation: int) -> Mapping[str, Any] | None: ...


class ImportPort(_Port):
    """One import of the PE, while its queries run."""

    kind = "import"

    @property
    def filter(self) -> str | None:
        """The filter, or None; the last known one without a response (see ``stale``)."""
        known = self._client.cached_port()
        return None if known is None else known.get("filter")

    @property
    def subscription(self) -> str | None:
        """The subscription, or None; the last known one without a response (see ``stale``)."""
        known = self._client.cached_port()
        return None if known is None else known.get("subscription")

    @property
    def streams(self) -> list[dict[str, str]]:
        """The streams imported by name; the last known ones without a response (see ``stale``)."""
        known = self._client.cached_port()
        return [] if known is None else drop_null_fields(known.get("streams"))

    def set_subscription(self, subscription: str, *, keep_kind: bool = False) -> Change:
        """Replace the subscription; filter and scope stay.

        Args:
            subscription: an expression over properties.
            keep_kind: refuse an import by name, instead of making it one by subscription.

        Raises:
            SubscriptionError: it cannot be read; nothing was changed.
            WrongKindError: it is an import by name, and ``keep_kind`` is set.
            UnknownPortError, ChangeRefusedError: the broker refuses.
            BrokerUnavailableError: the broker does not answer.
        """
        body = {"subscription": subscription}
        part = "subscription" if keep_kind else "streams"
        with mark_expression_errors(body):
            parse(subscription, "subscription")
            return self._put(part, body, {"subscription": subscription, "streams": []})

    def set_streams(self, streams: Sequence[Mapping[str, str]]) -> Change:
        """Import by these names instead; filter and scope stay.

        Raises:
            UnknownPortError, ChangeRefusedError: the broker refuses.
            BrokerUnavailableError: the broker does not answer.
        """
        names = [dict(s) for s in streams]
        return self._put("streams", {"streams": names}, {"subscription": None, "streams": names})

    def set_filter(self, filter: str | None) -> Change:  # noqa: A002 - the word of the API
        """Replace the filter; None or empty text lets every row through.

        Raises:
            FilterError: it cannot be read; nothing was changed.
            ChangeRefusedError: code FilterInvalid, it fits no connected export.
            UnknownPortError: there is no such import.
            BrokerUnavailableError: the broker does not answer.
        """
        body = {"filter": filter or ""}
        with mark_expression_errors(body):
            parse(body["filter"], "filter")
            return self._put("filter", body, {"filter": canonical_filter(filter)})

    def read(
        self,
        start: StartAt | datetime | str = "earliest",
        end: StartAt | datetime | str = "latest",
        *,
        filter: str | None = None,  # noqa: A002 - the word of the API
        schema: Columns | None = None,
        source: bool = False,
    ) -> DataFrame:
        """Read what the exports have now as a DataFrame that is not streaming.

        It is a snapshot, made by its first action. Call this again for a newer one, and also when
        the last read of a DataFrame is longer ago than ``buffer.grace``: it is unreadable then.

        Args:
            start: ``earliest``, a time as datetime or ``2026-01-31T12:00:00Z``, or a time ago,
                ``-1h``: read what was published from then on.
            end: the same, or ``latest``: read what was published before.
            filter: narrows the filter of the import.
            schema: columns as DDL, StructType or Arrow schema; default is those of the first match.
            source: add the column ``_source``.

        Raises:
            ArgumentError: ``start`` or ``end`` is none.
            SchemaUnknownError: no ``schema`` and no match in 60 s.
        """
        times = {"start": check_start(start, "start"), "end": check_start(end, "end")}
        options = {**self._job.agent_options(), **times, "import": self.name}
        ddl = fetch_schema(self._job.agent, self.name) if schema is None else as_ddl(schema)
        if filter is not None:
            options["filter"] = filter
        options["pushFilters"] = str(self._job.spark.conf.get(PUSHDOWN, "false"))
        reader = self._job.spark.read.format("streambroker").options(**options, source=str(source))
        with active_session(self._job.spark):
            return reader.schema(f"{ddl}, {SOURCE_FIELD}" if source else ddl).load()

    def is_applied(self, generation: int) -> bool:
        """Return whether the agent's view has it, and every active reader has pinned it."""
        known = self._client.port_in_view()
        if known is None or known["generation"] < generation:
            return False
        return all(p.get("generation", 0) >= generation for p in self._pinned_by_reader().values())

    def _pinned_by_reader(self) -> dict[str, Any]:
        readers = send(self._job.agent, GetStatus())["imports"]["readers"]
        return {
            id_: r["pinned"]
            for id_, r in readers.items()
            if r["import"].endswith(f"/{self.name}") and r["alive"]
        }

    def _get_applied(self, generation: int) -> Mapping[str, Any] | None:
        pinned = self._pinned_by_reader()
        if pinned and all(p.get("generation", 0) >= generation for p in pinned.values()):
            return pinned
        return None


class ExportPort(_Port):
    """One export of the PE, while its query runs; ``query`` publishes to it, if started here."""

    kind = "export"

    def __init__(
        self,
        job: JobContext,
        name: str,
        *,
        deadline: float = math.inf,
        query: StreamingQuery | None = None,
    ) -> None:
        super().__init__(job, name, deadline=deadline)
        self._query = query
        self._query_and_run = (None, None) if query is None else (str(query.id), str(query.runId))

    def finish(self) -> None:
        """Mark the export as ended: no more rows follow, and waiting importers are informed.

        The mark outlives the program and its agent. Rows published later remove it.

        Raises:
            QueryActiveError: the query still runs; stop it first.
            AgentRefusedError: code PublisherInUse or Fenced, another query or run publishes here.
            AgentUnreachableError: the agent does not answer.
        """
        if _is_active(self._query):
            raise QueryActiveError(
                f"the query that publishes to {self.name} is active: stop it, or wait for its end"
                " (awaitTermination), then finish."
            )
        query, run = self._query_and_run
        send(self._job.agent, PublisherFinish(export=self.name, query=query, run=run))

    @property
    def properties(self) -> dict[str, Value] | None:
        """The properties, None of an export by name; the last known ones without a response."""
        known = self._client.cached_port()
        return None if known is None else known.get("properties")

    def set_properties(self, properties: Mapping[str, Property]) -> Change:
        """Replace all properties at once.

        Raises:
            PropertyError: a value cannot be stored; nothing was changed.
            WrongKindError: it is an export by name.
            UnknownPortError, ChangeRefusedError: the broker refuses.
            BrokerUnavailableError: the broker does not answer.
        """
        normalised = normalise(properties)
        return self._put("properties", normalised, {"properties": normalised})

    def send(
        self,
        payload: object,
        *,
        delivery: Delivery | str | None = None,
        at: int | None = None,
        target: Target = ALL_TARGETS,
        codecs: Sequence[Codec] = (),
        request: str | None = None,
    ) -> SentControl:
        """Send a control tuple to all importers that read control.

        It gets an epoch of its own, after all that was published before.

        Args:
            payload: a dataclass, an object with a codec, or a mapping with ``type`` and
                ``payload``.
            delivery: when it is delivered to operators; by default as the payload's type declares,
                else ``END_WINDOW``.
            at: event time in microseconds, with ``AT_TIME``.
            target: the operators that it is for.
            codecs: how objects of other types are written.
            request: id of the request; a repeated one sends nothing more. Random by default.

        Raises:
            ControlError, ControlLimitError, ManifestError: it cannot be a control tuple.
            AgentRefusedError: the export is not known, or full.
        """
        if delivery is None:
            delivery = default_delivery(payload, "pe.exports[port].send")
        request_ = build_request(payload, delivery, at, target, codecs)
        return send_to_importers(self._job, self.name, request_, request)

    def set_congestion_policy(self, policy: Congestion | str) -> Change:
        """Set the policy to ``wait`` or ``drop``; a hint informs a waiting writer.

        Raises:
            ArgumentError: it is neither; nothing was changed.
        """
        policy = check_choice(Congestion, policy, "the policy")
        response = self._client.request("GET")
        spec = {k: v for k, v in response.body["spec"].items() if k not in ("job", "pe", "port")}
        spec["congestionPolicy"] = policy
        match = {"If-Match": response.headers["etag"]}
        return self._put("", spec, {"congestionPolicy": policy}, match)

    def is_applied(self, generation: int) -> bool:
        """Return whether the agent's view has it."""
        return self._get_applied(generation) is not None

    def _get_applied(self, generation: int) -> Mapping[str, Any] | None:
        known = self._client.port_in_view()
        if known is not None and known["generation"] >= generation:
            return {"routes": known["routes"]}
        return None


def is_known(job: JobContext, kind: str, name: str) -> bool:
    """Return whether the agent has a port by a declaration or in its view; False without it."""
    try:
        status = send(job.agent, GetStatus(), timeout=2.0)
    except StreambrokerError:
        return False
    exports = status.get("exports", ()) if kind == "export" else ()
    return (
        f"{kind}/{name}" in status.get("declarations", ())
        or f"{job.key}/{name}" in exports
        or job.view_cache.port_in_view(kind, name) is not None
    )


def _is_active(query: StreamingQuery | None) -> bool:
    try:
        return query is not None and bool(query.isActive)
    except Exception:
        return False  # the session has ended, and its queries with it


def drop_null_fields(streams: Sequence[Mapping[str, str | None]] | None) -> list[dict[str, str]]:
    """Return streams by name without their null fields."""
    return [{k: v for k, v in stream.items() if v is not None} for stream in streams or ()]


def __getattr__(name: str) -> Any:
    """Import an old name, with a warning."""
    return deprecated_name(__name__, name, _OLD_NAMES, "streambroker")
