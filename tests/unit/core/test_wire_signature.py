"""A signature is good for one request, of one agent, at one time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streambroker_core.errors import SignatureError
from streambroker_core.model import PeKey
from streambroker_core.wire.broker.request_signature import (
    MAX_HEADER,
    MAX_REMEMBERED,
    WINDOW_S,
    ReplayGuard,
    Signature,
    is_signed,
    read,
    sign,
    verify,
)

KEY = b"k" * 32
AGENT = PeKey(namespace="jobs", job="alerts", pe=0)
MADE_US = 1_763_750_000_000_001
MADE = MADE_US / 1e6
REQUEST: dict[str, Any] = {"method": "PUT", "path": "/api/x?namespace=jobs", "body": b"{}"}


def header(key: bytes = KEY, **changed: Any) -> str:
    reported = {"agent": AGENT, "instance": "0123456789abcdef", "time_us": MADE_US, **REQUEST}
    return sign(key, **{**reported, **changed})


def reason(text: str, now: float = MADE, **changed: Any) -> str:
    with pytest.raises(SignatureError) as raised:
        verify(KEY, read(text), now=now, **{**REQUEST, **changed})
    return raised.value.reason


def test_what_was_signed_is_verified() -> None:
    found = read(header())

    assert is_signed(header())
    assert found.agent == AGENT
    assert found.time_us == MADE_US
    verify(KEY, found, now=MADE, **REQUEST)


@pytest.mark.parametrize(
    "changed", [{"method": "DELETE"}, {"path": "/api/x?namespace=other"}, {"body": b"{} "}]
)
def test_another_request_has_another_signature(changed: dict[str, Any]) -> None:
    assert reason(header(), **changed) == "forged"


@pytest.mark.parametrize(
    ("here", "there"), [("jobs/alerts/0", "jobs/alerts/1"), (str(MADE_US), str(MADE_US + 1))]
)
def test_nothing_in_the_header_can_be_exchanged(here: str, there: str) -> None:
    assert reason(header().replace(here, there)) == "forged"


@pytest.mark.parametrize("off", [-WINDOW_S - 1, WINDOW_S + 1])
def test_a_signature_out_of_time_is_refused(off: float) -> None:
    assert reason(header(), now=MADE + off) == "out of time"


def test_a_wrong_signature_tells_nothing_of_the_time() -> None:
    assert reason(header(key=b"x" * 32), now=0.0) == "forged"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Bearer abc",
        header()[:-1],
        header() + " ",
        header().replace("v=1", "v=2"),
        header().replace("jobs/alerts/0", "jobs/alerts"),
        header().replace("jobs/alerts/0", "jobs/alerts/99999"),
        header() + "x" * MAX_HEADER,
    ],
)
def test_a_header_of_another_form_is_malformed(text: str) -> None:
    with pytest.raises(SignatureError) as raised:
        read(text)
    assert raised.value.reason == "malformed"


@given(st.text(max_size=600))
def test_no_text_breaks_the_reader(text: str) -> None:
    with pytest.raises(SignatureError):
        read(text)


def numbered(number: int, pe: int = 0) -> Signature:
    agent = PeKey(namespace="jobs", job="alerts", pe=pe)
    mac = number.to_bytes(32, "big")
    return Signature(agent=agent, instance="0" * 8, time_us=number, mac=mac)


def is_admitted(replays: ReplayGuard, signature: Signature, now: float = 0.0) -> bool:
    try:
        replays.admit(signature, now)
    except SignatureError:
        return False
    return True


def test_a_change_is_admitted_once_as_long_as_it_holds() -> None:
    replays = ReplayGuard()
    replays.admit(numbered(1), 0.0)
    replays.admit(numbered(2), 0.0)

    assert not is_admitted(replays, numbered(1), 2 * WINDOW_S)


def test_agents_that_change_nothing_any_more_are_forgotten() -> None:
    replays = ReplayGuard()
    for number in range(1000):
        replays.admit(numbered(number, pe=number), number * 1.0)
    assert len(replays._agents) <= 2 * WINDOW_S + 2


def test_an_agent_may_change_as_often_as_it_likes_and_each_change_counts_once() -> None:
    replays = ReplayGuard()
    for number in range(1, 3 * MAX_REMEMBERED):
        replays.admit(numbered(number), 0.0)

    assert not any(is_admitted(replays, numbered(n)) for n in range(1, 3 * MAX_REMEMBERED))
    assert len(replays._agents[AGENT, "0" * 8].times) == MAX_REMEMBERED
    assert is_admitted(replays, numbered(3 * MAX_REMEMBERED))


def test_what_one_agent_changes_takes_nothing_from_another() -> None:
    replays = ReplayGuard()
    for number in range(100_001):
        replays.admit(numbered(number + 1), 0.0)

    assert is_admitted(replays, numbered(1, pe=1))


@given(st.lists(st.integers(0, MAX_REMEMBERED - 1), min_size=1, max_size=300))
def test_changes_that_overtake_each_other_are_all_admitted_once(behind: list[int]) -> None:
    order = sorted(range(len(behind)), key=lambda n: (n + behind[n], n))
    replays = ReplayGuard()

    assert all(is_admitted(replays, numbered(n + 1)) for n in order)
    assert not any(is_admitted(replays, numbered(n + 1)) for n in order)


@given(st.floats(-WINDOW_S + 0.001, WINDOW_S - 0.001), st.floats(0, 500))
def test_whatever_was_admitted_is_remembered_or_out_of_time(skew: float, later: float) -> None:
    replays, text = ReplayGuard(), header()
    verify(KEY, read(text), now=MADE + skew, **REQUEST)
    replays.admit(read(text), MADE + skew)
    now = MADE + skew + later

    def again() -> None:
        verify(KEY, read(text), now=now, **REQUEST)
        replays.admit(read(text), now)

    with pytest.raises(SignatureError):
        again()
