"""Keyed state is a sorted map; a window reads and writes the blocks of the keys it touches."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streambroker_core.control.operators.keyed_state import (
    BLOCK_KEYS,
    KeyedState,
    time_from_key,
    time_key,
)
from streambroker_core.control.operators.operator import Changes, StateError


class Store(Mapping[str, bytes]):
    """Blobs that count who reads them."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.read: list[str] = []

    def __getitem__(self, name: str) -> bytes:
        data = self.blobs[name]
        self.read.append(name)
        return data

    def __iter__(self) -> Iterator[str]:
        return iter(self.blobs)

    def __len__(self) -> int:
        return len(self.blobs)

    def __contains__(self, name: object) -> bool:
        return name in self.blobs

    def apply(self, changes: Changes) -> None:
        for name, blob in changes.items():
            if blob is None:
                del self.blobs[name]
            else:
                self.blobs[name] = blob
        self.read.clear()


def key(number: int) -> bytes:
    return b"%06d" % number


def filled(count: int) -> Store:
    store, state = Store(), KeyedState("keys")
    for number in range(count):
        state.put(key(number), b"v%d" % number)
    store.apply(state.changes())
    return store


KEYS = st.integers(0, 50).map(lambda number: bytes([number * 5]))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.binary(max_size=4)),
        st.tuples(st.just("delete"), KEYS, st.just(b"")),
        st.tuples(st.just("window"), KEYS, st.just(b"")),
    ),
    min_size=20,
    max_size=200,
)


