"""Cache of a job's ports in its program: it answers if broker and agent do not."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, cast

from streambroker_core.model.properties import Value

log = logging.getLogger("pe_agent")


class KnownPort(TypedDict, total=False):
    """Fields of an export or import, as the agent's view has them; some may be unknown."""

    uid: str
    generation: int
    routes: Sequence[Mapping[str, Any]]
    subscription: str | None
    streams: Sequence[Mapping[str, str | None]]
    filter: str | None
    properties: dict[str, Value]
    congestionPolicy: str


class ViewCache:
    """The agent's last view, and the fields that the program has set or read since.

    No method raises, because a job calls them in the middle of its work.
    """

    def __init__(self, fetch_view: Callable[[], dict[str, Any] | None]) -> None:
        self._fetch_view = fetch_view
        self._view: dict[str, Any] | None = None
        self._ports: dict[tuple[str, str], _PortFields] = {}
        self._lock = threading.Lock()

    def view(self) -> dict[str, Any] | None:
        """Return the agent's view; the last one if it does not answer, None if there is none."""
        try:
            self._view = self._fetch_view()
        except Exception as error:
            log.debug("the agent does not answer, using its last view: %s", error)
        return self._view

    def port_in_view(self, kind: str, name: str) -> KnownPort | None:
        """Return a port from the agent's view."""
        view = self.view()
        port: KnownPort | None = None if view is None else view[f"{kind}s"].get(name)
        return port

    def port(self, kind: str, name: str) -> KnownPort | None:
        """Return a port with fields newer than the agent's view of it; None if not known."""
        known = self.port_in_view(kind, name)
        with self._lock:
            stored = self._ports.get((kind, name))
            if stored is None or (known is not None and known["uid"] != stored.uid):
                return known
            since = 0 if known is None else known["generation"]
            newer = {f: v for f, (at, v) in stored.fields.items() if at > since}
            identity = {"uid": stored.uid, "generation": max(since, stored.generation)}
            return cast(KnownPort, {**(known or {}), **newer, **identity})

    def update_port(
        self, kind: str, name: str, *, uid: str, generation: int, fields: KnownPort
    ) -> None:
        """Record fields of a port that the broker returned at one of its generations."""
        with self._lock:
            stored = self._ports.get((kind, name))
            if stored is None or stored.uid != uid:
                stored = self._ports[kind, name] = _PortFields(uid)
            stored.generation = max(stored.generation, generation)
            for field_, value in fields.items():
                if stored.fields.get(field_, (0, None))[0] <= generation:
                    stored.fields[field_] = (generation, value)


@dataclass
class _PortFields:
    uid: str
    generation: int = 0
    fields: dict[str, tuple[int, Any]] = field(default_factory=dict)
