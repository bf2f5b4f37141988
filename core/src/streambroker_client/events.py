"""Follow the event stream of a broker."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from streambroker_client.answers import BrokerRoute, PeInfo, PortResource
from streambroker_client.connection import Connection
from streambroker_client.errors import BrokerUnavailableError
from streambroker_core.wire.encoding.status import Status

RETRY_S = 1.0
"""Pause before a reconnect, in seconds."""
KIND_BY_EVENT = {
    "export": "exports",
    "import": "imports",
    "pe": "pes",
    "route-added": "routes",
    "route-changed": "routes",
    "route-cut": "routes",
}
RESET = "reset"

_ROUTE_CHANGES = {"route-added": "ADDED", "route-changed": "MODIFIED"}
_ITEMS: Mapping[str, type[Status]] = {
    "exports": PortResource,
    "imports": PortResource,
    "pes": PeInfo,
    "routes": BrokerRoute,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event, as `Broker.watch` yields it.

    Attributes:
        name: export, import, pe, route-added, route-changed, route-cut, or reset: events were
            lost, list again.
        data: type, object or route, reason, was.
        id: resumes the stream after this event.
    """

    name: str
    data: dict[str, Any] = field(default_factory=dict)
    id: str = ""

    @property
    def kind(self) -> str:
        """List of the item; empty for a reset."""
        return KIND_BY_EVENT.get(self.name, "")

    @property
    def item(self) -> Status:
        """The `PortResource`, `PeInfo` or `BrokerRoute` as it is now, or was before its deletion.

        A reset has an empty one.
        """
        item = self.data.get("route" if self.kind == "routes" else "object")
        return _ITEMS.get(self.kind, Status).from_json(item if isinstance(item, dict) else {})

    @property
    def change(self) -> str:
        """ADDED, MODIFIED or DELETED."""
        if self.kind == "routes":
            return _ROUTE_CHANGES.get(self.name, "DELETED")
        return str(self.data.get("type", "MODIFIED")).upper()


def follow_events(
    connection: Connection, namespace: str, on_away: Callable[[BrokerUnavailableError], object]
) -> Iterator[Event]:
    """Yield events from now on, forever; reconnect after a lost connection.

    The first event is always a reset, yielded once the stream is open. A list fetched then has no
    gap to the following events. ``on_away`` is called once while the broker cannot be reached.

    Raises:
        BrokerError: the broker refuses, or cannot be reached at the start.
    """
    last, opened, away = "", False, False
    while True:
        try:
            with connection.open("GET", "/events", last=last, namespace=namespace) as answer:
                if not last:
                    yield Event(name=RESET)
                opened, away = True, False
                for event in read_events(answer):
                    last = event.id or last
                    if event.name:
                        yield event
        except BrokerUnavailableError as error:
            if not opened:
                raise
            if not away:
                on_away(error)
            away = True
        except (OSError, http.client.HTTPException):
            away = False
        time.sleep(RETRY_S)


def read_events(lines: Iterable[bytes]) -> Iterator[Event]:
    """Yield the events of an event stream (HTML, 9.2); a block with only an id has no name."""
    fields: dict[str, list[str]] = {}
    for raw in lines:
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if line:
            name, _, value = line.partition(":")
            fields.setdefault(name, []).append(value.removeprefix(" "))
            continue
        if "event" in fields or "id" in fields:
            yield _parse_event(fields)
        fields = {}


def _parse_event(fields: Mapping[str, list[str]]) -> Event:
    text = "\n".join(fields.get("data", []))
    try:
        data = json.loads(text) if text else {}
    except ValueError:
        data = {}
    return Event(
        name=fields.get("event", [""])[-1],
        data=data if isinstance(data, dict) else {},
        id=fields.get("id", [""])[-1],
    )
