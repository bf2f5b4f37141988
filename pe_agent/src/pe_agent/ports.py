"""Ports of a running PE: read and change subscriptions, filters and properties."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pe_agent.broker_client import BrokerAnswer, BrokerRefusedError, pe_path
from pe_agent.flight_errors import AgentUnreachableError
from streambroker_core.errors import StreambrokerError
from streambroker_core.expression import parse
from streambroker_core.properties import normalise

if TYPE_CHECKING:
    from pe_agent.pe import PE

log = logging.getLogger("pe_agent")

DECLARED_SECONDS = 5.0


class NotAppliedError(StreambrokerError):
    """A change is accepted and durable, but was not seen applied in time."""

    code = "NotApplied"


@dataclass(frozen=True, slots=True)
class Change:
    """A change that the broker has accepted and stored.

    Attributes:
        version: generation of the resource; later changes have higher ones.
        routes: ``{"kept": …, "added": …, "cut": …}`` as the broker answered.
    """

    version: int
    routes: Mapping[str, Any]
    _wait: Callable[[int, float], Mapping[str, Any]]

    def wait_applied(self, timeout: float = 30.0) -> Mapping[str, Any]:
        """Wait until the change holds and say where.

        Returns:
            For an import, what each living reader has pinned, by reader id; for an export, its
            routes.

        Raises:
            NotAppliedError: not in ``timeout`` seconds; the change stays accepted.
        """
        return self._wait(self.version, timeout)


class _Port:
    kind = ""

    def __init__(self, pe: PE, name: str) -> None:
        self._pe, self.name = pe, name
        self._path = f"{pe_path(pe.key.job, pe.key.pe)}/{self.kind}/{name}"

    def _known(self) -> dict[str, Any] | None:
        view = self._pe.view()
        port: dict[str, Any] | None = None if view is None else view[f"{self.kind}s"].get(self.name)
        return port

    @property
    def routes(self) -> list[dict[str, Any]]:
        """The port's routes as the agent knows them now."""
        known = self._known()
        return [] if known is None else list(known["routes"])

    def on_routes(self, callback: Callable[[list[dict[str, Any]]], None]) -> Callable[[], None]:
        """Call ``callback`` with the routes now and after each change, in a thread of its own.

        Returns:
            A function that ends the calls; ``pe.stop()`` ends them, too.
        """
        ended = threading.Event()

        def follow() -> None:
            seen, last = "", None
            while not (ended.is_set() or self._pe.stopped.is_set()):
                try:
                    answer = self._pe.agent.call("view", seen=seen, wait=1.0)
                except StreambrokerError:
                    ended.wait(0.5)
                    continue
                seen = answer["version"]
                ports = (answer["view"] or {}).get(f"{self.kind}s", {})
                routes = ports.get(self.name, {}).get("routes", [])
                if routes != last:
                    last = routes
                    try:
                        callback(routes)
                    except Exception:
                        log.exception("the listener to routes failed", extra={"port": self.name})

        threading.Thread(target=follow, daemon=True, name=f"routes of {self.name}").start()
        return ended.set

    def _ask(self, method: str, path: str, body: Any = None, **more: Any) -> BrokerAnswer:
        """Ask the broker about the port; what the job declared may be on its way to it still."""
        deadline = time.monotonic() + DECLARED_SECONDS
        while True:
            try:
                return self._pe.broker().request(method, path, body, **more)
            except BrokerRefusedError as error:
                told = self._pe.status()["declarations"].get(f"{self.kind}/{self.name}")
                if error.status != 404 or told is None or time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def _put(self, what: str, body: Any, method: str = "PUT") -> Change:
        answer = self._ask(method, f"{self._path}/{what}", body).body
        return Change(int(answer["generation"]), answer.get("routes", {}), self._applied)

    def _applied(self, version: int, timeout: float) -> Mapping[str, Any]:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                held = self._holds(version)
            except AgentUnreachableError:
                held = None
            if held is not None:
                return held
            time.sleep(0.02)
        raise NotAppliedError(
            f"version {version} of {self.kind} {self.name} is accepted but not seen applied after"
            f" {timeout:g} s: is the query running, and the agent connected to the broker?"
        )

    def _holds(self, version: int) -> Mapping[str, Any] | None:
        raise AssertionError(version)


class ImportPort(_Port):
    """One import of the PE, while its queries run."""

    kind = "import"

    @property
    def filter(self) -> str | None:
        """The filter the agent knows; last known while the broker is away."""
        known = self._known()
        return None if known is None else known["filter"]

    @property
    def subscription(self) -> str | None:
        """The subscription the agent knows; last known while the broker is away."""
        known = self._known()
        return None if known is None else known["subscription"]

    def set_subscription(self, subscription: str) -> Change:
        """Replace the subscription; filter and scope stay.

        Raises:
            SubscriptionError: it cannot be read; nothing was changed.
            BrokerUnavailableError: the broker does not answer.
        """
        parse(subscription, "subscription")
        return self._put("streams", {"subscription": subscription})

    def set_streams(self, streams: Sequence[Mapping[str, str]]) -> Change:
        """Import by these names instead; filter and scope stay."""
        return self._put("streams", {"streams": [dict(s) for s in streams]})

    def set_filter(self, filter: str | None) -> Change:  # noqa: A002 - the word of the API
        """Replace the filter; None or empty text lets every row through.

        Raises:
            FilterError: it cannot be read; nothing was changed.
            BrokerRefusedError: code FilterInvalid, it fits no connected export.
            BrokerUnavailableError: the broker does not answer.
        """
        parse(filter or "", "filter")
        return self._put("filter", {"filter": filter or ""})

    def _holds(self, version: int) -> Mapping[str, Any] | None:
        """Return what each living reader has pinned once all have the version."""
        readers = self._pe.status()["imports"]["readers"]
        mine = {
            id_: r["pinned"]
            for id_, r in readers.items()
            if r["import"].endswith(f"/{self.name}") and r["alive"]
        }
        if mine and all(p.get("generation", 0) >= version for p in mine.values()):
            return mine
        return None


class ExportPort(_Port):
    """One export of the PE, while its query runs."""

    kind = "export"

    @property
    def properties(self) -> dict[str, Any] | None:
        """The properties the agent knows; last known while the broker is away."""
        known = self._known()
        return None if known is None else known.get("properties")

    def set_properties(self, properties: Mapping[str, Any]) -> Change:
        """Replace all properties at once.

        Raises:
            PropertyError: a value cannot be kept; nothing was changed.
            BrokerUnavailableError: the broker does not answer.
        """
        return self._put("properties", normalise(properties))

    def set_congestion_policy(self, policy: str) -> Change:
        """Change ``wait`` to ``drop`` or back; a waiting writer hears of it by hint."""
        found = self._ask("GET", self._path)
        spec = {k: v for k, v in found.body["spec"].items() if k not in ("job", "pe", "port")}
        spec["congestionPolicy"] = policy
        match = {"If-Match": found.headers["etag"]}
        answer = self._ask("PUT", self._path, spec, headers=match).body
        return Change(int(answer["generation"]), answer.get("routes", {}), self._applied)

    def _holds(self, version: int) -> Mapping[str, Any] | None:
        known = self._known()
        if known is not None and known["generation"] >= version:
            return {"routes": known["routes"]}
        return None
