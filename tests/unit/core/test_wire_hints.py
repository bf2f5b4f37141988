"""Hints: what is signed is read, everything else is refused, and what to do about each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streambroker_core.errors import HintError
from streambroker_core.wire.broker.hints import (
    MAX_DATAGRAM,
    STALE_S,
    Hint,
    HintGate,
    decode,
    encode,
    is_older,
    point_text,
    read_point,
)

KEY = b"k" * 32
AGENT = "default/alerts/0"
GOOD = encode(KEY, AGENT, "abc123", (7, 9))


@given(
    version=st.text("0123456789abcdef", max_size=64),
    exports=st.integers(0, 2**64 - 1),
    imports=st.integers(0, 2**64 - 1),
    agent=st.text(max_size=300),
)
def test_a_hint_says_after_the_network_what_it_said_before(
    version: str, exports: int, imports: int, agent: str
) -> None:
    datagram = encode(KEY, agent, version, (exports, imports))

    assert len(datagram) <= MAX_DATAGRAM
    assert decode(KEY, datagram, agent) == Hint(
        agent=agent, version=version, point=(exports, imports)
    )


@given(place=st.integers(0, len(GOOD) - 1), flip=st.integers(1, 255))
def test_any_other_byte_anywhere_is_refused(place: int, flip: int) -> None:
    forged = bytearray(GOOD)
    forged[place] ^= flip

    with pytest.raises(HintError):
        decode(KEY, bytes(forged), AGENT)


@given(datagram=st.binary(max_size=MAX_DATAGRAM + 50))
def test_noise_is_refused(datagram: bytes) -> None:
    with pytest.raises(HintError):
        decode(KEY, datagram, AGENT)


@pytest.mark.parametrize(
    ("datagram", "word"),
    [
        (b"", "cut off"),
        (GOOD[:-1], "length"),
        (GOOD + b"x", "length"),
        (GOOD[:40], "cut off"),
        (b"XYZ" + GOOD[3:], "not a hint"),
        (GOOD[:3] + b"\x02" + GOOD[4:], "form 2"),
        (b"x" * (MAX_DATAGRAM + 1), "at most 200"),
        (encode(b"other" * 7, AGENT, "abc123", (7, 9)), "signature"),
        (encode(KEY, "default/other/0", "abc123", (7, 9)), "not for default/alerts/0"),
    ],
)
def test_each_bad_datagram_is_distinguished(datagram: bytes, word: str) -> None:
    with pytest.raises(HintError, match=word):
        decode(KEY, datagram, AGENT)


@pytest.mark.parametrize(
    ("version", "point"), [("é", (0, 0)), ("a" * 65, (0, 0)), ("a", (-1, 0)), ("a", (0, 2**64))]
)
def test_what_does_not_fit_is_not_sent(version: str, point: tuple[int, int]) -> None:
    with pytest.raises(HintError):
        encode(KEY, AGENT, version, point)


def hint(version: str, exports: int, imports: int) -> Hint:
    return Hint(agent=AGENT, version=version, point=(exports, imports))


def test_a_gate_ignores_the_version_it_has() -> None:
    gate = HintGate("a", (5, 5))

    assert not gate.should_poll(hint("a", 6, 6), 0.0)
    assert gate.should_poll(hint("b", 6, 6), 0.0)
    assert gate.should_poll(hint("b", 5, 5), 0.0)


def test_a_gate_without_a_view_wants_any_hint() -> None:
    assert HintGate().should_poll(hint("a", 0, 0), 0.0)


@pytest.mark.parametrize("point", [(4, 5), (5, 4), (9, 4), (4, 9)])
def test_a_gate_ignores_older_points_for_a_while(point: tuple[int, int]) -> None:
    gate = HintGate("a", (5, 5))
    old = hint("b", *point)

    assert not gate.should_poll(old, 100.0)
    assert not gate.should_poll(old, 100.0 + STALE_S - 0.1)
    assert gate.should_poll(old, 100.0 + STALE_S)


def test_a_newer_view_ends_the_suspicion_of_a_restore() -> None:
    gate = HintGate("a", (5, 5))
    gate.should_poll(hint("b", 4, 5), 100.0)

    assert gate.accept_view("c", (6, 6), 150.0)
    assert not gate.should_poll(hint("b", 4, 5), 100.0 + STALE_S)


def test_a_view_of_an_older_point_is_not_taken_until_it_stays() -> None:
    gate = HintGate("a", (5, 5))

    assert not gate.accept_view("b", (1, 1), 10.0)
    assert gate.should_poll(hint("c", 5, 5), 10.0)
    assert gate.accept_view("b", (1, 1), 10.0 + STALE_S)
    assert gate.should_poll(hint("c", 2, 2), 200.0)


def test_the_same_view_at_an_older_point_is_no_news() -> None:
    gate = HintGate("a", (5, 5))

    assert gate.accept_view("a", (1, 1), 0.0)
    assert not gate.accept_view("b", (4, 4), 0.0)


def test_after_a_restore_the_same_view_at_its_older_point_makes_way_for_the_next_change() -> None:
    gate = HintGate("a", (5, 5))
    for polled in (0.0, STALE_S / 2, STALE_S):
        assert gate.accept_view("a", (3, 3), polled)

    assert gate.should_poll(hint("b", 4, 3), STALE_S + 1.0)
    assert gate.accept_view("b", (4, 3), STALE_S + 1.0)


def test_the_same_view_at_its_point_ends_the_suspicion_of_a_restore() -> None:
    gate = HintGate("a", (5, 5))
    gate.should_poll(hint("b", 4, 5), 100.0)

    assert gate.accept_view("a", (5, 5), 130.0)
    assert not gate.accept_view("b", (4, 5), 100.0 + STALE_S)


def test_a_point_is_read_as_it_is_shown() -> None:
    assert read_point(point_text((12, 2**64 - 1))) == (12, 2**64 - 1)
    for text in ("", "1", "1,", ",1", "-1,2", "1,2,3", "1.0,2", "\u0661,2", "1," + "9" * 21):
        assert read_point(text) is None


def test_points_are_ordered_component_by_component() -> None:
    assert is_older((1, 9), (2, 2))
    assert is_older((9, 1), (2, 2))
    assert not is_older((2, 2), (2, 2))
    assert not is_older((3, 2), (2, 2))
