"""Query parameters that a path does not take: refused, and nothing is done."""

from __future__ import annotations

import pytest

from support.brokers.brokers import EXPORT, IMPORT, Rest

X = "/job/feed/pe/0/export/trades"
I = "/job/alerts/pe/0/import/trades"  # noqa: E741


@pytest.fixture
def rest(pair: Rest) -> Rest:
    return pair


@pytest.mark.parametrize(
    ("method", "path", "said"),
    [
        ("DELETE", X + "/properties?nmae=kind", "Did you mean name?"),
        ("DELETE", X + "?dryRun=All", "'dryRun' is not known here"),
        ("PUT", I + "/filter?namespac=lab", "Did you mean namespace?"),
        ("GET", "/exports?limt=3", "Did you mean limit?"),
        ("HEAD", "/exports?limt=3", ""),
        ("DELETE", X + "?namespace=default&namespace=lab", "is repeated"),
        ("GET", "/job/feed/pe/0?wait=1s&wait=2s", "is repeated"),
    ],
)
async def test_a_parameter_that_is_not_taken_is_refused(
    rest: Rest, method: str, path: str, said: str
) -> None:
    body = {"filter": "price > 1.0"} if method == "PUT" else None
    refused = await rest(method, path, body)
    kept = await rest("GET", X + "/properties")
    wanted = await rest("GET", I + "/filter")

    assert refused.status == 400
    if method != "HEAD":
        assert refused.body["code"] == "QueryInvalid"
        assert said in refused.body["detail"]
    assert kept.body == EXPORT["properties"]
    assert wanted.body == {"filter": IMPORT["filter"]}


async def test_a_parameter_that_may_be_repeated_is_taken_each_time(rest: Rest) -> None:
    await rest("PUT", X + "/properties", {"a": 1, "b": 2, "c": 3})
    done = await rest("DELETE", X + "/properties?name=a&name=b")

    assert done.status == 200
    assert (await rest("GET", X + "/properties")).body == {"c": 3}
