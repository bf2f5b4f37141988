"""Static tables: versions that are read as a whole and cached once per process.

The caller reads the files. This module checks, sorts and caches the last versions used of each side
input.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.side.definition import SideInput
from streambroker_core.side.errors import SideError, SideTooLargeError, SideVersionError
from streambroker_core.side.keys import make_keys
from streambroker_core.side.state.pages import PagedMap
from streambroker_core.side.state.read_rows import read_rows, reject_rows, select_columns
from streambroker_core.side.state.row_log import RowLog
from streambroker_core.side.state.sorted_runs import run_from_rows, run_of_lists
from streambroker_core.side.state.stores import Content

MAX_VERSIONS = 3
_REMEDY = "use fewer columns or rows: Arrow has no larger ones"


class TableCache:
    """Cache of the versions of static tables in one process.

    Args:
        read: returns the rows of a version for a side input's name and a version. Its OSError,
            KeyError, ArrowException and SideError become a ``SideVersionError``.
    """

    def __init__(self, read: Callable[[str, str], pa.Table]) -> None:
        self._read = read
        self._versions: dict[str, OrderedDict[str, Content]] = {}

    def __call__(self, side: SideInput, version: str) -> Content:
        """Return a version.

        Raises:
            SideVersionError: the version cannot be read or used; the error has the reason.
        """
        versions = self._versions.setdefault(side.name, OrderedDict())
        if version not in versions:
            try:
                versions[version] = build_content(side, self._read(side.name, version))
            except (OSError, KeyError, pa.ArrowException, SideError) as error:
                raise SideVersionError(side.name, version, str(error)) from error
            while len(versions) > MAX_VERSIONS:
                versions.popitem(last=False)
        versions.move_to_end(version)
        return versions[version]


def sort_by_key(side: SideInput, table: pa.Table) -> pa.Table | None:
    """Return a table sorted by key, stably; None if it is sorted already.

    Content built from it is the same and costs less.
    """
    keys = make_keys([table.column(name) for name in side.key])
    order = pc.sort_indices(keys)
    if order.equals(pa.arange(0, len(order)).cast(order.type)):
        return None
    return table.take(order)


def build_content(side: SideInput, table: pa.Table) -> Content:
    """Return a whole table as content; also checks a version before it is announced.

    Raises:
        SideSchemaError: its columns do not fit.
        SideRowError: a key is null, or repeated under ``refuse``; a singleton has two rows.
        SideTooLargeError: it is above a limit.
    """
    batches = table.combine_chunks().to_batches()
    empty = pa.RecordBatch.from_pylist([], schema=table.schema)
    if len(batches) > 1:
        raise SideTooLargeError(
            side.name, "bytes of texts in one column", table.nbytes, (1 << 31) - 1, _REMEDY
        )
    batch = select_columns(side.name, batches[0] if batches else empty, side.schema)
    if batch.num_rows > side.max_entries:
        raise SideTooLargeError(
            side.name, "rows of a version", batch.num_rows, side.max_entries, "raise the limit"
        )
    rows, rejections = read_rows(side, batch, needs_time=False)
    for rejected in rejections:
        raise rejected.error
    if side.kind == "list":
        _check_size(side, rows.values.nbytes)
        return RowLog.from_columns(rows.values)
    run = run_of_lists(rows) if side.many else run_from_rows(rows, latest=False)
    if side.updating == "refuse" and len(run) < len(rows):
        first = pc.index_in(rows.keys, value_set=rows.keys)
        repeated = pc.not_equal(pc.cast(first, pa.int64()), pa.arange(0, len(rows)))
        raise reject_rows(
            side,
            rows.filter(repeated),
            "a table with several rows for one value, and the policy is refuse",
            "send each once, or set update='replace'",
        ).error
    _check_size(side, run.nbytes)
    return PagedMap.from_run(run)


def _check_size(side: SideInput, size: int) -> None:
    if size > side.max_bytes:
        raise SideTooLargeError(
            side.name, "bytes of a version", size, side.max_bytes, "raise the limit"
        )
