"""Stores of one side input in one bucket: visible content and staged rows, by window."""

from __future__ import annotations

from typing import TypeAlias

import pyarrow as pa

from streambroker_core.control.operators.operator import Blobs, Changes
from streambroker_core.side.state.layout import StateLayout
from streambroker_core.side.state.pages import PagedMap
from streambroker_core.side.state.row_log import RowLog
from streambroker_core.side.windows import GLOBAL_START

Content: TypeAlias = "PagedMap | RowLog"


class SideStores:
    """Opens stores on first use; `sizes` has values and bytes of the stores that are not open."""

    def __init__(
        self,
        layout: StateLayout,
        number: int,
        blobs: Blobs,
        sizes: dict[str, list[int]],
        *,
        latest: bool,
    ) -> None:
        self._side, self._number, self._blobs = layout.join.inputs[number], number, blobs
        self._key_type, self._value_type = layout.key_types[number], layout.value_types[number]
        self._latest, self._sizes = latest, sizes
        self._open_stores: dict[str, Content] = {}

    def name(self, start: int) -> str:
        """Return the name of the store with the visible content of a window."""
        return f"side{self._number}.{_window_name(start)}"

    def stage_name(self, start: int) -> str:
        """Return the name of the store with the staged rows of a window."""
        return f"stage{self._number}.{_window_name(start)}"

    def visible(self, start: int) -> Content:
        """Return the visible content of a window."""
        return self._open(self.name(start))

    def stage(self, start: int) -> RowLog:
        """Return the staged rows of a window."""
        stage = self._open(self.stage_name(start))
        assert isinstance(stage, RowLog)  # noqa: S101 - no other store has such a name
        return stage

    def count(self, name: str, *, at_most: bool = False) -> int:
        """Return the number of values in a store, or an upper bound."""
        if name not in self._open_stores and name in self._sizes:
            return self._sizes[name][0]
        store = self._open(name)
        return store.max_count if at_most else len(store)

    def size(self, name: str) -> int:
        """Return the bytes of a store."""
        if name not in self._open_stores and name in self._sizes:
            return self._sizes[name][1]
        return self._open(name).size

    def changes(self) -> Changes:
        """Return the blobs to write; None marks a removed blob."""
        out: Changes = {}
        for store in self._open_stores.values():
            out.update(store.changes())
        return out

    def _open(self, name: str) -> Content:
        if name not in self._open_stores:
            self._open_stores[name] = self._new(name)
        return self._open_stores[name]

    def _new(self, name: str) -> Content:
        value = self._value_type
        if name.startswith("stage"):
            return RowLog(name, (self._key_type, pa.int64(), pa.bool_(), value), self._blobs)
        if self._side.kind == "list" and not self._side.key:
            return RowLog(name, (value,), self._blobs)
        return PagedMap(
            name,
            self._key_type,
            pa.list_(value) if self._side.many else value,
            self._blobs,
            latest=self._latest,
            keep_deleted=self._side.keyed or self._latest,
        )


def _window_name(start: int) -> str:
    return "ever" if start == GLOBAL_START else str(start)
