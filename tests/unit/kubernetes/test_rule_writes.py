"""Rules in a cluster, where others may be quicker than a change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streambroker_core.board import Board, Synced
from streambroker_core.model import RULE
from streambroker_core.wire.manifests.rules import read_rule_spec
from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes.apply.port_store import KubernetesStore
from streambroker_operator.kubernetes.client.http_api import Answer
from streambroker_operator.kubernetes.client.objects import Objects
from streambroker_operator.runtime.rules import Rules
from support.kubernetes.fake_server import FakeApi

DEAR = replace(read_rule_spec({"job": "alerts", "id": "dear", "version": 1}), uid="u", name="dear")
GONE = Answer(status=404, body={"details": {"name": "dear"}})


async def test_a_rule_that_is_gone_is_not_made_again_by_enabling_it() -> None:
    api, board = FakeApi(lambda _: GONE), Board()
    board.handle(Synced(kind=RULE, listed=((DEAR, 3),), version=3))
    rules = Rules(
        KubernetesStore(Objects(api), board.reader, secret=b"s" * 32), board.reader, lambda _: None
    )

    with pytest.raises(RequestError) as caught:
        await rules.enable(DEAR.key)

    assert (caught.value.status, caught.value.code) == (404, "UnknownRule")
    assert [call.method for call in api.calls] == ["GET"]
