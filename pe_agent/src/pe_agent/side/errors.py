"""What can be wrong with a table that is a side input, where it is read."""

from __future__ import annotations

from streambroker_core.side.errors import SideError


class TableError(SideError):
    """A table that cannot be read now; the version before stays."""

    code = "SideTableUnread"

    def __init__(self, table: str, why: str) -> None:
        self.why = why
        super().__init__(table, f"Table `{table}`: {why}.")
