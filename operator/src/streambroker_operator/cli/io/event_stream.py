"""Follow the event stream of a broker."""

from __future__ import annotations

import http.client
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from streambroker_operator.cli.io.client import BrokerClient
from streambroker_operator.errors import RequestError

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

Item = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event.

    Attributes:
        name: export, import, pe, route-added, route-changed, route-cut, or reset: events were
            lost, list again.
        data: type, object or route, reason, was.
        id: resumes the stream after this event.
    """

    name: str
    data: Item = field(default_factory=dict)
    id: str = ""

    @property
    def kind(self) -> str:
        """List of the item; empty for a reset."""
        return KIND_BY_EVENT.get(self.name, "")

    @property
    def item(self) -> Item:
        """The resource, PE or route as it is now, or as it was before it was deleted."""
        item = self.data.get("route" if self.kind == "routes" else "object")
        return item if isinstance(item, dict) else {}

    @property
    def change(self) -> str:
        """ADDED, MODIFIED or DELETED."""
        if self.kind == "routes":
            return _ROUTE_CHANGES.get(self.name, "DELETED")
        return str(self.data.get("type", "MODIFIED")).upper()


def follow_events(client: BrokerClient, namespace: str) -> Iterator[Event]:
    """Yield events from now on, forever; reconnect after a lost connection.

    The first event is always a reset, yielded once the stream is open. A list fetched then has no
    gap to the following events.

    Raises:
        RequestError: the broker refuses, or cannot be reached at the start.
    """
    last, opened, away = "", False, False
    while True:
        try:
            with client.open("GET", "/events", last=last, namespace=namespace) as answer:
                if not last:
                    yield Event(name=RESET)
                opened, away = True, False
                for event in read_events(answer):
                    last = event.id or last
                    if event.name:
                        yield event
        except RequestError as error:
            if not opened or error.status not in (0, 429, 503):
                raise
            if not away:
                sys.stderr.write(f"streambroker: {error.code}: {error} Trying again.\n")
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
