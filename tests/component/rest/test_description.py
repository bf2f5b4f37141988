"""The description of the interface, and whether the broker is as it says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import pytest
from openapi_spec_validator import validate

from streambroker_operator.agents.hint_sender import HintSender
from streambroker_operator.rest.app import create_app
from streambroker_operator.rest.http.openapi import description
from streambroker_operator.runtime.runtime import Runtime
from streambroker_operator.storage.sqlite_store import Store
from support.brokers.brokers import EXPORT, Rest, running_broker
from support.brokers.conformance import assert_conforms

METHODS = {"get", "put", "patch", "post", "delete"}
X = "/api/subscriptions/job/feed/pe/0/export/trades"
PROBLEM = {"Content-Type": "application/problem+json"}
JSON = {"Content-Type": "application/json", "ETag": '"a"'}


def test_the_description_is_openapi() -> None:
    validate(description())


def test_every_path_and_method_is_described_and_no_other(tmp_path: Path) -> None:
    store = Store(tmp_path / "broker.db")
    app = create_app(Runtime(store, HintSender()))
    served = {
        (resource.canonical, route.method.lower())
        for resource in app.router.resources()
        for route in resource
        if route.method not in ("HEAD", "*")
    }
    store.close()
    described = {
        (path, method)
        for path, item in description()["paths"].items()
        for method in METHODS & item.keys()
    }

    assert served == described


def test_every_operation_has_a_name_of_its_own() -> None:
    names = [
        item[method]["operationId"]
        for item in description()["paths"].values()
        for method in METHODS & item.keys()
    ]

    assert len(set(names)) == len(names) > 20


def test_every_schema_is_used() -> None:
    text = str(description())
    for name in description()["components"]["schemas"]:
        assert f"#/components/schemas/{name}'" in text, name


def test_every_problem_that_is_documented_is_described() -> None:
    table = Path(__file__).parents[3] / "docs/rest.md"
    section = table.read_text().partition("\n## Problems\n")[2].partition("\n## ")[0]
    answers = description()["components"]["responses"]
    described = {word for one in answers.values() for word in one["description"].split()}
    words = {word.strip(".,:") for word in described}
    rows = re.findall(r"^\| (\d+) \| ([^|]*) \|", section, re.MULTILINE)
    reported = {code for _, cell in rows for code in re.findall(r"`([A-Z]\w+)`", cell)}

    assert len(reported) > 15
    assert reported - words <= {"MethodNotAllowed"}


async def test_the_description_is_served(rest: Rest) -> None:
    url = f"{rest.url}/api/openapi.json"
    async with aiohttp.ClientSession() as session:
        async with session.get(url) as answer:
            found, etag = await answer.json(), answer.headers["ETag"]
        async with session.get(url, headers={"If-None-Match": etag}) as again:
            assert again.status == 304

    assert found == description()


@pytest.mark.parametrize(
    ("method", "path", "status", "headers", "body"),
    [
        ("GET", X, 500, PROBLEM, b"{}"),
        ("GET", X, 404, PROBLEM, b'{"code": "UnknownPort"}'),
        ("GET", X, 404, {"Content-Type": "text/plain"}, b"nothing there"),
        ("GET", f"{X}/properties", 200, {"Content-Type": "application/json"}, b"{}"),
        ("GET", f"{X}/properties", 200, JSON, b'{"a": [1, "b"]}'),
        ("GET", f"{X}/properties", 200, JSON, b"[]"),
        ("GET", "/api/subscriptions/nothing", 200, JSON, b"{}"),
        ("POST", X, 200, JSON, b"{}"),
        ("HEAD", X, 200, JSON, b"{}"),
    ],
)
def test_an_answer_that_is_not_as_described_is_found(
    method: str, path: str, status: int, headers: Mapping[str, str], body: bytes
) -> None:
    with pytest.raises(AssertionError):
        assert_conforms(method, path, status, headers, body)


async def test_the_broker_describes_itself_before_it_knows_anything(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "broker.db") as (_, client):
        await client("PUT", X.removeprefix("/api/subscriptions"), EXPORT)
        async with (
            aiohttp.ClientSession() as session,
            session.options(f"{client.url}/api/openapi.json") as answer,
        ):
            assert (answer.status, answer.headers["Allow"]) == (204, "GET, HEAD, OPTIONS")