@given(steps=STEPS, block=st.sampled_from([1, 2, 5, 16, 24]))
def test_it_is_a_sorted_map_whatever_is_done_and_wherever_windows_end(
    steps: list[tuple[str, bytes, bytes]], block: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streambroker_core.control.operators.keyed_state.BLOCK_KEYS", block)
        store, state, model = Store(), KeyedState("k"), dict[bytes, bytes]()
        for step, name, value in steps:
            if step == "put":
                state.put(name, value)
                model[name] = value
            elif step == "delete":
                assert state.delete(name) == (model.pop(name, None) is not None)
            else:
                store.apply(state.changes())
                state = KeyedState("k", store)
            assert state.get(name) == model.get(name)
        store.apply(state.changes())
        again = KeyedState("k", store)
        assert list(again.scan()) == sorted(model.items())
        assert list(again.scan(b"\x40", b"\xa0")) == [
            pair for pair in sorted(model.items()) if b"\x40" <= pair[0] < b"\xa0"
        ]
        assert again.first() == min(model, default=None)
        assert again.changes() == {}


def test_what_is_read_and_written_follows_the_keys_touched_not_the_keys_held() -> None:
    touched = {}
    for held in (5_000, 50_000):
        store = filled(held)
        state = KeyedState("keys", store)
        for number in (17, 18, held - 1):
            state.put(key(number), b"new")
        reads, writes = list(store.read), state.changes()
        touched[held] = (len(reads), len(writes))
        assert sum(len(blob or b"") for blob in writes.values()) < 3 * BLOCK_KEYS * 32
    assert touched == {5_000: (3, 2), 50_000: (3, 2)}


def test_deleting_all_leaves_no_blocks() -> None:
    store = filled(3 * BLOCK_KEYS)
    state = KeyedState("keys", store)
    for number in range(3 * BLOCK_KEYS):
        assert state.delete(key(number))
    store.apply(state.changes())
    assert list(store) == ["keys"]


def test_blocks_that_became_small_are_joined() -> None:
    store = filled(20 * BLOCK_KEYS)
    before = len(store)
    state = KeyedState("keys", store)
    for number in range(20 * BLOCK_KEYS):
        if number % BLOCK_KEYS:
            state.delete(key(number))
    store.apply(state.changes())
    assert len(store) < before / 4
    assert [name for name, _ in KeyedState("keys", store).scan()] == [
        key(number * BLOCK_KEYS) for number in range(20)
    ]


HALF = BLOCK_KEYS // 2
"""Keys in each block but the last of a state that was filled in order."""


def test_a_small_block_joins_one_that_the_window_did_not_touch() -> None:
    store = filled(2 * BLOCK_KEYS)
    held = [name for name, _ in KeyedState("keys", store).scan()]
    for gone in (range(20, HALF), range(HALF + BLOCK_KEYS // 8 - 1, BLOCK_KEYS)):
        state = KeyedState("keys", store)
        for number in gone:
            state.delete(key(number))
            held.remove(key(number))
        store.apply(state.changes())
    assert [name for name, _ in KeyedState("keys", store).scan()] == held
    assert roots(store)[:2] == [b"", key(BLOCK_KEYS)]


def test_no_block_grows_by_joining_beyond_what_a_block_holds() -> None:
    store = filled(2 * BLOCK_KEYS)
    state = KeyedState("keys", store)
    for number in range(HALF):
        state.put(key(number) + b"x", b"")
    for number in range(HALF, BLOCK_KEYS - 1):
        state.delete(key(number))
    store.apply(state.changes())
    counts = [
        sum(1 for _ in KeyedState("keys", store).scan(low, high))
        for low, high in pairwise([*roots(store), b"\xff"])
    ]
    assert max(counts) <= BLOCK_KEYS


def roots(store: Store) -> list[bytes]:
    """Return the first key of each block."""
    data, at, found = store.blobs["keys"], 9, []
    while at < len(data):
        size, _ = struct.unpack_from("<II", data, at)
        found.append(data[at + 8 : at + 8 + size])
        at += 8 + size
    return found


def test_keys_may_be_deleted_while_they_are_scanned() -> None:
    state = KeyedState("keys", filled(1_000))
    seen = []
    for name, _ in state.scan(below=key(700)):
        seen.append(name)
        state.delete(name)
    assert seen == [key(number) for number in range(700)]
    assert state.first() == key(700)


def test_a_value_put_again_is_no_change() -> None:
    state = KeyedState("keys", filled(10))
    state.put(key(3), b"v3")
    assert state.changes() == {}


def test_times_compare_as_keys_do() -> None:
    times = [-(1 << 62), -5, -1, 0, 1, 255, 256, 1 << 62]
    assert sorted(map(time_key, reversed(times))) == [time_key(time) for time in times]
    assert [time_from_key(time_key(time) + b"key") for time in times] == times


@pytest.mark.compatibility(
    "keyed state",
    "a newer root is refused",
)
def test_a_root_of_a_newer_release_is_refused() -> None:
    store = filled(1)
    store.blobs["keys"] = b"\x09" + store.blobs["keys"][1:]
    with pytest.raises(StateError, match="form 9, of a newer release; this one reads up to 2"):
        KeyedState("keys", store)


def in_the_first_form(store: Store) -> Store:
    """Return the same map as releases before form 2 wrote it."""
    found = Store()
    for name, blob in store.blobs.items():
        if name == "keys":
            found.blobs[name] = b"\x01" + blob[1:]
            continue
        alone = Store()
        alone.blobs = {"keys": struct.pack("<BII", 2, 1, 1) + struct.pack("<II", 0, 0)}
        alone.blobs["keys/0"] = blob
        found.blobs[name] = b"".join(
            struct.pack("<II", len(key), len(value)) + key + value
            for key, value in KeyedState("keys", alone).scan()
        )
    return found


@pytest.mark.compatibility(
    "keyed state",
    "blocks of form 1 are read; what changes is written in form 2",
)
def test_blocks_of_the_first_form_are_read_and_what_is_changed_gets_the_second() -> None:
    store = in_the_first_form(filled(3 * BLOCK_KEYS))
    wanted = {key(number): b"v%d" % number for number in range(3 * BLOCK_KEYS)}
    assert dict(KeyedState("keys", store).scan()) == wanted
    assert KeyedState("keys", store).changes() == {}

    state = KeyedState("keys", store)
    state.put(key(5), b"new")
    changes = state.changes()
    assert sorted(changes) == ["keys", "keys/0"]
    assert [blob[0] for blob in (store.blobs["keys"], changes["keys"] or b"")] == [1, 2]
    store.apply(changes)
    assert dict(KeyedState("keys", store).scan()) == wanted | {key(5): b"new"}
    state = KeyedState("keys", store)
    state.put(key(6), b"new")
    assert sorted(state.changes()) == ["keys/0"]


def test_a_torn_block_of_the_first_form_is_refused() -> None:
    store = in_the_first_form(filled(1))
    root, block = store.blobs["keys"], store.blobs["keys/0"]
    for data in (block[:-1], block[:5]):
        store.blobs = {"keys": root, "keys/0": data}
        with pytest.raises(StateError, match="state keys/0 is damaged"):
            KeyedState("keys", store).get(key(0))


def test_a_torn_root_a_torn_block_and_a_lost_one_are_refused() -> None:
    store = filled(1)
    root, block = store.blobs["keys"], store.blobs["keys/0"]
    for name, data in (("keys", root[:4]), ("keys/0", block[:-1]), ("keys/0", block[:9])):
        store.blobs = {"keys": root, "keys/0": block, name: data}
        with pytest.raises(StateError, match=f"state {name} is damaged"):
            KeyedState("keys", store).get(key(0))
    store.blobs = {"keys": root}
    with pytest.raises(StateError, match="keys/0 is missing"):
        KeyedState("keys", store).get(key(0))
