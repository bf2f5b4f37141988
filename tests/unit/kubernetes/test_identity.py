"""The cluster says who calls; its answers are kept for a while, and no answer is no refusal."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from streambroker_core.wire.broker import request_signature as signature
from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes.auth.rbac import AccessRequest, Caller
from streambroker_operator.kubernetes.auth.token_review import (
    FAILURE_TTL_S,
    LEEWAY_S,
    MAX_TOKEN,
    REVIEW_TTL_S,
    STALE_READ_S,
    Authenticator,
    ReviewClient,
    read_review,
    token_expiry,
)
from streambroker_operator.kubernetes.client.http_api import Answer, ApiUnreachableError
from support.core.resources import pe
from support.kubernetes.fake_server import Call, FakeApi
from support.kubernetes.jwts import jwt
from support.virtual.loop import run

USER = {
    "username": "system:serviceaccount:jobs:spark",
    "uid": "u1",
    "groups": ["system:serviceaccounts"],
    "extra": {
        "authentication.kubernetes.io/pod-name": ["driver"],
        "authentication.kubernetes.io/pod-uid": ["p1"],
    },
}
GOOD: Any = {"status": {"authenticated": True, "audiences": ["streambroker"], "user": USER}}
BAD: Any = {"status": {"error": "invalid bearer token"}}
FILTER = AccessRequest(verb="patch", resource="imports", subresource="filter")
IMPORTS = AccessRequest(verb="patch", resource="imports")
ANN = Caller(user="ann", groups=("dev",))


class Bench:
    """Reviews before an API server that answers by token or by what is asked."""

    def __init__(self, answer: Callable[[Call], Answer], delay_s: float = 0.0) -> None:
        self.api = FakeApi(answer, delay_s)
        self.reviews = ReviewClient(
            self.api, clock=lambda: asyncio.get_running_loop().time(), wall=lambda: 1000.0
        )

    async def refused(self, token: str) -> RequestError:
        with pytest.raises(RequestError) as raised:
            await self.reviews.review_token(token)
        return raised.value


def good(call: Call) -> Answer:
    return Answer(status=201, body=GOOD)


def test_a_pods_token_tells_account_and_pod() -> None:
    bench = Bench(good)
    caller = run(bench.reviews.review_token(jwt()))

    assert (caller.namespace, caller.account) == ("jobs", "spark")
    assert (caller.pod, caller.pod_uid) == ("driver", "p1")
    assert caller.is_pod
    assert bench.api.calls[0].body["spec"]["audiences"] == ["streambroker"]


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"authenticated": False},
        {**GOOD["status"], "authenticated": "true"},
        {**GOOD["status"], "audiences": []},
        {**GOOD["status"], "audiences": ["https://kubernetes.default.svc"]},
        {"authenticated": True, "user": USER},
        {**GOOD["status"], "error": "half"},
        {**GOOD["status"], "user": {}},
    ],
)
def test_what_is_not_wholly_good_is_nobody(status: dict[str, Any]) -> None:
    assert read_review({"status": status}, "streambroker") is None


def test_an_answer_is_kept_for_ten_seconds_at_most() -> None:
    bench = Bench(good)

    async def main() -> list[int]:
        asked = []
        for _ in range(3):
            await bench.reviews.review_token(jwt(exp=9999))
            asked.append(len(bench.api.calls))
            await asyncio.sleep(REVIEW_TTL_S / 2 + 0.1)
        return asked

    assert run(main()) == [1, 1, 2]


def test_an_answer_is_not_kept_longer_than_the_token_holds() -> None:
    bench = Bench(good)

    async def main() -> int:
        await bench.reviews.review_token(jwt(exp=1003))
        await asyncio.sleep(3.1)
        await bench.reviews.review_token(jwt(exp=1003))
        return len(bench.api.calls)

    assert run(main()) == 2


def test_a_refusal_is_kept_for_two_seconds() -> None:
    bench = Bench(lambda call: Answer(status=201, body=BAD))

    async def main() -> list[int]:
        asked = []
        for _ in range(3):
            error = await bench.refused(jwt(sub="nobody"))
            assert (error.status, error.code) == (401, "TokenWrong")
            asked.append(len(bench.api.calls))
            await asyncio.sleep(FAILURE_TTL_S / 2 + 0.1)
        return asked

    assert run(main()) == [1, 1, 2]


def test_many_who_show_the_same_token_cost_one_review() -> None:
    bench = Bench(good, delay_s=0.5)

    async def main() -> None:
        found = await asyncio.gather(*(bench.reviews.review_token(jwt()) for _ in range(50)))
        assert len(set(map(id, found))) == 1

    run(main())

    assert len(bench.api.calls) == 1


def test_who_goes_away_takes_the_review_from_nobody() -> None:
    bench = Bench(good, delay_s=0.5)

    async def main() -> Caller:
        first = asyncio.ensure_future(bench.reviews.review_token(jwt()))
        second = asyncio.ensure_future(bench.reviews.review_token(jwt()))
        await asyncio.sleep(0.1)
        first.cancel()
        return await second

    assert run(main()).account == "spark"
    assert len(bench.api.calls) == 1


def away(call: Call) -> Answer:
    raise ApiUnreachableError("connection refused")


@pytest.mark.parametrize(
    "answer",
    [
        away,
        lambda call: Answer(status=500),
        lambda call: Answer(status=403),
        lambda call: Answer(status=429, retry_after_s=4.0),
    ],
)
def test_a_review_that_fails_is_503_and_is_not_kept(answer: Callable[[Call], Answer]) -> None:
    bench = Bench(answer)

    async def main() -> RequestError:
        await bench.refused(jwt())
        error = await bench.refused(jwt())
        bench.api.handler = good
        await bench.reviews.review_token(jwt())
        return error

    error = run(main())
    assert (error.status, error.code) == (503, "ReviewFailed")
    assert int(error.headers["Retry-After"]) >= 1
    assert len(bench.api.calls) == 3
    assert bench.reviews.counts == {("token", "failed"): 2, ("token", "allowed"): 1}


def test_callers_that_are_known_need_no_server_for_a_while() -> None:
    bench = Bench(good)

    async def main() -> Caller:
        await bench.reviews.review_token(jwt())
        bench.api.handler = away
        await asyncio.sleep(9)
        return await bench.reviews.review_token(jwt())

    assert run(main()).account == "spark"


def coded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "token",
    [
        f"{jwt()}{'x' * MAX_TOKEN}",
        f"{jwt()}é",
        "",
        "nonsense",
        "a.b",
        "a.b.c",
        "..",
        "a.W10.c",
        f"{jwt()}.c2ln",
        jwt().rpartition(".")[0] + ".",
        f"a.{coded('[' * 5_000)}.c",
        f"a.{coded('{}')}.c",
        jwt(aud=["https://kubernetes.default.svc"]),
        jwt(aud="streambroker2"),
        jwt(aud=None),
        jwt(aud={"streambroker": 1}),
        jwt(exp=1000 - LEEWAY_S - 1),
    ],
)
def test_what_cannot_be_a_token_is_refused_without_a_review(token: str) -> None:
    bench = Bench(good)

    assert run(bench.refused(token)).status == 401
    assert bench.api.calls == []


@pytest.mark.parametrize(
    "token",
    [
        jwt(),
        jwt(aud="streambroker"),
        jwt(aud=["another", "streambroker"]),
        jwt(exp=1000 - LEEWAY_S + 1),
        jwt(exp="soon"),
        jwt(exp=10**400),
    ],
)
def test_what_may_be_a_token_is_let_in_by_the_api_server_alone(token: str) -> None:
    bench = Bench(lambda call: Answer(status=201, body=BAD))

    assert run(bench.refused(token)).status == 401
    assert len(bench.api.calls) == 1


def test_only_a_token_that_was_never_good_is_reported_before_its_review() -> None:
    bench = Bench(good)
    reported: list[str] = []

    async def show(token: str) -> None:
        await bench.reviews.review_token(token, lambda: reported.append(token))
        await asyncio.sleep(REVIEW_TTL_S + 1)

    async def main() -> None:
        for _ in range(3):
            await show(jwt(sub="a"))
        bench.api.handler = lambda call: Answer(status=201, body=BAD)
        for _ in range(3):
            with pytest.raises(RequestError):
                await show(jwt(sub="a"))
            await asyncio.sleep(REVIEW_TTL_S + 1)

    run(main())

    assert len(bench.api.calls) == 4 + 2
    assert reported == [jwt(sub="a")] * 3


def test_what_stops_a_review_is_no_answer_and_is_not_kept() -> None:
    bench = Bench(good)

    def stop() -> None:
        raise RequestError(429, "TooManyRequests", "Later.")

    async def main() -> Caller:
        with pytest.raises(RequestError, match="Later"):
            await bench.reviews.review_token(jwt(), stop)
        assert bench.api.calls == []
        return await bench.reviews.review_token(jwt())

    assert run(main()).account == "spark"


def test_no_refusal_shows_the_token() -> None:
    bench = Bench(lambda call: Answer(status=201, body=BAD))

    for token in ("secret.secret.secret", f"{jwt()}secret"):
        assert "secret" not in str(run(bench.refused(token)))
    assert len(bench.api.calls) == 1


@pytest.mark.parametrize(
    "token", ["", "a.b", "a.b.c", jwt(), jwt(exp="soon"), jwt(exp=10**400), "a.W10.c"]
)
def test_a_token_that_does_not_say_when_it_ends_says_nothing(token: str) -> None:
    assert token_expiry(token) is None


# ---- what they may do --------------------------------------------------------


def rbac(*granted: AccessRequest) -> Callable[[Call], Answer]:
    def answer(call: Call) -> Answer:
        reported = call.body["spec"]["resourceAttributes"]
        ask = AccessRequest(
            verb=reported["verb"],
            resource=reported["resource"],
            subresource=reported.get("subresource", ""),
        )
        return Answer(status=201, body={"status": {"allowed": ask in granted}})

    return answer


async def may(bench: Bench, namespace: str = "jobs") -> bool:
    try:
        await bench.reviews.check_access(ANN, ((FILTER, IMPORTS),), namespace)
    except RequestError as error:
        if (error.status, error.code) != (403, "NotYours"):
            raise
        return False
    return True


def test_a_refusal_names_the_rights_that_would_do() -> None:
    bench = Bench(rbac())

    with pytest.raises(RequestError, match="`patch imports/filter` or `patch imports` of jobs"):
        run(bench.reviews.check_access(ANN, ((FILTER, IMPORTS),), "jobs"))


@pytest.mark.parametrize(
    ("granted", "allowed", "asked"), [((FILTER,), True, 1), ((IMPORTS,), True, 2), ((), False, 2)]
)
def test_the_part_is_asked_for_first_and_then_the_whole(
    granted: tuple[AccessRequest, ...], allowed: bool, asked: int
) -> None:
    bench = Bench(rbac(*granted))

    assert run(may(bench)) is allowed
    assert len(bench.api.calls) == asked
    assert sum(bench.reviews.counts.values()) == asked
    assert bench.reviews.counts["access", "allowed"] == allowed


def test_grants_are_kept_by_who_what_and_where() -> None:
    bench = Bench(rbac(FILTER))

    async def main() -> list[int]:
        asked = []
        for namespace, pause in [
            ("jobs", 0.0),
            ("jobs", 0.0),
            ("other", REVIEW_TTL_S),
            ("jobs", 0.0),
        ]:
            await may(bench, namespace)
            asked.append(len(bench.api.calls))
            await asyncio.sleep(pause)
        return asked

    assert run(main()) == [1, 1, 2, 3]


def test_everywhere_is_asked_without_a_namespace() -> None:
    bench = Bench(rbac(FILTER))
    run(may(bench, "*"))

    assert "namespace" not in bench.api.calls[0].body["spec"]["resourceAttributes"]


# ---- signed requests ---------------------------------------------------------

AGENT, INSTANCE, KEY = pe("jobs/alerts/0"), "0123456789abcdef", b"k" * 32
PATH = "/api/subscriptions/job/alerts/pe/0/import/in/filter?namespace=jobs"


def signed(
    time_us: int = 1_000_000_000, *, body: bytes = b"{}", method: str = "PUT", key: bytes = KEY
) -> str:
    return signature.sign(
        key,
        agent=AGENT,
        instance=INSTANCE,
        method=method,
        path=PATH,
        body=body,
        time_us=time_us,
    )


class Door:
    def __init__(self) -> None:
        self.api = FakeApi(away)
        self.identities = Authenticator(
            ReviewClient(self.api),
            key_for=lambda pe, instance: KEY if (pe, instance) == (AGENT, INSTANCE) else None,
            account_for=lambda namespace, job: "spark",
            wall=lambda: 1000.0,
        )

    def caller(self, *headers: str, method: str = "PUT", body: bytes = b"{}") -> Caller:
        async def reported() -> bytes:
            return body

        return run(self.identities.authenticate(headers, method=method, path=PATH, body=reported))

    def refusal(self, *headers: str, **more: Any) -> RequestError:
        with pytest.raises(RequestError) as raised:
            self.caller(*headers, **more)
        assert raised.value.status == 401
        return raised.value


def test_an_agent_that_signs_is_known_while_the_api_server_is_away() -> None:
    door = Door()
    caller = door.caller(signed())

    assert caller.agent == AGENT
    assert caller.user == "system:serviceaccount:jobs:spark"
    assert door.api.calls == []


def test_a_signed_change_is_taken_once() -> None:
    door = Door()
    door.caller(signed())

    assert "repeated" in str(door.refusal(signed()))
    door.caller(signed(1_000_000_001))


def test_a_signed_read_may_be_repeated() -> None:
    door = Door()
    for _ in range(2):
        door.caller(signed(method="GET", body=b""), method="GET", body=b"")


@pytest.mark.parametrize(
    ("header", "more"),
    [
        (signed(key=b"x" * 32), {}),
        (signed(), {"body": b"other"}),
        (signed(), {"method": "DELETE"}),
        (signed(1), {}),
        (signed().replace("alerts", "others"), {}),
        (signed().replace(INSTANCE, "f" * 16), {}),
        ("Streambroker-Agent nonsense", {}),
    ],
)
def test_a_wrong_signature_is_refused(header: str, more: dict[str, Any]) -> None:
    assert Door().refusal(header, **more).code == "SignatureInvalid"


@pytest.mark.parametrize("headers", [(), ("Basic abc",), ("Bearer ",), ("Bearer a", "Bearer b")])
def test_who_shows_nothing_learns_what_is_wanted(headers: tuple[str, ...]) -> None:
    error = Door().refusal(*headers)

    assert error.code == "TokenMissing"
    assert "Bearer" in error.headers["WWW-Authenticate"]


class Outage:
    """Answers well until it is away."""

    def __init__(self) -> None:
        self.away = False

    def __call__(self, call: Call) -> Answer:
        if self.away:
            raise ApiUnreachableError("connection refused")
        spec = call.body["spec"]
        if "token" in spec:
            return good(call)
        allowed = spec["resourceAttributes"]["resource"] == "imports"
        return Answer(status=201, body={"status": {"allowed": allowed}})


def test_while_nobody_can_say_reads_go_by_the_last_good_answer_and_changes_do_not() -> None:
    outage = Outage()
    bench = Bench(outage)
    read = (AccessRequest(verb="get", resource="imports"),)
    other = (AccessRequest(verb="get", resource="exports"),)

    async def status(work: Awaitable[Any]) -> int:
        try:
            await work
        except RequestError as error:
            return error.status
        return 200

    async def main() -> list[int]:
        token = jwt(exp=1000 + 2 * STALE_READ_S)
        await bench.reviews.review_token(token)
        await bench.reviews.check_access(ANN, (read,), "jobs")
        assert await status(bench.reviews.check_access(ANN, (other,), "jobs")) == 403
        outage.away = True
        await asyncio.sleep(2 * REVIEW_TTL_S)
        asked = [
            bench.reviews.review_token(token, reading=True),
            bench.reviews.review_token(token),
            bench.reviews.review_token(jwt(exp=9999), reading=True),
            bench.reviews.check_access(ANN, (read,), "jobs", reading=True),
            bench.reviews.check_access(ANN, (read,), "jobs"),
            bench.reviews.check_access(ANN, (other,), "jobs", reading=True),
        ]
        found = [await status(one) for one in asked]
        await asyncio.sleep(STALE_READ_S)
        late = (
            bench.reviews.review_token(token, reading=True),
            bench.reviews.check_access(ANN, (read,), "jobs", reading=True),
        )
        return found + [await status(one) for one in late]

    assert run(main()) == [200, 503, 503, 200, 503, 503, 503, 503]
