"""The gate: who comes through as themselves, who by the cluster's rules, and who does not."""

from __future__ import annotations

from typing import Any

import pytest

from streambroker_core.model import PeKey
from streambroker_core.wire.broker import request_signature as signature
from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes.auth.authorize import authorise
from streambroker_operator.kubernetes.auth.rbac import Verdict
from streambroker_operator.kubernetes.auth.token_review import Authenticator, ReviewClient
from streambroker_operator.kubernetes.client.http_api import Answer, ApiUnreachableError
from support.core.resources import pe
from support.kubernetes.fake_server import Call, FakeApi
from support.kubernetes.jwts import claims_of, jwt
from support.virtual.loop import run

PE = "/api/subscriptions/job/{job}/pe/{pe}"
FILTER = PE + "/import/{port}/filter"
AGENT, INSTANCE, KEY = pe("jobs/alerts/0"), "0123456789abcdef", b"k" * 32
POD, ANN = jwt(sub="pod"), jwt(sub="ann")
TARGET = "/api/subscriptions/job/alerts/pe/0?namespace=jobs"


class Bench:
    """A gate before a cluster that knows tokens `pod` and `ann`, and grants what a test says."""

    def __init__(self, *granted: str, account: str | None = "spark") -> None:
        self.granted = granted
        self.away = False
        self.api = FakeApi(self.answer)
        self.reviews = ReviewClient(self.api)
        self.account = account
        self.identities = Authenticator(
            self.reviews,
            key_for=lambda pe, instance: KEY if (pe, instance) == (AGENT, INSTANCE) else None,
            account_for=self.account_of,
            wall=lambda: 1000.0,
        )

    def account_of(self, namespace: str, job: str) -> str | None:
        return self.account

    def answer(self, call: Call) -> Answer:
        if self.away:
            raise ApiUnreachableError("connection refused")
        spec = call.body["spec"]
        if "token" not in spec:
            reported = spec["resourceAttributes"]
            ask = f"{reported['verb']} {reported['resource']}"
            part = reported.get("subresource")
            allowed = (f"{ask}/{part}" if part else ask) in self.granted
            return Answer(status=201, body={"status": {"allowed": allowed}})
        users: dict[str, Any] = {
            "ann": {"username": "ann"},
            "pod": {
                "username": "system:serviceaccount:jobs:spark",
                "extra": {
                    "authentication.kubernetes.io/pod-name": ["driver"],
                    "authentication.kubernetes.io/pod-uid": ["p1"],
                },
            },
        }
        status = {
            "authenticated": True,
            "audiences": ["streambroker"],
            "user": users[claims_of(spec["token"])["sub"]],
        }
        return Answer(status=201, body={"status": status})

    def admit(
        self,
        header: str,
        method: str,
        path: str,
        *,
        where: PeKey | None = AGENT,
        more: str = "",
    ) -> Verdict:
        async def body() -> bytes:
            return b""

        async def through() -> Verdict:
            self.caller = await self.identities.authenticate(
                [header], method=method, path=TARGET + more, body=body
            )
            return await authorise(
                self.reviews,
                self.caller,
                method=method,
                target=TARGET + more,
                path=path,
                namespace="jobs",
                pe=where,
                bound=None if where is None else self.account,
            )

        return run(through())

    def refusal(self, *request: str, more: str = "") -> RequestError:
        with pytest.raises(RequestError) as raised:
            self.admit(*request, more=more)
        return raised.value


def signed(method: str) -> str:
    return signature.sign(
        KEY,
        agent=AGENT,
        instance=INSTANCE,
        method=method,
        path=TARGET,
        body=b"",
        time_us=1_000_000_000,
    )


def test_a_job_comes_to_its_own_ports_without_a_question_about_its_rights() -> None:
    bench = Bench()
    admitted = bench.admit(f"Bearer {POD}", "PUT", FILTER)

    assert admitted.is_own_job
    assert len(bench.api.calls) == 1


def test_the_first_registration_says_what_the_job_is_fixed_to() -> None:
    assert Bench(account=None).admit(f"Bearer {POD}", "PUT", PE).bound_account == "spark"
    assert Bench().admit(f"Bearer {POD}", "PUT", PE).bound_account is None


def test_a_person_comes_by_the_clusters_rules_and_not_as_the_job() -> None:
    bench = Bench("patch imports")
    admitted = bench.admit(f"Bearer {ANN}", "PUT", FILTER)

    assert bench.caller.user == "ann"
    assert not admitted.is_own_job


def test_who_has_no_right_is_refused_and_learns_which_would_do() -> None:
    error = Bench().refusal(f"Bearer {ANN}", "PUT", FILTER)

    assert (error.status, error.code) == (403, "NotYours")
    assert "patch imports/filter" in str(error)


def test_every_group_of_rights_is_needed() -> None:
    request = (f"Bearer {ANN}", "PUT", PE + "/export/{port}")

    assert Bench("create exports").refusal(*request).status == 403
    assert Bench("create exports", "patch exports").admit(*request) == Verdict(allowed=True)


def test_nobody_takes_a_job_over_by_registering() -> None:
    bench = Bench("patch imports", "patch exports", account="other")

    assert "belongs to the service account other" in str(bench.refusal(f"Bearer {POD}", "PUT", PE))
    assert bench.refusal(f"Bearer {ANN}", "PUT", PE).status == 403


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_an_agent_that_signs_comes_through_while_the_api_server_is_away(method: str) -> None:
    bench = Bench()
    bench.away = True

    assert bench.admit(signed(method), method, PE).is_own_job
    assert bench.api.calls == []


def test_others_have_to_wait_for_the_api_server() -> None:
    bench = Bench()
    bench.away = True

    assert bench.refusal(f"Bearer {POD}", "PUT", PE).status == 503


def test_an_agent_that_signs_is_asked_of_the_cluster_for_what_is_not_its_own() -> None:
    bench = Bench("list exports", "list imports")
    admitted = bench.admit(signed("GET"), "GET", "/api/subscriptions/routes", where=None)

    assert not admitted.is_own_job
    assert bench.api.calls[0].body["spec"]["user"] == "system:serviceaccount:jobs:spark"


def test_to_ask_which_methods_there_are_makes_nobody_the_job() -> None:
    assert not Bench().admit(f"Bearer {ANN}", "OPTIONS", PE).is_own_job


def test_a_path_that_nobody_has_thought_of_is_shut() -> None:
    assert Bench("patch imports").refusal(f"Bearer {ANN}", "POST", PE + "/new").status == 403


@pytest.mark.parametrize(("token", "granted"), [(POD, ()), (ANN, ("patch imports/filter",))])
def test_what_others_declare_is_taken_only_by_who_may_change_all_of_it(
    token: str, granted: tuple[str, ...]
) -> None:
    bearer, usual = f"Bearer {token}", Verdict(allowed=True, is_own_job=token == POD)
    assert Bench(*granted).admit(bearer, "PUT", FILTER) == usual
    assert Bench(*granted).admit(bearer, "PUT", FILTER, more="&force=false") == usual
    refused = Bench(*granted).refusal(bearer, "PUT", FILTER, more="&force=true")
    assert (refused.status, refused.code) == (403, "NotYours")
    assert "`patch imports`" in str(refused)
    assert Bench("patch imports").admit(bearer, "PUT", FILTER, more="&force=true") == Verdict(
        allowed=True
    )
