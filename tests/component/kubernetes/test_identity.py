"""Who calls and what they may do, by the answers of a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes.auth.rbac import AccessRequest, AccessRequests, Caller, judge
from streambroker_operator.kubernetes.auth.token_review import ReviewClient
from streambroker_operator.kubernetes.client.http_api import HttpApi
from support.clusters.api_server import ApiServer
from support.clusters.calls import calls_of, grant, make_account, make_pod, token_of
from support.core.resources import pe
from support.kubernetes.jwts import jwt

FILTER = AccessRequest(verb="patch", resource="imports", subresource="filter")
PE = "/api/subscriptions/job/{job}/pe/{pe}"
STREAMS = "streambroker.io"
ROLES = "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/"


@pytest.fixture
async def calls(api: ApiServer) -> AsyncIterator[HttpApi]:
    async with calls_of(api) as found:
        yield found


@pytest.fixture
def account(api: ApiServer, namespace: str) -> str:
    make_account(api, namespace, "spark")
    return "spark"


@pytest.fixture
def pod(api: ApiServer, namespace: str, account: str) -> dict[str, str]:
    return make_pod(api, namespace, "driver", account)


async def refusal(calls: HttpApi, token: str) -> RequestError:
    with pytest.raises(RequestError) as raised:
        await ReviewClient(calls).review_token(token)
    return raised.value


async def test_a_token_bound_to_a_pod_tells_the_pod(
    api: ApiServer, namespace: str, calls: HttpApi, pod: dict[str, str]
) -> None:
    caller = await ReviewClient(calls).review_token(token_of(api, namespace, "spark", pod=pod))

    assert (caller.namespace, caller.account) == (namespace, "spark")
    assert (caller.pod, caller.pod_uid) == (pod["name"], pod["uid"])
    assert caller.is_pod


async def test_a_token_of_an_account_alone_registers_no_agent(
    api: ApiServer, namespace: str, calls: HttpApi, account: str
) -> None:
    caller = await ReviewClient(calls).review_token(token_of(api, namespace, account))

    verdict = judge(caller, method="PUT", path=PE, pe=pe(f"{namespace}/alerts/0"))
    assert not caller.is_pod
    assert not verdict.allowed
    assert "bound to its pod" in verdict.reason


async def test_a_token_that_was_made_for_somebody_else_is_nobodys(
    api: ApiServer, namespace: str, calls: HttpApi, pod: dict[str, str]
) -> None:
    other = token_of(api, namespace, "spark", pod=pod, audiences=("another",))
    default = token_of(
        api, namespace, "spark", pod=pod, audiences=("https://kubernetes.default.svc",)
    )

    for token in (other, default, api.tokens["admin"], "nonsense"):
        error = await refusal(calls, token)
        assert (error.status, error.code) == (401, "TokenWrong")


async def test_a_token_for_the_broker_is_no_good_at_the_api_server(
    api: ApiServer, namespace: str, pod: dict[str, str]
) -> None:
    token = token_of(api, namespace, "spark", pod=pod)

    assert api.request("GET", "/api/v1/namespaces", token=token).status == 401


async def test_a_token_for_two_is_good_for_the_broker(
    api: ApiServer, namespace: str, calls: HttpApi, pod: dict[str, str]
) -> None:
    token = token_of(api, namespace, "spark", pod=pod, audiences=("another", "streambroker"))

    assert (await ReviewClient(calls).review_token(token)).account == "spark"


async def test_the_token_of_a_deleted_pod_is_refused_once_the_api_server_knows(
    api: ApiServer, namespace: str, calls: HttpApi, pod: dict[str, str]
) -> None:
    token = token_of(api, namespace, "spark", pod=pod)
    await ReviewClient(calls).review_token(token)
    api.request(
        "DELETE",
        f"/api/v1/namespaces/{namespace}/pods/driver",
        {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0},
    )
    loop = asyncio.get_running_loop()
    deadline, status = loop.time() + 15, 200
    while status == 200 and loop.time() < deadline:
        try:
            await ReviewClient(calls).review_token(token)
        except RequestError as error:
            status = error.status
        await asyncio.sleep(0.5)
    assert status == 401


async def may(
    calls: HttpApi, caller: Caller, asks: AccessRequests, namespace: str, name: str = ""
) -> bool:
    try:
        await ReviewClient(calls).check_access(caller, asks, namespace, name)
    except RequestError as error:
        if error.status != 403:
            raise
        return False
    return True


@pytest.mark.parametrize(
    ("granted", "filter_", "whole"),
    [
        ((STREAMS, "imports/filter", "patch"), True, False),
        ((STREAMS, "imports", "patch"), True, True),
        ((STREAMS, "imports", "*"), True, True),
        ((STREAMS, "imports/streams", "patch"), False, False),
        ((STREAMS, "exports", "patch"), False, False),
        (("", "imports", "patch"), False, False),
    ],
)
async def test_the_clusters_rules_say_who_may_set_a_filter(
    api: ApiServer,
    namespace: str,
    calls: HttpApi,
    granted: tuple[str, str, str],
    filter_: bool,
    whole: bool,
) -> None:
    grant(api, "filters", "viewer", granted)
    caller = Caller(user="viewer")
    where = pe(f"{namespace}/alerts/0")
    part = judge(caller, method="PUT", path=PE + "/import/{port}/filter", pe=where)
    all_ = judge(caller, method="PATCH", path=PE + "/import/{port}", pe=where)

    assert await may(calls, caller, part.requests, namespace) is filter_
    assert await may(calls, caller, all_.requests, namespace) is whole


def bind(api: ApiServer, namespace: str, account: str, **more: list[str]) -> None:
    """Let an account patch filters in its namespace, within what else its Role says."""
    meta = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "filters"}}
    rule = {"apiGroups": [STREAMS], "resources": ["imports/filter"], "verbs": ["patch"]}
    role = {**meta, "kind": "Role", "rules": [{**rule, **more}]}
    binding = {
        **meta,
        "kind": "RoleBinding",
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "filters"},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }
    for plural, body in (("roles", role), ("rolebindings", binding)):
        assert api.request("POST", ROLES.format(namespace) + plural, body).status == 201


async def test_a_right_in_one_namespace_is_none_in_another(
    api: ApiServer, namespace: str, calls: HttpApi, account: str
) -> None:
    bind(api, namespace, account)
    caller = await ReviewClient(calls).review_token(token_of(api, namespace, account))

    assert await may(calls, caller, ((FILTER,),), namespace)
    assert not await may(calls, caller, ((FILTER,),), "default")
    assert not await may(calls, caller, ((FILTER,),), "*")


async def test_a_role_may_name_the_resources_it_is_about(
    api: ApiServer, namespace: str, calls: HttpApi, account: str
) -> None:
    bind(api, namespace, account, resourceNames=["alerts-0-in"])
    caller = await ReviewClient(calls).review_token(token_of(api, namespace, account))

    assert await may(calls, caller, ((FILTER,),), namespace, "alerts-0-in")
    assert not await may(calls, caller, ((FILTER,),), namespace, "others-0-in")
    assert not await may(calls, caller, ((FILTER,),), namespace)


async def test_no_api_server_is_503_and_no_refusal(own_api: ApiServer) -> None:
    async with calls_of(own_api) as calls:
        reviews = ReviewClient(calls)
        own_api.stop()
        with pytest.raises(RequestError) as raised:
            await reviews.review_token(jwt())

    assert (raised.value.status, raised.value.code) == (503, "ReviewFailed")
