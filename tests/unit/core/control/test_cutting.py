"""A control reader's batch ends where a window has to."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from streambroker_core.control.tuples import ControlTuple, Delivery
from streambroker_core.control.tuples.window_bounds import (
    ControlHead,
    count_window_epochs,
    make_control_head,
    merge_controls,
)

NONE = frozenset[str]()
MERGEABLE = frozenset({"watermark"})


def control(
    kind: str, epoch: int, seq: int = 0, delivery: Delivery = Delivery.END_WINDOW, of: str = "e"
) -> ControlTuple:
    return ControlTuple(
        type=kind,
        id=f"{of}/{epoch}/{seq}/{delivery.value}",
        delivery=delivery,
        epoch=epoch,
        emitter=of,
        seq=seq,
        at=epoch if delivery is Delivery.AT_TIME else None,
    )


def heads(*epochs: str) -> list[ControlHead]:
    """``e`` an end, ``b`` a begin, ``w`` a mergeable end, ``v`` a mergeable begin."""
    return [
        ControlHead(
            number=number,
            begin=frozenset(t for c, t in (("b", "set"), ("v", "watermark")) if c in text),
            end=frozenset(t for c, t in (("e", "eof"), ("w", "watermark")) if c in text),
        )
        for number, text in enumerate(epochs)
    ]


def test_epochs_without_tuples_are_taken_together() -> None:
    assert count_window_epochs(heads("", "", "")) == 3


def test_a_batch_ends_with_the_first_epoch_that_has_an_end() -> None:
    assert count_window_epochs(heads("", "e", "", "e")) == 2
    assert count_window_epochs(heads("e", "e")) == 1


def test_a_batch_ends_before_an_epoch_that_has_a_begin_unless_it_begins_with_it() -> None:
    assert count_window_epochs(heads("", "b", "")) == 1
    assert count_window_epochs(heads("b", "", "b")) == 2
    assert count_window_epochs(heads("be", "")) == 1


def test_mergeable_types_do_not_cut_and_others_beside_them_do() -> None:
    assert count_window_epochs(heads("w", "vw", "w"), MERGEABLE) == 3
    assert count_window_epochs(heads("w", "we", "w"), MERGEABLE) == 2
    assert count_window_epochs(heads("w", "w"), NONE) == 1


def test_nothing_is_taken_of_nothing() -> None:
    assert count_window_epochs([]) == 0


def test_a_head_tells_what_cuts_and_nothing_else() -> None:
    head = make_control_head(
        4,
        [control(d.value, 4, delivery=d) for d in Delivery],
    )
    assert head == ControlHead(
        number=4,
        begin=frozenset({"BEGIN"}),
        end=frozenset({"END_WINDOW"}),
        tuples=4,
        bytes=4 * len("null"),
    )


@given(epochs=st.lists(st.text("bewv", max_size=2), max_size=8))
def test_cut_again_and_again_every_row_comes_before_the_ends_of_its_epoch_and_after_begins(
    epochs: list[str],
) -> None:
    rest, windows = heads(*epochs), list[list[ControlHead]]()
    while rest:
        taken = count_window_epochs(rest, MERGEABLE)
        assert taken >= 1
        windows.append(rest[:taken])
        rest = rest[taken:]
    for window in windows:
        assert all(not one.end - MERGEABLE for one in window[:-1])
        assert all(not one.begin - MERGEABLE for one in window[1:])
    for low, high in pairwise(windows):
        assert low[-1].end - MERGEABLE or high[0].begin - MERGEABLE, "cut without need"


def test_of_mergeable_tuples_of_one_emitter_the_last_holds() -> None:
    first, last, other = (
        control("watermark", 1),
        control("watermark", 2),
        control("watermark", 1, of="f"),
    )
    assert merge_controls([last, first, other], MERGEABLE) == [last, other]
    assert merge_controls([first, last], NONE) == [first, last]


def test_tuples_with_a_place_or_a_time_of_their_own_are_not_merged() -> None:
    for delivery in (Delivery.IMMEDIATE, Delivery.AT_TIME):
        given = [control("watermark", epoch, delivery=delivery) for epoch in (1, 2)]
        assert merge_controls(given, MERGEABLE) == given


def test_tuples_that_are_not_mergeable_all_stay_in_their_order() -> None:
    given = [control("eof", 2), control("watermark", 1), control("eof", 1)]
    assert merge_controls(given, MERGEABLE) == given
