"""Versions of tables in a worker process: each is mapped and prepared once.

A worker of Spark runs many buckets and windows; all of them share the content.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from pe_agent.side.tables.versions import read_version, version_path, write_request
from streambroker_core.side import TableCache
from streambroker_core.side.definition import SideInput
from streambroker_core.side.state.stores import Content

if TYPE_CHECKING:
    from pe_agent.side.tables.store import Table

_CACHES: dict[tuple[str, str], TableCache] = {}
"""One for each folder of versions and definition of a side input."""


@dataclass(frozen=True, kw_only=True)
class CachedTables:
    """The tables of an operator: folders of their versions, by name of the side input."""

    folders: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, side: SideInput, version: str) -> Content:
        """Return a version of a side input's table; raise SideVersionError if it cannot be used."""
        folder = Path(self.folders[side.name])
        key = (str(folder), repr(side))
        if key not in _CACHES:

            def read(name: str, version: str) -> pa.Table:
                del name
                try:
                    return read_version(folder, version, side)
                except FileNotFoundError as error:
                    missing = version_path(folder, version)
                    raise OSError(
                        f"{missing} does not exist, or this worker does not see it"
                    ) from error

            _CACHES[key] = TableCache(read)
        return _CACHES[key](side, version)

    def request_refresh(self, name: str, request_id: str) -> None:
        """Request that the driver reads the table now; repeats with one id are one request."""
        write_request(Path(self.folders[name]), request_id)


def cached_tables_for(tables: Mapping[str, Table]) -> CachedTables:
    """Return the folders of tables' versions, by name of the side input."""
    return CachedTables(folders={name: str(table.folder) for name, table in tables.items()})
