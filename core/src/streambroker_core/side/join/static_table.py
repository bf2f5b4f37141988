"""Static tables: versions that are read as a whole, and kept once per process.

Somebody else reads files. Here a table that was read is checked, sorted, and kept for as long as
it is among the last versions of its side input that were asked for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.side.definition import SideInput
from streambroker_core.side.errors import SideError, SideTooLargeError, SideVersionError
from streambroker_core.side.keys import make_keys
from streambroker_core.side.state.input_state import Content
from streambroker_core.side.state.pages import PagedMap
from streambroker_core.side.state.read_rows import read_rows, reject_rows, select_columns
from streambroker_core.side.state.row_log import RowLog
from streambroker_core.side.state.sorted_runs import run_from_rows, run_of_lists

MAX_VERSIONS = 3
_REMEDY = "take fewer columns or rows: Arrow has no larger ones"


class TableCache:
    """The versions of static tables of one process.

    Args:
        read: returns the rows of a version, given the side input's name and the version; raises
            what it likes if it cannot.
    """

    def __init__(self, read: Callable[[str, str], pa.Table]) -> None:
        self._read = read
        self._versions: dict[str, OrderedDict[str, Content]] = {}

    def __call__(self, side: SideInput, version: str) -> Content:
        """Return a version.

        Raises:
            SideVersionError: it cannot be read, or its rows cannot be used; the reason is in it.
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
    """Return a table with its rows in the order of their keys, those of one key as they were.

    Content that is made of it is the same, and costs less.

    Returns:
        The table; None if its rows are so already.
    """
    keys = make_keys([table.column(name) for name in side.key])
    order = pc.sort_indices(keys)
    if order.equals(pa.arange(0, len(order)).cast(order.type)):
        return None
    return table.take(order)


def build_content(side: SideInput, table: pa.Table) -> Content:
    """Return a whole table as content; also the check before a version is announced.

    Raises:
        SideSchemaError: its columns do not fit.
        SideRowError: a key is null, or there twice under ``refuse``; a singleton has two rows.
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
    rows, refusals = read_rows(side, batch, needs_time=False)
    for refusal in refusals:
        raise refusal.error
    if side.kind == "list":
        _check_size(side, rows.values.nbytes)
        return RowLog.from_columns(rows.values)
    level = run_of_lists(rows) if side.many else run_from_rows(rows, latest=False)
    if side.updating == "refuse" and len(level) < len(rows):
        first = pc.index_in(rows.keys, value_set=rows.keys)
        again = pc.not_equal(pc.cast(first, pa.int64()), pa.arange(0, len(rows)))
        raise reject_rows(
            side,
            rows.filter(again),
            "a table with several rows for one value, and the policy is refuse",
            "send each once, or say update='replace'",
        ).error
    _check_size(side, level.nbytes)
    return PagedMap.from_run(level)


def _check_size(side: SideInput, size: int) -> None:
    if size > side.max_bytes:
        raise SideTooLargeError(
            side.name, "bytes of a version", size, side.max_bytes, "raise the limit"
        )
