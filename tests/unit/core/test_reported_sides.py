"""Figures of side inputs: what several buckets tell as one, and what is read of it again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from streambroker_core.errors import ManifestError
from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.reports.side_status import (
    MAX_STALLS,
    SideStall,
    SideStatus,
    describe_side_stall,
    merge_buckets,
    read_sides,
    write_side,
)

FIRST = SideStatus(
    operator="join",
    input="rates",
    waiting_rows=3,
    waiting_bytes=30,
    waiting_since=7_000_000,
    entries=100,
    size=1_000,
    windows=2,
    staged=5,
    rows=105,
    late=1,
    refused=2,
    version="v1",
    version_since=1_000_000,
    stalls=(SideStall(cause="for side input `rates`", rows=3, since=7_000_000),),
)
SECOND = replace(
    FIRST,
    waiting_rows=4,
    waiting_bytes=40,
    waiting_since=6_000_000,
    entries=90,
    windows=1,
    version="v2",
    version_since=2_000_000,
    stalls=(SideStall(cause="for side input `rates`", rows=4, since=6_000_000),),
)


def read(*sides: Any) -> tuple[SideStatus, ...]:
    return read_sides(Fields({"sides": list(sides)}), "sides")


def test_what_waits_is_added_up_and_what_is_broadcast_counts_once() -> None:
    both = merge_buckets([FIRST, SECOND])
    assert (both.waiting_rows, both.waiting_bytes, both.waiting_since) == (7, 70, 6_000_000)
    assert (both.entries, both.size, both.windows, both.staged) == (100, 1_000, 2, 5)
    assert (both.rows, both.late, both.refused) == (105, 1, 2)
    assert (both.version, both.version_since) == ("v2", 2_000_000)
    assert both.stalls == (SideStall(cause="for side input `rates`", rows=7, since=6_000_000),)


def test_values_of_a_keyed_one_lie_in_one_bucket_each() -> None:
    both = merge_buckets([replace(FIRST, keyed=True), replace(SECOND, keyed=True)])
    assert (both.entries, both.size, both.staged) == (190, 2_000, 10)
    assert (both.rows, both.late, both.refused) == (210, 2, 4)
    assert both.windows == 2


def test_stalls_that_hold_back_most_rows_are_reported_first() -> None:
    stalls = tuple(SideStall(cause=f"window {n}", rows=n) for n in range(1, 9))
    reported = merge_buckets([replace(FIRST, stalls=stalls)]).stalls
    assert [one.rows for one in reported] == [8, 7, 6, 5, 4]
    assert len(reported) == MAX_STALLS


def test_a_bucket_without_version_does_not_hide_that_of_another() -> None:
    none = replace(FIRST, version=None, version_since=None)
    assert merge_buckets([none, SECOND]).version == "v2"
    assert merge_buckets([none]).version is None


def test_sentences_say_how_many_wait_for_what_and_how_long() -> None:
    stall = SideStall(cause="for side input `rates`", rows=1_200, since=1_500_000)
    assert describe_side_stall(stall, 3_000_000) == (
        "1,200 rows wait for side input `rates`; the first for 1.5 s."
    )
    assert (
        describe_side_stall(replace(stall, rows=1, since=None), 0)
        == "1 row waits for side input `rates`."
    )


@pytest.mark.parametrize(
    ("micros", "text"),
    [(89_877_300, "90 s"), (2_040_000, "2.0 s"), (1_234_567_890_000, "1,234,568 s")],
)
def test_an_age_has_no_more_digits_than_are_read(micros: int, text: str) -> None:
    stall = SideStall(cause="for side input `rates`", rows=2, since=0)
    assert (
        describe_side_stall(stall, micros)
        == f"2 rows wait for side input `rates`; the first for {text}."
    )


def test_what_is_written_is_read_again() -> None:
    usual = SideStatus(operator="join", input="main")
    reported = [write_side(one) for one in (FIRST, usual, replace(SECOND, keyed=True))]
    assert read(*reported) == (FIRST, usual, replace(SECOND, keyed=True))
    assert reported[0]["waitingSince"] == 7_000_000
    assert read({**reported[0], "newer": 1}) == (FIRST,)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"operator": None}, r"sides\[0\].operator"),
        ({"waitingRows": -1}, r"sides\[0\].waitingRows"),
        ({"versionSince": "now"}, r"sides\[0\].versionSince"),
        ({"stalls": [{"rows": 1}]}, r"sides\[0\].stalls\[0\].cause"),
        ({"stalls": [{"cause": "x"}] * (MAX_STALLS + 1)}, r"sides\[0\].stalls"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ManifestError, match=says):
        read({**write_side(FIRST), **change})
