"""Declarations of the job's ports, until the broker has them and over a restart."""

from __future__ import annotations

import json
from typing import Any, TypedDict

from pe_agent.agent.state.store import Store
from streambroker_core.errors import StreambrokerError
from streambroker_core.wire.agent_rpc.job import Declare


class PortNotDeclaredError(StreambrokerError):
    """The port is not declared."""

    code = "UnknownPort"


DeclarationStatus = TypedDict(  # noqa: UP013 - a member's name is a format
    "DeclarationStatus", {"told": bool, "differs": str | None}
)
"""Whether the broker has a declaration, and what differs there."""


class Declarations:
    """Declarations by ``kind/port``; ``told`` once the broker has them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.by_name: dict[str, dict[str, Any]] = store.states("declarations", "port")

    def add(self, request: Declare) -> None:
        """Store a declaration; it replaces an earlier one of the port."""
        name = f"{request.kind}/{request.port}"
        self.by_name[name] = {
            "spec": request.spec,
            "schema": request.schema,
            "redeclare": request.redeclare,
            "owner": request.owner,
            "told": False,
        }
        self.save(name)

    def save(self, name: str) -> None:
        """Store the state of one declaration."""
        self._store.write(
            "INSERT OR REPLACE INTO declarations VALUES (?, ?)",
            name,
            json.dumps(self.by_name[name]),
        )

    def mark_all_unreported(self) -> None:
        """Have all declarations reported again: the broker has forgotten them."""
        for state in self.by_name.values():
            state["told"] = False

    def status(self) -> dict[str, DeclarationStatus]:
        """Return for each declaration whether the broker has it, and what differs there."""
        return {
            name: {"told": state["told"], "differs": state.get("differs")}
            for name, state in self.by_name.items()
        }
