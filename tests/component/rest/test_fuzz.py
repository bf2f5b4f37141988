"""Requests made of the description, good and bad ones, against a real broker."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from streambroker_operator.broker import Broker
from streambroker_operator.rest.guard.rate_limits import RateLimits
from streambroker_operator.rest.http.openapi import description
from support.brokers.brokers import EXPORT, IMPORT

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
EXAMPLES = 300 if LONG else 12
ENDLESS = "getEvents"
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
AGENTS = {
    "emitControl",
    "getEmittedControl",
    "sendControl",
    "getSentControl",
    "getRows",
    "takeSnapshot",
}
"""Agents answer these: without one, 503 is the answer."""
KNOWN = {"job": "feed", "pe": 0, "port": "trades", "name": "kind"}
JSON = {"Content-Type": "application/json"}
UNLIMITED = RateLimits(
    writes_per_s=1e6,
    write_burst=10**9,
    reads_per_s=1e6,
    read_burst=10**9,
    agent_wait_s=0.01,
)
SCHEMA = schemathesis.openapi.from_dict(description())
OPERATIONS = {
    item[method]["operationId"]: SCHEMA[path][method]
    for path, item in description()["paths"].items()
    for method in item.keys() - {"parameters"}
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker in a thread of its own, with an export and an import."""
    broker = Broker(db=tmp_path_factory.mktemp("fuzz") / "broker.db", port=0, limits=UNLIMITED)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(broker.start(), loop).result(10.0)
    yield broker.url
    asyncio.run_coroutine_threadsafe(broker.stop(), loop).result(10.0)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10.0)
    loop.close()


def populate(session: requests.Session, url: str) -> None:
    """Make the known ports what they were, whatever the examples before did to them."""
    pe = f"{url}/api/subscriptions/job/feed/pe/0"
    for port, spec in (("export/trades", EXPORT), ("import/trades", IMPORT)):
        answer = session.put(f"{pe}/{port}", data=json.dumps(spec), headers=JSON)
        assert answer.status_code < 300, answer.text


def cases(operation: Any) -> st.SearchStrategy[Any]:
    """Return requests of one operation: good and bad ones, of known ports and of any."""
    known = {one.name: KNOWN[one.name] for one in operation.path_parameters if one.name in KNOWN}
    modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    return st.one_of(
        [
            operation.as_strategy(mode, path_parameters=aim)
            for mode in modes
            for aim in (None, known)
        ]
    )


@pytest.mark.parametrize("name", sorted(OPERATIONS.keys() - {ENDLESS}))
def test_no_request_gets_an_answer_that_is_not_described(name: str, url: str) -> None:
    checks = [one for one in CHECKS if name not in AGENTS or one is not not_a_server_error]
    with requests.Session() as session:
        session.trust_env = False
        populate(session, url)

        @settings(
            max_examples=EXAMPLES,
            derandomize=not LONG,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=cases(OPERATIONS[name]))
        def holds(case: Any) -> None:
            case.call_and_validate(base_url=url, session=session, checks=checks, timeout=10.0)

        holds()


def test_every_operation_but_the_endless_one_is_tried() -> None:
    assert ENDLESS in OPERATIONS
    assert len(OPERATIONS) > 20


def test_no_request_has_left_the_broker_unable_to_go_on(url: str, tmp_path: Path) -> None:
    with requests.Session() as session:
        session.trust_env = False
        populate(session, url)
        for what in ("exports", "imports", "pes", "routes"):
            listed = session.get(f"{url}/api/subscriptions/{what}?namespace=*")
            assert listed.status_code == 200, what
