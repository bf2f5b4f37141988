"""Sorted leaves against plain dictionaries, and what of them is read and written."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streambroker_core.control.operators.operator import StateError
from streambroker_core.side.state import pages as leaves_module
from streambroker_core.side.state.column_codec import pack, unpack
from streambroker_core.side.state.pages import PagedMap
from streambroker_core.side.state.row_log import RowLog
from streambroker_core.side.state.sorted_runs import SortedRun, run_from_rows, run_of_lists

ONE = pa.struct([("v", pa.int64())])
SEVERAL = pa.list_(ONE)
Store = dict[str, bytes]
Entry = tuple[int, int, bool]


@pytest.fixture(autouse=True)
def small_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaves_module, "PAGE_ENTRIES", 4)


def rows_of(entries: list[Entry]) -> SortedRun:
    keys, values, gone = ([entry[n] for entry in entries] for n in range(3))
    structs = pa.StructArray.from_arrays([pa.array(values, pa.int64())], fields=list(ONE))
    size = len(entries)
    return SortedRun(
        pa.array(keys, pa.int64()), pa.nulls(size, pa.int64()), pa.array(gone, pa.bool_()), structs
    )


def opened(store: Store, *, many: bool) -> PagedMap:
    return PagedMap("x", pa.int64(), SEVERAL if many else ONE, store)


def put(leaves: PagedMap, entries: list[Entry], *, many: bool) -> None:
    rows = rows_of(entries)
    leaves.add(run_of_lists(rows) if many else run_from_rows(rows, latest=False))


def keep(leaves: PagedMap, store: Store) -> dict[str, bytes | None]:
    changes = leaves.changes()
    for name, data in changes.items():
        if data is None:
            del store[name]
        else:
            store[name] = data
    return changes


def seen(leaves: PagedMap, keys: list[int | None]) -> list[list[int]]:
    found = leaves.lookup(pa.array(keys, pa.int64()))
    values = found.values.to_pylist()
    return [
        [] if not there else [one["v"] for one in (v if isinstance(v, list) else [v])]
        for v, there in zip(values, found.has_value.to_pylist(), strict=True)
    ]


entries = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 99), st.integers(0, 4).map(lambda n: n == 0)),
    min_size=1,
    max_size=20,
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), entries),
        st.tuples(st.just("remove"), st.lists(st.integers(0, 30), min_size=1, max_size=3)),
        st.tuples(st.just("pop"), st.integers(0, 20)),
        st.tuples(st.just("keep"), st.none()),
    ),
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(steps=steps, many=st.booleans())
def test_leaves_hold_what_a_dictionary_holds(steps: list[Any], many: bool) -> None:
    store: Store = {}
    model: dict[int, list[int]] = {}
    leaves = opened(store, many=many)
    for what, reported in steps:
        if what == "put":
            put(leaves, reported, many=many)
            for key, value, gone in reported:
                old = model.get(key, []) if many else []
                model[key] = [] if gone else [*old, value]
        elif what == "remove":
            leaves.remove(pa.array(reported, pa.int64()))
            model = {key: values for key, values in model.items() if key not in reported}
        elif what == "pop":
            leaves.pop_until(reported)
            model = {key: values for key, values in model.items() if key > reported}
        else:
            keep(leaves, store)
            leaves = opened(store, many=many)

        asked: list[int | None] = [3, None, *range(32), 3]
        assert seen(leaves, asked) == [model.get(-1 if k is None else k, []) for k in asked]
        assert seen(leaves, [5]) == [model.get(5, [])]
    assert len(leaves) == sum(map(len, model.values()))
    keep(leaves, store)
    assert not store or "x" in store


def filled(count: int) -> Store:
    store: Store = {}
    leaves = opened(store, many=False)
    put(leaves, [(key, key, False) for key in range(count)], many=False)
    keep(leaves, store)
    return store


class Counting(dict[str, bytes]):
    """Blobs that know which of them were read."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.read: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)


def test_a_look_up_reads_the_leaves_of_its_keys_and_no_others() -> None:
    store = Counting(filled(100))
    leaves = opened(store, many=False)
    assert seen(leaves, [0, 1, 50]) == [[0], [1], [50]]
    assert store.read == {"x", "x/0", "x/12"}


def test_a_change_writes_the_leaf_of_its_key_and_the_directory() -> None:
    store = Counting(filled(100))
    leaves = opened(store, many=False)
    put(leaves, [(50, -1, False)], many=False)
    assert set(leaves.changes()) == {"x", "x/12"}
    assert store.read == {"x", "x/12"}


def test_without_a_change_nothing_is_written() -> None:
    leaves = opened(filled(100), many=False)
    seen(leaves, [1, 2])
    assert leaves.changes() == {}


def test_what_is_cleared_leaves_no_blob() -> None:
    store = filled(100)
    leaves = opened(store, many=False)
    leaves.clear()
    keep(leaves, store)
    assert store == {}


def test_a_lost_blob_and_a_newer_form_are_reported() -> None:
    store = filled(100)
    del store["x/12"]
    leaves = opened(store, many=False)
    with pytest.raises(StateError, match="x/12 is missing"):
        seen(leaves, [50])
    store["x/12"] = b"\x02" + store["x/11"][1:]
    with pytest.raises(StateError, match="form 2, of a newer release"):
        seen(opened(store, many=False), [50])
    store["x/12"] = store["x/11"][:40]
    with pytest.raises(StateError, match="x/12 is damaged"):
        seen(opened(store, many=False), [50])


def test_columns_survive_as_bytes() -> None:
    columns = [pa.array([1, None, 3]), pa.array(["a", "b", None])]
    data = pack(*columns)
    assert unpack({"y": data}, "y", [pa.int64(), pa.string()]) == columns


def test_rows_are_appended_as_chunks_that_become_few() -> None:
    store: Store = {}
    written = []
    for number in range(64):
        rows = RowLog("r", (pa.int64(),), store)
        rows.add(pa.array([number]))
        changes = rows.changes()
        written.append(sum(len(data) for data in changes.values() if data is not None))
        for name, data in changes.items():
            if data is None:
                del store[name]
            else:
                store[name] = data
    assert RowLog("r", (pa.int64(),), store).read_all()[0].to_pylist() == list(range(64))
    assert len(store) < 10
    assert sum(written) / 64 < 1500


def test_rows_that_are_taken_are_gone() -> None:
    store: Store = {}
    rows = RowLog("r", (pa.int64(),), store)
    rows.add(pa.array([1, 2]))
    store.update({k: v for k, v in rows.changes().items() if v is not None})
    again = RowLog("r", (pa.int64(),), store)
    assert again.pop_all()[0].to_pylist() == [1, 2]
    assert len(again) == 0
    assert again.changes() == dict.fromkeys(store)
