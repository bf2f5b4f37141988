"""Capabilities open one route for one import and for nobody else."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streambroker_core.errors import CapabilityError
from streambroker_core.wire.broker.capability import (
    DAY_S,
    MAX_TOKEN,
    Capability,
    claimed_expiry,
    compute_expiry,
    sign,
    verify,
)

KEY = b"k" * 32
IMPORT, EXPORT = "default/alerts/0/trades", "default/feed/0/trades"


def token(key: bytes = KEY, expires: int | None = 1000) -> str:
    return sign(
        key,
        reader_import=IMPORT,
        export=EXPORT,
        filter_allowed=True,
        policy="wait",
        expires=expires,
    )


def checked(text: str | None, **changed: object) -> Capability:
    wanted: dict[str, object] = {"reader_import": IMPORT, "export": EXPORT, "now": 0.0, **changed}
    return verify(KEY, text, **wanted)  # type: ignore[arg-type]


def test_a_capability_says_what_was_signed() -> None:
    assert checked(token()) == Capability(
        reader_import=IMPORT, export=EXPORT, filter_allowed=True, policy="wait", expires=1000
    )


def test_equal_arguments_give_equal_tokens() -> None:
    assert token() == token()
    assert token(expires=None) != token()


def test_a_capability_without_an_end_does_not_expire() -> None:
    assert checked(token(expires=None), now=1e12).expires is None


def unsigned(body: bytes) -> str:
    return base64.urlsafe_b64encode(body).rstrip(b"=").decode() + "." + token().split(".")[1]


@pytest.mark.parametrize(
    ("text", "changed", "reason"),
    [
        (None, {}, "missing"),
        ("", {}, "missing"),
        ("abc", {}, "malformed"),
        ("é.é", {}, "malformed"),
        ("!!!.???", {}, "malformed"),
        ("a" * (MAX_TOKEN + 1), {}, "malformed"),
        (token() + "=", {}, "malformed"),
        (token(b"other" * 7), {}, "forged"),
        (unsigned(b"{}"), {}, "forged"),
        (token(), {"reader_import": "default/evil/0/trades"}, "wrong import"),
        (token(), {"export": "default/feed/0/other"}, "wrong export"),
        (token(), {"now": 1000.0}, "expired"),
    ],
)
def test_each_bad_capability_is_distinguished(
    text: str | None, changed: dict[str, object], reason: str
) -> None:
    with pytest.raises(CapabilityError) as caught:
        checked(text, **changed)

    assert caught.value.reason == reason
    assert caught.value.code == "CapabilityInvalid"


@given(place=st.integers(0, len(token()) - 1), char=st.characters(codec="ascii"))
def test_any_other_character_anywhere_is_refused(place: int, char: str) -> None:
    good = token()
    if good[place] == char:
        return
    with pytest.raises(CapabilityError):
        checked(good[:place] + char + good[place + 1 :])


def test_a_capability_ends_one_to_two_days_later_at_one_moment_for_a_day() -> None:
    noon = 1_800_000_000 // DAY_S * DAY_S + DAY_S // 2
    ends = {compute_expiry(noon + hours * 3600.0) for hours in range(-12, 12)}
    assert ends == {noon + DAY_S // 2 + DAY_S}
    assert compute_expiry(noon + 12 * 3600) == noon + DAY_S // 2 + 2 * DAY_S


def test_its_end_is_reported_without_the_key() -> None:
    assert claimed_expiry(token(b"another" * 5, 1234)) == 1234
    assert claimed_expiry(token(expires=None)) is None
    for text in ("", "x", "a.b", token()[3:]):
        assert claimed_expiry(text) is None


def test_an_end_can_be_passed_over_and_nothing_else_can() -> None:
    assert checked(token(expires=5), now=None).expires == 5
    with pytest.raises(CapabilityError):
        checked(token(b"another" * 5, 5), now=None)
