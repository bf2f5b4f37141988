"""State of one side input in one bucket: applies rows to content by window and policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.control.operators.operator import Blobs, Changes
from streambroker_core.side.definition import SideInput
from streambroker_core.side.errors import SideTooLargeError
from streambroker_core.side.state.layout import StateLayout
from streambroker_core.side.state.pages import PagedMap
from streambroker_core.side.state.read_rows import RejectedRows, read_rows, reject_rows
from streambroker_core.side.state.row_log import RowLog
from streambroker_core.side.state.sorted_runs import SortedRun, flatten, run_from_rows, run_of_lists
from streambroker_core.side.state.stores import Content, SideStores
from streambroker_core.side.windows import (
    GLOBAL_START,
    assign_windows,
    group_by_start,
    has_passed,
    last_instant,
)

TableReader: TypeAlias = "Callable[[SideInput, str], Content]"
"""Returns a version of a static table."""


@dataclass(slots=True)
class Tally:
    """Counts since the state began.

    Attributes:
        rows: accepted (row, window) pairs.
        late: pairs that were dropped because they arrived after their window.
        refused: rows that the policy rejected.
    """

    rows: int = 0
    late: int = 0
    refused: int = 0


class SideState:
    """State of a side input in a bucket.

    Attributes:
        version: version of the content: of a static table, or as named by the last
            ``SideComplete``.
        version_since: pinned time at which that version arrived, in microseconds.
        rejected_rows: rows rejected in this window; a run has rows that arrived after theirs.
    """

    def __init__(
        self,
        layout: StateLayout,
        number: int,
        blobs: Blobs,
        dumped: dict[str, Any] | None,
        tables: TableReader | None,
    ) -> None:
        """Restore the state; ``dumped`` is what :meth:`dump` returned."""
        side = self.side = layout.join.inputs[number]
        self._tables = tables
        self._by_time, self._lateness = layout.is_by_time, layout.lateness
        self._latest = not side.many and (side.updating == "latest" or self._by_time)
        dumped = dumped or {}
        sizes = dumped.get("sizes", {})
        self._stores = SideStores(layout, number, blobs, sizes, latest=self._latest)
        self.version: str | None = dumped.get("version")
        self.version_since: int | None = dumped.get("since")
        self.tally = Tally(*dumped.get("tally", ()))
        self.rejected_rows: list[RejectedRows | SortedRun] = []
        self._all_complete = bool(dumped.get("all"))
        self._arrived = set(dumped.get("arrived", ()))
        self._complete = set(dumped.get("complete", ()))
        self._windows: set[int] = set(dumped.get("windows", ()))
        self._staged: set[int] = set(dumped.get("staged", ()))

    # Reading.

    def content(self, start: int) -> Content:
        """Return the content of a window, which may be empty."""
        if self.side.static and self.version is not None and self._tables is not None:
            return self._tables(self.side, self.version)
        return self._stores.visible(start)

    def is_ready(self, start: int, passed: int | None) -> bool:
        """Return whether a window is ready for rows of all keys."""
        policy = self.side.readiness
        if policy == "not required" or self.is_complete(start):
            return True
        if has_passed(self.side.windows, start, passed):
            return True
        return policy == "first data" and not self.side.keyed and start in self._arrived

    def is_complete(self, start: int) -> bool:
        """Return whether a window was declared complete: no further key will arrive."""
        return self._all_complete or start in self._complete

    def find_ready_keys(self, start: int, keys: pa.Array) -> pa.Array:
        """Return for each key of a keyed side input whether data arrived; null keys are ready."""
        content = self.content(start)
        assert isinstance(content, PagedMap)  # noqa: S101 - a keyed one has keys
        return pc.or_(content.lookup(keys).has_entry, pc.is_null(keys))

    def has_values(self, start: int, keys: pa.Array) -> pa.Array:
        """Return for each key whether it has a value."""
        content = self.content(start)
        assert isinstance(content, PagedMap)  # noqa: S101 - checked when the operator was defined
        return content.lookup(keys).has_value

    # Writing.

    def parse_rows(self, batch: pa.RecordBatch) -> SortedRun:
        """Return the accepted rows in their order; reject the others.

        Raises:
            SideRowError: a row is rejected, and the policy is to fail.
        """
        needs = self.side.windows.is_windowed or self._latest or self._by_time
        rows, rejected_rows = read_rows(self.side, batch, needs_time=needs)
        for rejected in rejected_rows:
            self._reject(rejected)
        return rows

    def split_by_window(self, rows: SortedRun) -> list[tuple[int, SortedRun]]:
        """Return rows by window, in their order."""
        if not self.side.windows.is_windowed:
            return [(GLOBAL_START, rows)] if len(rows) else []
        numbers, starts = assign_windows(self.side.windows, rows.times)
        return [(start, rows.take(numbers.take(at))) for start, at in group_by_start(starts)]

    def add_rows(self, start: int, rows: SortedRun, passed: int | None) -> bool:
        """Add rows to a window, or stage them if they must become visible at once.

        Returns:
            Whether the rows are visible now.

        Raises:
            SideRowError: the policy rejects a row, and is to fail.
        """
        if has_passed(self.side.windows, start, passed, self._lateness):
            self.tally.late += len(rows)
            last = pc.less(rows.times, start + self.side.windows.slide)  # no later one has them
            self.rejected_rows.append(rows.filter(last))
            return False
        self.tally.rows += len(rows)
        self._arrived.add(start)
        if self.side.readiness == "complete" and not has_passed(self.side.windows, start, passed):
            self._staged.add(start)
            self._stores.stage(start).add(*rows.columns)
            return False
        self._apply(start, rows)
        return True

    def check_size(self) -> None:
        """Raise SideTooLargeError if there are too many values or bytes."""
        names, stores = self._store_names(), self._stores
        size = sum(map(stores.size, names))
        if size > self.side.max_bytes:
            raise self._too_large("bytes of its values in one bucket", size, self.side.max_bytes)
        if sum(stores.count(name, at_most=True) for name in names) > self.side.max_entries:
            entries = sum(map(stores.count, names))
            if entries > self.side.max_entries:
                raise self._too_large("values in one bucket", entries, self.side.max_entries)

    def complete(self, start: int | None, *, whole: bool, version: str | None, now: int) -> None:
        """Publish staged rows at once and mark the windows complete.

        Args:
            start: the window; None for all windows, also future ones.
            whole: drop the previous content.
            version: name of the content from now on; None keeps the name.
            now: the pinned clock.
        """
        if whole:
            for window in [*self._windows] if start is None else [start]:
                self._stores.visible(window).clear()
        if start is None:
            self._all_complete = True
        else:
            self._complete.add(start)
        if version is not None:
            self.version, self.version_since = version, now
        for window in sorted(self._staged) if start is None else [start]:
            self.publish_staged(window)
        self.check_size()

    def publish_staged(self, start: int) -> None:
        """Make the staged rows of a window visible."""
        if start not in self._staged:
            return
        self._staged.discard(start)
        rows = SortedRun(*self._stores.stage(start).pop_all())
        store = self._stores.visible(start)
        if self.side.many and self.side.updating == "replace":
            if isinstance(store, RowLog):
                store.clear()
            else:
                _hide_keys(store, rows.keys)
        self._apply(start, rows)

    def set_version(self, version: str, now: int) -> None:
        """Switch to another version of a static table; raise SideVersionError if it is unusable."""
        if self._tables is not None:
            self._tables(self.side, version)
        self.version, self.version_since, self._all_complete = version, now, True

    @property
    def staged(self) -> list[int]:
        """The windows with staged rows."""
        return sorted(self._staged)

    def expire(self, watermark: int, low: int | None) -> None:
        """Free windows to which nothing maps any more and that no waiting row needs."""
        for start in sorted({*self._windows, *self._staged, *self._arrived, *self._complete}):
            needed = low is not None and last_instant(self.side.windows, start) >= low
            if has_passed(self.side.windows, start, watermark, self._lateness) and not needed:
                if start in self._windows:
                    self._stores.visible(start).clear()
                if start in self._staged:
                    self._stores.stage(start).clear()
                for starts in (self._windows, self._staged, self._arrived, self._complete):
                    starts.discard(start)

    def wake_times(self) -> list[int]:
        """Return the times at which windows expire or staged rows become visible."""
        if not self.side.windows.is_windowed:
            return []
        starts = {*self._windows, *self._arrived, *self._complete}
        return [
            *(last_instant(self.side.windows, start) + self._lateness for start in starts),
            *(last_instant(self.side.windows, start) for start in self._staged),
        ]

    # State and metrics.

    def changes(self) -> Changes:
        """Return the blobs to write; None marks a removed blob."""
        return self._stores.changes()

    def dump(self) -> dict[str, Any]:
        """Return the state outside the blobs, as a JSON value."""
        return {
            "version": self.version,
            "since": self.version_since,
            "tally": list(astuple(self.tally)),
            "all": self._all_complete,
            "arrived": sorted(self._arrived),
            "complete": sorted(self._complete),
            "windows": sorted(self._windows),
            "staged": sorted(self._staged),
            "sizes": {
                name: [self._stores.count(name), self._stores.size(name)]
                for name in self._store_names()
            },
        }

    def _store_names(self) -> list[str]:
        """Return the names of all stores: of visible windows, then of stages."""
        visible = [self._stores.name(start) for start in sorted(self._windows)]
        return visible + [self._stores.stage_name(start) for start in sorted(self._staged)]

    def metrics(self) -> dict[str, int]:
        """Return values, bytes and windows of visible content, and staged rows."""
        stores = self._stores
        if self.side.static:
            content = self.content(GLOBAL_START)
            entries, size, windows = len(content), content.size, 1
        else:
            names, windows = [stores.name(start) for start in self._windows], len(self._windows)
            entries, size = sum(map(stores.count, names)), sum(map(stores.size, names))
        return {
            "entries": entries,
            "bytes": size,
            "windows": windows,
            "staged": sum(stores.count(stores.stage_name(start)) for start in self._staged),
            **{name: getattr(self.tally, name) for name in ("rows", "late", "refused")},
        }

    def _apply(self, start: int, rows: SortedRun) -> None:
        self._windows.add(start)
        content = self._stores.visible(start)
        if isinstance(content, RowLog):
            for part in _split_by_deletion(rows):
                if part.deleted[0].as_py():
                    content.clear()
                else:
                    content.add(part.values)
        elif self.side.many:
            content.add(run_of_lists(rows))
        elif self.side.updating == "refuse":
            for part in _split_by_deletion(rows):
                self._add_new(content, part)
        else:
            run = run_from_rows(rows, latest=self._latest)
            content.add(_drop_older(content, run) if self._latest else run)

    def _add_new(self, content: PagedMap, rows: SortedRun) -> None:
        if rows.deleted[0].as_py():
            run = run_from_rows(rows, latest=self._latest)
            content.add(_drop_older(content, run) if self._latest else run)
            return
        first = pc.index_in(rows.keys, value_set=rows.keys)
        again = pc.not_equal(pc.cast(first, pa.int64()), pa.arange(0, len(rows)))
        duplicate = pc.or_(content.lookup(rows.keys).has_value, again)
        if pc.any(duplicate).as_py():
            again = "value for a key" if self.side.key else "value"
            what = f"a second {again}, and the policy of the {self.side.kind} is refuse"
            rejected = rows.filter(duplicate)
            latest = " or 'latest'" if self.side.event_time is not None else ""
            remedy = f"send each once, or set update='replace'{latest}"
            self._reject(reject_rows(self.side, rejected, what, remedy))
            rows = rows.filter(pc.invert(duplicate))
        if len(rows):
            content.add(run_from_rows(rows, latest=False))

    def _reject(self, refusal: RejectedRows) -> None:
        if self.side.on_refused == "fail":
            raise refusal.error
        self.tally.refused += len(refusal.rows)
        self.rejected_rows.append(refusal)

    def _too_large(self, what: str, actual: int, limit: int) -> SideTooLargeError:
        return SideTooLargeError(self.side.name, what, actual, limit, _REMEDY)


_REMEDY = (
    "give it a key, so that it is distributed over many buckets, send less, give it windows, or"
    " raise the limit"
)


def _split_by_deletion(rows: SortedRun) -> list[SortedRun]:
    """Split rows into runs of deletions and runs of other rows."""
    if not len(rows):
        return []
    if not pc.any(rows.deleted).as_py():
        return [rows]
    ends = pc.run_end_encode(rows.deleted).run_ends.to_pylist()
    return [rows.slice(a, b - a) for a, b in zip([0, *ends], ends, strict=False)]


def _hide_keys(content: PagedMap, keys: pa.Array) -> None:
    """Hide the values of keys; the keys stay known."""
    unique = pc.unique(keys)
    size = len(unique)
    types = (pa.int64(), content.value_type)
    times, values = (pa.nulls(size, type_) for type_ in types)
    deleted = pa.repeat(pa.scalar(True), size)
    empty = pa.ListArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), size + 1), flatten(values))
    order = pc.sort_indices(unique)
    content.add(SortedRun(unique.take(order), times, deleted, empty))


def _drop_older(content: PagedMap, run: SortedRun) -> SortedRun:
    """Return the entries of a run that are not older than the current ones."""
    current = content.lookup(run.keys).times
    retained = pc.fill_null(pc.greater_equal(run.times, current), True)
    return run if pc.all(retained).as_py() else run.filter(retained)
