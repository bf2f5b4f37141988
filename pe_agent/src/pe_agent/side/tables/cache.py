"""Versions of tables in a process that runs operators: each is mapped and prepared once.

A worker of Spark runs many buckets and many windows; all of them see the same content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from pe_agent.side.tables.versions import REQUESTS, read_version, version_path
from streambroker_core.side import TableCache
from streambroker_core.side.definition import SideInput
from streambroker_core.side.state.input_state import Content

if TYPE_CHECKING:
    from pe_agent.side.tables.store import Table

_CACHES: dict[tuple[str, str], TableCache] = {}
"""One for each folder of versions and definition of a side input."""


@dataclass(frozen=True, kw_only=True)
class CachedTables:
    """The tables of an operator.

    Attributes:
        folders: of the versions, by name of the side input.
    """

    folders: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, side: SideInput, version: str) -> Content:
        """Return a version of the table that a side input is.

        Raises:
            SideVersionError: it is not there, or cannot be used.
        """
        folder = Path(self.folders[side.name])
        place = (str(folder), repr(side))
        if place not in _CACHES:

            def read(name: str, version: str) -> pa.Table:
                del name
                try:
                    return read_version(folder, version, side)
                except FileNotFoundError as error:
                    missing = version_path(folder, version)
                    raise OSError(
                        f"{missing} is not there, or this worker does not see it"
                    ) from error

            _CACHES[place] = TableCache(read)
        return _CACHES[place](side, version)

    def request_refresh(self, name: str, request_id: str) -> None:
        """Ask whoever reads the table to do it now; asked again by the same, it is asked once."""
        folder = Path(self.folders[name]) / REQUESTS
        folder.mkdir(exist_ok=True)
        (folder / hashlib.sha256(request_id.encode()).hexdigest()[:32]).touch()


def cached_tables_for(tables: Mapping[str, Table]) -> CachedTables:
    """Return where the versions of tables lie, by name of the side input."""
    return CachedTables(folders={name: str(table.folder) for name, table in tables.items()})
