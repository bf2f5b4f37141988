"""What the job's program last knew of its ports: it answers when nobody else does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

log = logging.getLogger("pe_agent")


class ViewCache:
    """The agent's last view, and what the program itself has set or read since.

    Nothing here raises: a job asks it in the middle of its work.

    Args:
        fetch_view: returns the agent's view, or raises.
    """

    def __init__(self, fetch_view: Callable[[], dict[str, Any] | None]) -> None:
        self._fetch_view = fetch_view
        self._view: dict[str, Any] | None = None
        self._ports: dict[tuple[str, str], _PortFields] = {}
        self._lock = threading.Lock()

    def view(self) -> dict[str, Any] | None:
        """Return the agent's view; the last one where it does not answer, None if there is none."""
        try:
            self._view = self._fetch_view()
        except Exception as error:
            log.debug("the agent does not answer, its last view is taken: %s", error)
        return self._view

    def port_in_view(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return a port as the agent has it."""
        view = self.view()
        port: dict[str, Any] | None = None if view is None else view[f"{kind}s"].get(name)
        return port

    def port(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return a port with what is newer than the agent's view of it; None if not known.

        Args:
            kind: ``export`` or ``import``.
            name: of the port.
        """
        known = self.port_in_view(kind, name)
        with self._lock:
            told = self._ports.get((kind, name))
            if told is None or (known is not None and known["uid"] != told.uid):
                return known
            since = 0 if known is None else known["generation"]
            newer = {f: v for f, (at, v) in told.fields.items() if at > since}
            return {
                **(known or {}),
                **newer,
                "uid": told.uid,
                "generation": max(since, told.generation),
            }

    def update_port(
        self, kind: str, name: str, *, uid: str, generation: int, fields: Mapping[str, Any]
    ) -> None:
        """Note what the broker said of a port at one of its generations."""
        with self._lock:
            told = self._ports.get((kind, name))
            if told is None or told.uid != uid:
                told = self._ports[kind, name] = _PortFields(uid)
            told.generation = max(told.generation, generation)
            for field_, value in fields.items():
                if told.fields.get(field_, (0, None))[0] <= generation:
                    told.fields[field_] = (generation, value)


@dataclass
class _PortFields:
    """What was said of one resource: each field with the generation at which it was."""

    uid: str
    generation: int = 0
    fields: dict[str, tuple[int, Any]] = field(default_factory=dict)
