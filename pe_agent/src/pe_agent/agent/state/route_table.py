"""The agent's route table: the last view, kept on disk so that it outlives broker and agent.

Only a view replaces a view. No error, silence or 404 ever empties the table.
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
    """A route file that cannot be read; the agent does not start on a guess."""

    code = "RouteFileInvalid"


class RouteTable:
    """Holds the current view; listeners hear of each change, in order."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._listeners: list[Callable[[View], None]] = []
        self.view: View | None = None

    def load(self) -> None:
        """Read the file if there is one.

        Raises:
            RouteFileError: it is not a view this release reads; it is left as it is.
        """
        if not self._path.exists():
            return
        try:
            self.view = wire.decode(json.loads(self._path.read_text()))
        except (StreambrokerError, ValueError) as error:
            raise RouteFileError(
                f"the route file {self._path} cannot be read: {error} Mend it, or delete it so"
                " that the agent asks the broker."
            ) from error

    def add_listener(self, listener: Callable[[View], None]) -> None:
        """Tell ``listener`` of the current view, if any, and of each later one."""
        self._listeners.append(listener)
        if self.view is not None:
            listener(self.view)

    def apply(self, view: View) -> None:
        """Take a view: on disk first, then to the listeners.

        One that says nothing of rules leaves those that there are. Routes of held Imports stay.
        """
        with self._lock:
            view = wire.retain_held_routes(view, self.view)
            if view.rules is None and self.view is not None:
                view = replace(view, rules=self.view.rules, rules_version=self.view.rules_version)
            if self.view is not None and _equal(view, self.view):
                self.view = view
                return
            try:
                replace_file(self._path, json.dumps(wire.encode(view)), durable=True)
            except OSError:
                log.exception("the routes hold, but could not be kept for the next start")
            self.view = view
            for listener in self._listeners:
                listener(view)

    def find_export(self, port: str) -> ExportPort | None:
        """Return one export of the view, None if it has none of that name."""
        return None if self.view is None else self.view.exports.get(port)

    def find_import(self, port: str) -> ImportPort | None:
        """Return one import of the view, None if it has none of that name."""
        return None if self.view is None else self.view.imports.get(port)


class RuleGate:
    """Says which views' rules are to be taken: of two replicas one may know of rules later.

    What is older is taken where nothing else comes for `STALE_S` seconds: the store was restored,
    or it is another broker.

    Args:
        clock: a monotonic clock, in seconds.

    Attributes:
        needs_full_view: rules were left out of the last view, so that it has to be asked for whole
            again.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.needs_full_view = False
        self._stale_since = 0.0

    def drop_stale_rules(self, received: View, current: View | None) -> View:
        """Return a view without its rules if they are older than those that are known.

        Args:
            received: what a broker answers.
            current: what the agent has.
        """
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


def _equal(first: View, second: View) -> bool:
    return first.version == second.version and _capabilities(first) == _capabilities(second)


def _capabilities(view: View) -> dict[str, list[str | None]]:
    """Return what the version does not count: the capabilities, which have an end."""
    return {name: [r.capability for r in port.routes] for name, port in view.imports.items()}
