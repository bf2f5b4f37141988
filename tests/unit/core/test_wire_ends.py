"""Which exports have ended: what is told is read, all else is refused, and it is never too long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streambroker_core.errors import ManifestError
from streambroker_core.wire.broker.ended_exports import (
    MAX_LENGTH,
    EndedExports,
    decode,
    encode,
    make_ended_exports,
)

PORTS = st.sets(st.from_regex(r"[A-Za-z_][-A-Za-z0-9_]{0,62}", fullmatch=True), max_size=60)


@given(ports=PORTS)
def test_what_is_reported_fits_and_says_nothing_wrong(ports: set[str]) -> None:
    text = encode(make_ended_exports(ports))
    reported = decode(text)

    assert len(text) <= MAX_LENGTH
    assert reported.ports <= ports
    assert reported.more == (reported.ports != ports)
    assert {reported.has_ended(port) for port in ports} <= (
        {True, None} if reported.more else {True}
    )
    assert encode(reported) == text


def test_of_very_many_the_first_are_named_and_of_the_others_nothing_is_said() -> None:
    reported = decode(encode(make_ended_exports(f"p{n:062}" for n in range(1_024))))
    short = encode(make_ended_exports(f"p{n}" for n in range(1_024)))

    assert len(reported.ports) == 31
    assert MAX_LENGTH - 10 < len(short) <= MAX_LENGTH
    assert reported.has_ended(f"p{0:062}")
    assert reported.has_ended(f"p{1_000:062}") is None
    assert reported.has_ended("other") is None


def test_of_one_that_is_not_among_few_it_is_said_that_it_goes_on() -> None:
    reported = decode("trades, quotes")

    assert reported == EndedExports(ports=frozenset({"trades", "quotes"}))
    assert reported.has_ended("news") is False


@pytest.mark.parametrize("text", ["", " "])
def test_nothing_has_ended_where_nothing_is_named(text: str) -> None:
    assert decode(text) == EndedExports()
    assert encode(EndedExports()) == ""


@pytest.mark.parametrize("text", ["a b", "1st", "trades,", "*,trades", "trades;q=1", "x" * 64])
def test_what_is_no_port_is_refused_by_name(text: str) -> None:
    with pytest.raises(ManifestError, match=r"^Ended names '.*', which is not a port"):
        decode(text)
