"""How an agent's key travels where others can read the network."""

from __future__ import annotations

import os

import pytest

from streambroker_core.errors import ManifestError
from streambroker_core.wire.broker import registration
from streambroker_core.wire.broker.key_exchange import public_key, seal
from support.core.resources import pe

BOB = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
"""Bob's private key in RFC 7748, section 6.1."""


def side(private: bytes, purpose: bytes = b"test") -> registration.Exchange:
    return registration.Exchange(private=private, public=public_key(private), purpose=purpose)


def test_public_keys_are_those_of_x25519() -> None:
    assert public_key(BOB).hex() == (
        "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    )


def test_only_the_two_sides_can_open_a_sealed_key() -> None:
    agent, broker, reader = side(os.urandom(32)), side(BOB), side(os.urandom(32))
    answer = registration.RegistrationReply(key=os.urandom(32))
    sent = registration.encode_answer(answer, broker, agent.public)

    assert answer.key.hex() not in str(sent)
    assert registration.decode_answer(sent, agent) == answer
    assert registration.decode_answer(sent, reader) != answer
    assert registration.decode_answer(sent, side(agent.private, b"other")) != answer


def test_an_agent_has_another_purpose_than_its_neighbour() -> None:
    purposes = {registration.key_purpose(pe(job), "ab" * 8) for job in ("feed", "alerts")}
    assert len(purposes) == 2


@pytest.mark.parametrize("offered", [bytes(32), b"\1" + bytes(31), b"short"])
def test_a_public_key_that_hides_nothing_is_refused(offered: bytes) -> None:
    with pytest.raises(ManifestError, match="X25519"):
        seal(bytes(32), BOB, offered, b"test")
