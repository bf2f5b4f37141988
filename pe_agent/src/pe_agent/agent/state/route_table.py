"""Route table: the last view, stored on disk so that it outlives broker and agent.

Only a new view changes it, never an error, a missing response or a 404.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pe_agent.log.atomic_file import replace_file
from streambroker_core.errors import StreambrokerError
from streambroker_core.wire.broker import view as wire
from streambroker_core.wire.broker.hints import STALE_S
from streambroker_core.wire.broker.view import ExportPort, ImportPort, View

log = logging.getLogger("pe_agent")


class RouteFileError(StreambrokerError):
    """The route file is unreadable; the agent does not start without it."""

    code = "RouteFileInvalid"


class RouteTable:
    """Current view; listeners are called for each change, in order."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._listeners: list[Callable[[View], None]] = []
        self.view: View | None = None

    def load(self) -> None:
        """Read the file if there is one.

        Raises:
            RouteFileError: the file is no view that this release can read; it is not changed.
        """
        if not self._path.exists():
            return
        try:
            self.view = wire.decode(json.loads(self._path.read_text()))
        except (StreambrokerError, ValueError) as error:
            raise RouteFileError(
                f"the route file {self._path} cannot be read: {error} Correct it, or delete it so"
                " that the agent asks the broker."
            ) from error

    def add_listener(self, listener: Callable[[View], None]) -> None:
        """Call ``listener`` with the current view, if any, and with each later one."""
        self._listeners.append(listener)
        if self.view is not None:
            listener(self.view)

    def apply(self, view: View) -> None:
        """Apply a view: first on disk, then at the listeners.

        A view without rules keeps the current rules. Routes of held Imports stay.
        """
        with self._lock:
            view = wire.retain_held_routes(view, self.view)
            if view.rules is None and self.view is not None:
                view = replace(view, rules=self.view.rules, rules_version=self.view.rules_version)
            if self.view is not None and _content(view) == _content(self.view):
                self.view = view
                return
            try:
                replace_file(self._path, json.dumps(wire.encode(view)), durable=True)
            except OSError:
                log.exception("routes are active, but could not be stored for the next start")
            self.view = view
            for listener in self._listeners:
                listener(view)

    def find_export(self, port: str) -> ExportPort | None:
        """Return an export of the view, None if missing."""
        return None if self.view is None else self.view.exports.get(port)

    def find_import(self, port: str) -> ImportPort | None:
        """Return an import of the view, None if missing."""
        return None if self.view is None else self.view.imports.get(port)


class RuleGate:
    """Drops stale rules of views: one of two replicas may learn of rules later.

    Older rules are accepted after `STALE_S` seconds without newer ones: the store was restored, or
    it is another broker.

    Attributes:
        needs_full_view: the last rules were dropped, so the next poll must request the full view.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.needs_full_view = False
        self._stale_since = 0.0

    def drop_stale_rules(self, received: View, current: View | None) -> View:
        """Return ``received`` without its rules if they are older than those of ``current``."""
        if (
            current is None
            or None in (current.rules, received.rules)
            or received.rules_version >= current.rules_version
        ):
            self.needs_full_view = False
            return received
        now = self._clock()
        if not self.needs_full_view:
            self.needs_full_view, self._stale_since = True, now
        if now - self._stale_since >= STALE_S:
            self.needs_full_view = False
            return received
        return replace(received, rules=None)


def _content(view: View) -> tuple[str, dict[str, list[str | None]]]:
    """Return the version, and the capabilities, which expire and are not part of it."""
    routes = {name: port.routes for name, port in view.imports.items()}
    return view.version, {name: [r.capability for r in of] for name, of in routes.items()}
