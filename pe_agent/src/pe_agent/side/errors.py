"""What can be wrong with a table that is a side input, where it is read."""

from __future__ import annotations

from streambroker_core.side.definition import MAIN
from streambroker_core.side.errors import SideError


class TableError(SideError):
    """A table that cannot be read now; the version before stays."""

    code = "SideTableUnread"

    def __init__(self, table: str, why: str) -> None:
        self.why = why
        super().__init__(table, f"Table `{table}`: {why.rstrip('.')}.")


class PinError(SideError):
    """A task that cannot tell which version of a table its micro-batch has; the task fails."""

    code = "SideUnpinned"

    def __init__(self, table: str | None, problem: str, remedy: str) -> None:
        which = "Tables" if table is None else f"Table `{table}`"
        super().__init__(
            table or MAIN, f"{which}: no version for this micro-batch: {problem}; {remedy}."
        )
