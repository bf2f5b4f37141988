"""What a broker shows an agent of the registration that it knows."""

from __future__ import annotations

from dataclasses import replace

from streambroker_core.wire.registration import derive_key, tag_of
from support.resources import pe, registration


def test_a_tag_is_another_for_another_registration_and_for_another_secret() -> None:
    usual = registration()
    key, other = (
        derive_key(secret, pe("feed"), usual.instance) for secret in (b"a" * 32, b"b" * 32)
    )
    tags = [
        tag_of(key, usual),
        tag_of(other, usual),
        tag_of(key, replace(usual, location="grpc+tcp://10.0.0.1:1")),
        tag_of(key, replace(usual, hint=None)),
        tag_of(key, replace(usual, instance="ff" * 8)),
    ]

    assert len(set(tags)) == 5
    assert tag_of(key, registration()) == tags[0]
