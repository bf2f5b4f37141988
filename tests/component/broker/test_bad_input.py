"""Bad requests get a clear problem, and change nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streambroker_operator.agents.hint_sender import HintSender
from streambroker_operator.rest.app import create_app
from streambroker_operator.runtime.runtime import Runtime
from streambroker_operator.storage.sqlite_store import Store
from support.brokers.brokers import EXPORT, IMPORT, Answer, Rest, running_broker

PE = "/job/feed/pe/0"
X = f"{PE}/export/trades"
NAMED = f"{PE}/export/named"
I = f"{PE}/import/trades"  # noqa: E741
AGENT = {"instance": "0123456789abcdef", "location": "grpc+tcp://h:1", "hint": "h:2"}


@dataclass(frozen=True)
class Case:
    """A request and the refusal it has to get."""

    method: str
    path: str
    status: int
    code: str
    body: Any = None
    data: bytes | None = None
    content_type: str = "application/json"


def put(path: str, status: int, code: str, body: Any) -> Case:
    return Case("PUT", path, status, code, body)


def raw(data: bytes, status: int, code: str, content_type: str = "application/json") -> Case:
    return Case("PUT", f"{X}/properties", status, code, data=data, content_type=content_type)


UNKNOWN_PE = "/job/nobody/pe/0"
CASES = [
    *[
        Case(method, UNKNOWN_PE + rest, 404, "UnknownPE", body={})
        for method, rest in (
            ("GET", ""),
            ("DELETE", ""),
            ("GET", "/export/p"),
            ("DELETE", "/export/p"),
            ("GET", "/export/p/properties"),
            ("PUT", "/export/p/properties"),
            ("PATCH", "/export/p/properties"),
            ("DELETE", "/export/p/properties"),
            ("GET", "/export/p/property/a"),
            ("PUT", "/export/p/property/a"),
            ("DELETE", "/export/p/property/a"),
            ("GET", "/import/p"),
            ("DELETE", "/import/p"),
            ("GET", "/import/p/filter"),
            ("GET", "/import/p/streams"),
            ("PUT", "/import/p/streams"),
            ("GET", "/import/p/subscription"),
        )
    ],
    put(f"{UNKNOWN_PE}/import/p/filter", 404, "UnknownPE", "a == 1"),
    put(f"{UNKNOWN_PE}/import/p/subscription", 404, "UnknownPE", "a == 1"),
    Case("GET", "/job/feed/pe/x", 404, "UnknownPE"),
    Case("GET", "/job/feed/pe/1", 404, "UnknownPE"),
    Case("GET", f"/job/feed/pe/{'9' * 5000}", 404, "UnknownPE"),
    Case("GET", "/job/Feed/pe/0", 404, "UnknownPE"),
    Case("GET", f"{PE}/export/nope", 404, "UnknownPort"),
    Case("GET", f"{PE}/export/9-x", 404, "UnknownPort"),
    Case("GET", f"{PE}/import/named", 404, "UnknownPort"),
    put(f"{PE}/import/nope/filter", 404, "UnknownPort", "a == 1"),
    put(f"{PE}/export/nope/properties", 404, "UnknownPort", {}),
    Case("GET", f"{NAMED}/properties", 409, "WrongKind"),
    Case("GET", f"{NAMED}/property/a", 409, "WrongKind"),
    put(f"{NAMED}/properties", 409, "WrongKind", {"a": 1}),
    Case("PATCH", f"{NAMED}/properties", 409, "WrongKind", {"a": 1}),
    Case("DELETE", f"{NAMED}/properties", 409, "WrongKind"),
    put(f"{NAMED}/property/a", 409, "WrongKind", 1),
    Case("DELETE", f"{NAMED}/property/a", 409, "WrongKind"),
    put(f"{I}/subscription", 422, "SubscriptionInvalid", "kind =="),
    put(f"{I}/subscription", 422, "ManifestInvalid", 'kind == "\ud800"'),
    put(f"{I}/subscription", 422, "SubscriptionInvalid", "a == 1 " * 400),
    put(f"{I}/streams", 422, "SubscriptionInvalid", {"subscription": "a / 2 == 1"}),
    put(f"{I}/filter", 422, "FilterInvalid", "price >"),
    put(f"{I}/filter", 422, "FilterInvalid", "(" * 200 + "price > 1.0" + ")" * 200),
    put(I, 422, "FilterInvalid", {**IMPORT, "filter": "size > 1", "schema": EXPORT["schema"]}),
    put(I, 422, "SubscriptionInvalid", {"subscription": "= 1"}),
    put(f"{I}/filter", 422, "ManifestInvalid", {"filter": 5}),
    put(f"{I}/filter", 422, "ManifestInvalid", {"filtr": "a"}),
    put(f"{I}/filter", 422, "ManifestInvalid", {}),
    put(f"{I}/filter", 422, "ManifestInvalid", 5),
    put(f"{I}/streams", 422, "ManifestInvalid", ["s"]),
    put(f"{I}/streams", 422, "ManifestInvalid", {"streams": "s"}),
    put(
        f"{I}/streams",
        422,
        "ManifestInvalid",
        {"subscription": "a == 1", "streams": [{"streamId": "s"}]},
    ),
    put(f"{X}/properties", 422, "ManifestInvalid", [1]),
    put(f"{X}/properties", 422, "PropertyInvalid", {"a b": 1}),
    put(f"{X}/properties", 422, "PropertyInvalid", {"a": {"b": 1}}),
    put(f"{X}/properties", 422, "PropertyInvalid", {"a": [None]}),
    put(f"{X}/properties", 422, "PropertyInvalid", {"a": 2**63}),
    put(f"{X}/properties", 422, "PropertyInvalid", {f"n{n}": n for n in range(257)}),
    put(f"{X}/property/a", 422, "PropertyInvalid", None),
    put(f"{X}/property/in", 422, "PropertyInvalid", 1),
    put(f"{X}/property/a%2Fb", 422, "PropertyInvalid", 1),
    put(X, 422, "ManifestInvalid", {}),
    put(X, 422, "ManifestInvalid", {"streamId": "s", "properties": {}}),
    put(X, 422, "ManifestInvalid", {**EXPORT, "port": "other"}),
    put(X, 422, "ManifestInvalid", {**EXPORT, "speed": 1}),
    put(f"{PE}/export/9-x", 422, "ManifestInvalid", EXPORT),
    put("/job/Feed/pe/0/export/x", 422, "ManifestInvalid", EXPORT),
    put("/job/feed/pe/70000", 422, "ManifestInvalid", AGENT),
    put(f"/job/feed/pe/{'9' * 5000}", 422, "ManifestInvalid", AGENT),
    put(PE, 422, "ManifestInvalid", {}),
    put(PE, 422, "ManifestInvalid", {**AGENT, "instance": "xyz"}),
    put(PE, 422, "ManifestInvalid", {**AGENT, "location": "http://h:1"}),
    put(PE, 422, "ManifestInvalid", {**AGENT, "location": "grpc+tcp://h"}),
    put(PE, 422, "ManifestInvalid", {**AGENT, "hint": "h:0"}),
    put(PE, 422, "ManifestInvalid", {**AGENT, "hint": ":1"}),
    put(PE, 422, "ManifestInvalid", {**AGENT, "key": "00"}),
    raw(b"", 400, "NotJson"),
    raw(b"{", 400, "NotJson"),
    raw(b"\xff", 400, "NotJson"),
    raw(b'{"a": 1, "a": 2}', 400, "NotJson"),
    raw(b'{"a": NaN}', 400, "NotJson"),
    raw(b'{"a": ' + b"9" * 5000 + b"}", 400, "NotJson"),
    raw(b"[" * 60_000, 400, "NotJson"),
    raw(b'{"a": 1e999}', 422, "PropertyInvalid"),
    raw(b'{"a": "' + b"x" * 70_000 + b'"}', 413, "BodyTooLarge"),
    raw(b"{}", 415, "NotJson", "application/xml"),
    raw(b"{}", 415, "NotJson", "text/plain"),
    Case("GET", f"{PE}?namespace=A%20B", 400, "QueryInvalid"),
    Case("GET", f"{PE}?wait=soon", 400, "QueryInvalid"),
    Case("GET", "/exports?namespace=**", 400, "QueryInvalid"),
    Case("POST", PE, 405, "MethodNotAllowed", {}),
    Case("DELETE", f"{I}/filter", 405, "MethodNotAllowed"),
    Case("GET", "/nothing", 404, "NotFound"),
    Case("GET", "/job/feed", 404, "NotFound"),
]


@pytest.fixture
async def rest(tmp_path: Path) -> AsyncIterator[Rest]:
    async with running_broker(tmp_path / "broker.db") as (_, client):
        await client("PUT", X, EXPORT)
        await client("PUT", NAMED, {"streamId": "s"})
        await client("PUT", I, IMPORT)
        yield client


async def everything(rest: Rest) -> list[Any]:
    paths = ("/exports", "/imports", "/pes", "/routes")
    return [(await rest("GET", path)).body for path in paths]


def assert_problem(answer: Answer, status: int, code: str) -> None:
    assert (answer.status, answer.code) == (status, code), answer.body
    assert answer.headers["Content-Type"].startswith("application/problem+json")
    assert answer.body["status"] == status
    assert answer.body["type"].endswith(code)
    assert answer.body["detail"].endswith((".", "?")), answer.body["detail"]


async def test_each_bad_request_gets_its_problem_and_changes_nothing(rest: Rest) -> None:
    before = await everything(rest)
    for case in CASES:
        answer = await rest(
            case.method, case.path, case.body, data=case.data, Content_Type=case.content_type
        )
        assert_problem(answer, case.status, case.code)

    assert await everything(rest) == before


async def test_a_bad_expression_is_shown_with_its_place(rest: Rest) -> None:
    answer = await rest("PUT", f"{I}/subscription", 'kind == "a" &&\n  && true')

    assert answer.body["position"] == {"line": 2, "column": 3, "offset": 17}
    assert answer.body["found"]
    assert answer.body["expected"]


async def test_bad_json_is_shown_with_its_place(rest: Rest) -> None:
    answer = await rest("PUT", f"{X}/properties", data=b'{\n "a": }')

    assert answer.body["position"]["line"] == 2


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
PATHS = (X, f"{X}/properties", f"{X}/property/a", I, f"{I}/filter", f"{I}/streams", PE)


@settings(
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(path=st.sampled_from(PATHS), body=json_values)
async def test_no_body_makes_the_broker_fail(rest: Rest, path: str, body: Any) -> None:
    answer = await rest("PUT", path, body)

    assert answer.status < 500, answer.body


@settings(
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(path=st.sampled_from(PATHS), data=st.binary(max_size=60))
async def test_no_bytes_make_the_broker_fail(rest: Rest, path: str, data: bytes) -> None:
    answer = await rest("PUT", path, data=data)

    assert answer.status < 500, answer.body


async def test_a_broker_that_has_not_read_everything_answers_no_views(tmp_path: Path) -> None:
    store, sender = Store(tmp_path / "broker.db"), HintSender()
    runner = web.AppRunner(create_app(Runtime(store, sender)))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with aiohttp.ClientSession() as session:
        answer = await Rest(url, session)("GET", PE)
    await runner.cleanup()
    store.close()

    assert_problem(answer, 503, "NotSynced")
    assert answer.headers["Retry-After"] == "1"
