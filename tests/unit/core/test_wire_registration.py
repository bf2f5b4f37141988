"""What a broker shows an agent of the registration that it knows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streambroker_core.wire.broker.registration import (
    derive_key,
    hint_proof,
    is_same_host,
    registration_tag,
)
from support.core.resources import pe, registration


def test_a_tag_is_another_for_another_registration_and_for_another_secret() -> None:
    usual = registration()
    key, other = (
        derive_key(secret, pe("feed"), usual.instance) for secret in (b"a" * 32, b"b" * 32)
    )
    tags = [
        registration_tag(key, usual),
        registration_tag(other, usual),
        registration_tag(key, replace(usual, location="grpc+tcp://10.0.0.1:1")),
        registration_tag(key, replace(usual, hint=None)),
        registration_tag(key, replace(usual, instance="ff" * 8)),
    ]

    assert len(set(tags)) == 5
    assert registration_tag(key, registration()) == tags[0]


@pytest.mark.parametrize(
    ("host", "caller", "same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("127.0.0.9", "127.0.0.1", False),
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "127.0.0.1", False),
        ("feed.example", "10.0.0.1", False),
    ],
)
def test_an_address_is_the_callers_own_or_not(host: str, caller: str, same: bool) -> None:
    assert is_same_host(host, caller) == same


def test_a_proof_is_of_one_agent_at_one_address_in_one_hour() -> None:
    usual = registration()
    secret = b"s" * 32
    proofs = {
        hint_proof(secret, pe("feed"), usual, 1),
        hint_proof(secret, pe("feed"), usual, 2),
        hint_proof(secret, pe("alerts"), usual, 1),
        hint_proof(secret, pe("feed"), replace(usual, hint="10.0.0.1:1"), 1),
        hint_proof(secret, pe("feed"), replace(usual, instance="ff" * 8), 1),
        hint_proof(b"t" * 32, pe("feed"), usual, 1),
    }

    assert len(proofs) == 6
