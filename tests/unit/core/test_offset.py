"""What the checkpoint says is what is read, in the same order and the same slices."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streambroker_core.ledger.offset import (
    Offset,
    OffsetError,
    Position,
    advance,
    cut_slices,
    find_never_read,
    forget_streams,
    ranges,
    without_exports,
)
from streambroker_core.wire.agent_rpc.peer import PlannedRange

FULL = Offset(
    reader="r",
    filter="price > 10",
    columns=("b", "a"),
    streams={"z": Position(from_=1, next=4), "a": Position(from_=0, next=2)},
    control={"l2": 5, "l1": 3},
    dropped={"z": (2, 20), "a": (1, 7)},
    lost={"z": (4, None), "a": (3, 9)},
    last={"x/y/0/p": ("q", 7), "a/b/0/p": None},
)


T = TypeVar("T")


def _turned(mapping: Mapping[str, T]) -> dict[str, T]:
    return dict(reversed(list(mapping.items())))


def test_an_offset_survives_its_text() -> None:
    assert Offset.decode(json.loads(json.dumps(FULL.encode()))) == FULL


def test_equal_offsets_have_equal_text_whatever_the_order_they_were_built_in() -> None:
    turned = Offset(
        reader="r",
        filter="price > 10",
        columns=("b", "a"),
        streams=_turned(FULL.streams),
        control=_turned(FULL.control),
        dropped=_turned(FULL.dropped),
        lost=_turned(FULL.lost),
        last=_turned(FULL.last),
    )
    assert json.dumps(turned.encode()) == json.dumps(FULL.encode())
    keys = list(FULL.encode())
    assert keys == sorted(keys)
    assert list(FULL.encode()["streams"]) == ["a", "z"]


@pytest.mark.compatibility(
    "offset of a reader",
    "without losses it has no field that older releases lack",
)
def test_an_offset_of_a_reader_that_lost_nothing_is_that_of_earlier_releases() -> None:
    assert "lost" not in Offset(reader="r", dropped={"a": (1, 7)}).encode()


def test_what_was_lost_in_forgotten_streams_is_not_forgotten() -> None:
    once = forget_streams(FULL, ["z", "not there"])
    assert once.streams == {"a": FULL.streams["a"]}
    assert once.dropped == {"": (2, 20), "a": (1, 7)}
    assert once.lost == {"": (4, None), "a": (3, 9)}
    twice = forget_streams(once, ["a"])
    assert (twice.streams, twice.dropped, twice.lost) == ({}, {"": (3, 27)}, {"": (7, None)})
    assert forget_streams(twice, []) == twice
    assert Offset.decode(json.loads(json.dumps(twice.encode()))) == twice


def test_what_is_lost_adds_up_and_is_not_known_where_a_part_is_not() -> None:
    some = PlannedRange(stream="a", from_=5, next=6, lost=(2, 20), has_gap=True)
    unknown = PlannedRange(stream="b", from_=5, next=6, lost=(1, None), has_gap=True)
    once = advance(Offset(), "x", [some, unknown], None)
    twice = advance(once, "x", [some, replace(unknown, lost=(3, 30))], None)
    assert once.lost == {"a": (2, 20), "b": (1, None)}
    assert twice.lost == {"a": (4, 40), "b": (4, None)}


def test_columns_keep_their_order() -> None:
    assert FULL.encode()["columns"] == ["b", "a"]


@pytest.mark.parametrize("text", [None, {}])
def test_nothing_is_the_offset_before_the_first(text: dict[str, object] | None) -> None:
    assert Offset.decode(text) == Offset()


@pytest.mark.compatibility(
    "offset of a reader",
    "a newer version is refused by name",
)
def test_an_offset_of_a_newer_release_is_refused_by_name() -> None:
    with pytest.raises(OffsetError, match=r"format version 3; this release reads up to 2"):
        Offset.decode({**FULL.encode(), "v": 3})


@pytest.mark.parametrize("data", [{"topic": {"0": 3}}, {"v": "1"}])
def test_an_offset_of_another_source_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(OffsetError, match="not an offset of streambroker"):
        Offset.decode(data)


@pytest.mark.parametrize(
    "broken",
    [
        {"streams": 3},
        {"streams": {"a": {"from": 1}}},
        {"last": {"e": [1]}},
        {"dropped": {"a": 5}},
        {"control": []},
    ],
)
def test_a_damaged_offset_is_refused_with_a_remedy(broken: dict[str, object]) -> None:
    with pytest.raises(OffsetError, match="Restore the checkpoint"):
        Offset.decode({**FULL.encode(), **broken})


def test_a_batch_reads_from_where_the_last_ended() -> None:
    start = Offset(streams={"a": Position(from_=0, next=2)})
    end = Offset(streams={"a": Position(from_=0, next=5), "b": Position(from_=3, next=4)})
    assert ranges(start, end) == {"a": (2, 5), "b": (3, 4)}


def test_a_stream_that_did_not_move_is_not_read_again() -> None:
    start = Offset(streams={"a": Position(from_=0, next=2), "b": Position(from_=0, next=1)})
    end = Offset(streams={"a": Position(from_=0, next=2), "b": Position(from_=0, next=3)})
    assert ranges(start, end) == {"b": (1, 3)}


def test_an_agreed_gap_is_left_out() -> None:
    start = Offset(streams={"a": Position(from_=0, next=2)})
    assert ranges(start, Offset(streams={"a": Position(from_=4, next=6)})) == {"a": (4, 6)}


def test_a_plan_moves_positions_and_counts_what_was_dropped() -> None:
    start = Offset(reader="r", streams={"a": Position(from_=0, next=2)}, dropped={"a": (1, 5)})
    plan = PlannedRange(stream="a", from_=4, next=6, dropped=(2, 9), has_gap=True)
    end = advance(start, "e", [plan], ("q", 8))
    assert end.streams == {"a": Position(from_=4, next=6)}
    assert end.dropped == {"a": (3, 14)}
    assert end.last == {"e": ("q", 8)}
    assert (end.reader, start.streams) == ("r", {"a": Position(from_=0, next=2)})


def test_a_plan_without_gap_leaves_the_beginning() -> None:
    start = Offset(streams={"a": Position(from_=1, next=2)})
    end = advance(start, "e", [PlannedRange(stream="a", from_=2, next=6)], None)
    assert end.streams == {"a": Position(from_=1, next=6)}
    assert end.dropped == {}


def test_an_export_counts_as_opened_also_while_it_has_no_stream() -> None:
    assert advance(Offset(), "e", [], None).last == {"e": None}


def test_a_batch_without_news_keeps_the_last_batch_read() -> None:
    start = Offset(last={"e": ("q", 3)})
    assert advance(start, "e", [], None).last == {"e": ("q", 3)}


blocks = st.dictionaries(
    st.integers(0, 50), st.lists(st.integers(1, 100), max_size=8), max_size=12
).map(lambda d: dict(sorted(d.items())))


@given(epochs=blocks, size=st.integers(1, 300))
def test_slices_cover_every_block_once_in_order(epochs: dict[int, list[int]], size: int) -> None:
    slices = cut_slices(epochs, slice_bytes=size)
    got = [(p.epoch, b) for s in slices for p in s for b in range(p.first, p.last)]
    assert got == [(e, b) for e, sizes in epochs.items() for b in range(len(sizes))]
    assert all(s and all(p.first < p.last for p in s) for s in slices)
    assert cut_slices(dict(epochs), slice_bytes=size) == slices


@given(epochs=blocks, size=st.integers(1, 300))
def test_slices_are_about_equal(epochs: dict[int, list[int]], size: int) -> None:
    total = sum(map(sum, epochs.values()))
    largest = max((b for sizes in epochs.values() for b in sizes), default=0)
    wanted = max(1, -(-total // size))
    slices = cut_slices(epochs, slice_bytes=size)
    assert len(slices) <= wanted
    for one in slices:
        assert sum(sum(epochs[p.epoch][p.first : p.last]) for p in one) <= size + largest


def test_one_large_epoch_is_cut_at_its_blocks() -> None:
    pieces = cut_slices({4: [10] * 6}, slice_bytes=20)
    assert [[(p.epoch, p.first, p.last) for p in s] for s in pieces] == [
        [(4, 0, 2)],
        [(4, 2, 4)],
        [(4, 4, 6)],
    ]


def test_small_epochs_share_a_slice() -> None:
    assert len(cut_slices({1: [10], 2: [10], 3: [10]}, slice_bytes=30)) == 1


def test_nothing_is_cut_into_nothing() -> None:
    assert cut_slices({}) == []


def test_a_large_block_does_not_drag_its_neighbours_into_slices_of_their_own() -> None:
    pieces = cut_slices({1: [100, 1, 1, 1]}, slice_bytes=10)
    assert [[(p.first, p.last) for p in s] for s in pieces] == [[(0, 1)], [(1, 4)]]
    two = cut_slices({1: [20, 20], 2: [1]}, slice_bytes=32)
    assert [[(p.epoch, p.first, p.last) for p in s] for s in two] == [
        [(1, 0, 1)],
        [(1, 1, 2), (2, 0, 1)],
    ]


def test_what_was_never_read_and_is_nowhere_needs_not_be_known() -> None:
    offset = replace(FULL, last={**FULL.last, "c/d/0/p": None, "routed/e/0/p": None})
    homes = {"a": "a/b/0/p", "other": "c/d/0/p"}
    assert find_never_read(offset, {"routed/e/0/p"}, homes) == {"c/d/0/p"}
    assert find_never_read(forget_streams(offset, ["a"]), (), homes) == {
        "a/b/0/p",
        "c/d/0/p",
        "routed/e/0/p",
    }
    assert without_exports(FULL, {"a/b/0/p"}) == replace(FULL, last={"x/y/0/p": ("q", 7)})


def test_an_export_that_was_read_takes_its_key_and_less_than_sixty_bytes() -> None:
    key = "default/feed-2026-11-22/0/trades"
    query = "0f3a5c8e-7d1b-4b1e-9a55-0c2f6a9d3e71"
    before, after = (
        len(json.dumps(Offset(last=last).encode()))
        for last in ({"a": None}, {"a": None, key: (query, 10**6)})
    )
    assert len(key) + 45 < after - before < len(key) + 60
