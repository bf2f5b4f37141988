"""What replicas tell each other: only who has the secret is heard, and only for a moment."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from streambroker_core.model import PeKey
from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes import relay
from support.resources import pe

SECRET, NOW = b"s" * 32, 1_000.0
FEED = pe("default/feed/0")


def told(at: float = NOW, runs: Any = None) -> bytes:
    return json.dumps(
        {"at": at, "runs": {str(FEED): ["v1", 0.5, "first"]} if runs is None else runs}
    ).encode()


def read(
    body: bytes, secret: bytes = SECRET, scheme: str = "Replica"
) -> list[tuple[PeKey, str, float, str]]:
    return relay.read(SECRET, f"{scheme} {relay._mac(secret, body)}", body, NOW)


def test_a_replica_is_heard() -> None:
    assert read(told()) == [(FEED, "v1", 0.5, "first")]


@pytest.mark.parametrize("shown", ["", "Replica", "Replica 00", "Bearer token"])
def test_who_shows_no_proof_is_refused(shown: str) -> None:
    with pytest.raises(RequestError) as raised:
        relay.read(SECRET, shown, told(), NOW)

    assert raised.value.status == 401


def test_another_secret_or_another_body_is_refused() -> None:
    with pytest.raises(RequestError):
        read(told(), secret=b"t" * 32)
    with pytest.raises(RequestError):
        relay.read(SECRET, f"Replica {relay._mac(SECRET, told())}", told(runs={}), NOW)


@pytest.mark.parametrize("at", [NOW - 61, NOW + 61])
def test_what_was_told_long_ago_is_refused(at: float) -> None:
    with pytest.raises(RequestError):
        read(told(at))


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"{}"),
        *(told(runs=runs) for runs in ([1], {"a/b": ["v", 0, ""]}, {str(FEED): "v"})),
        told(runs={str(FEED): ["v1", 0.5]}),
    ],
)
def test_what_cannot_be_read_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError):
        read(body)


async def test_a_leader_that_cannot_be_told_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = relay.Relay(SECRET, lambda: "http://127.0.0.1:1")
    async with aiohttp.ClientSession(trust_env=False) as session:
        for _ in range(2):
            one.note(FEED, "v1", 0.0)
            await one._send(session)

    assert caplog.text.count("cannot be told which agents ask here") == 1
