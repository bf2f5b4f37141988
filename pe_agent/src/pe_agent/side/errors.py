"""Errors of tables that are side inputs."""

from __future__ import annotations

from streambroker_core.side.definition import MAIN
from streambroker_core.side.errors import SideError


class TableError(SideError):
    """A table that cannot be read now; the previous version stays in use."""

    code = "SideTableUnread"

    def __init__(self, table: str, why: str) -> None:
        self.why = why
        super().__init__(table, f"Table `{table}`: {why.rstrip('.')}.")


class PinError(SideError):
    """A task cannot determine the table version of its micro-batch; the task fails."""

    code = "SideUnpinned"

    def __init__(self, table: str | None, problem: str, remedy: str) -> None:
        which = "Tables" if table is None else f"Table `{table}`"
        super().__init__(
            table or MAIN, f"{which}: no version for this micro-batch: {problem}; {remedy}."
        )
