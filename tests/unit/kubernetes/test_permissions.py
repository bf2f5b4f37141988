"""Every path has a rule, a job has its own ports, and what is not known is refused."""

from __future__ import annotations

from typing import Any

import pytest

from streambroker_operator.kubernetes.auth.rbac import (
    POLICIES,
    AccessRequest,
    Caller,
    Verdict,
    describe_requests,
    judge,
)
from streambroker_operator.rest.guard.authentication import PUBLIC_PATHS
from streambroker_operator.rest.http.openapi import description
from support.core.resources import pe
from support.kubernetes.charts import table, words

PE = "/api/subscriptions/job/{job}/pe/{pe}"
POD = Caller(
    user="system:serviceaccount:jobs:spark",
    namespace="jobs",
    account="spark",
    pod="alerts-driver",
    pod_uid="1234",
)
PERSON = Caller(user="ann", groups=("dev",))
ALERTS = pe("jobs/alerts/0")
AGENT = Caller(user="system:serviceaccount:jobs:spark", namespace="jobs", agent=ALERTS)


def verdict(
    caller: Caller, method: str, path: str, *, where: str = "jobs/alerts/0", bound: str | None
) -> Verdict:
    return judge(caller, method=method, path=path, pe=pe(where), bound=bound)


def test_each_path_of_the_description_has_a_rule_and_no_other_has() -> None:
    described = {
        (method.upper(), path)
        for path, item in description()["paths"].items()
        for method in item
        if method in ("get", "put", "post", "patch", "delete") and path not in PUBLIC_PATHS
    }
    assert set(POLICIES) == described


def test_the_page_on_security_has_each_rule() -> None:
    head = ("request", "right in RBAC (group `streambroker.io`)")
    right_of: dict[str, str] = {}
    for requests, right, *_ in table("docs/security.md", *head):
        right_of.update(dict.fromkeys(words(requests), right))
    shown = {"": "none: the agents of the job itself"}
    rules = {f"{method} {short(path)}": found for (method, path), found in POLICIES.items()}

    assert right_of == {
        request: "none"
        if found.allows_authenticated
        else shown.get(describe_requests(found.requests), describe_requests(found.requests))
        for request, found in rules.items()
    }


def short(path: str) -> str:
    return path.removeprefix("/api/subscriptions").replace("/job/{job}", "…")


def takes_force(method: str, path: str) -> bool:
    item: Any = description()["paths"][path]
    parameters = [*item.get("parameters", ()), *item[method.lower()].get("parameters", ())]
    return any(one.get("$ref", "").endswith("/force") for one in parameters)


def test_what_may_be_forced_is_what_the_description_lets_be_forced() -> None:
    assert {rule for rule, found in POLICIES.items() if found.steers} == {
        rule for rule in POLICIES if takes_force(*rule)
    }


@pytest.mark.parametrize(("method", "path"), POLICIES)
def test_force_needs_a_right_more_and_never_one_less(method: str, path: str) -> None:
    of_ports = "exports" if "/export/" in path else "imports"
    whole = AccessRequest(
        verb="patch", resource="patternprocessors" if "/patterns" in path else of_ports
    )
    usual = judge(PERSON, method=method, path=path, pe=ALERTS, bound="spark")
    forced = judge(PERSON, method=method, path=path, pe=ALERTS, bound="spark", force=True)
    own = judge(POD, method=method, path=path, pe=ALERTS, bound="spark", force=True)

    assert not forced.allowed
    assert not own.allowed
    if takes_force(method, path):
        assert set(forced.requests) == {*usual.requests, (whole,)}
        assert own.requests == ((whole,),)
    else:
        assert not forced.requests
        assert not own.requests
        assert "force" in forced.reason


def test_a_path_that_no_rule_names_is_refused_to_everybody() -> None:
    for caller in (POD, PERSON, AGENT):
        found = verdict(caller, "POST", PE + "/release", bound="spark")
        assert not found.allowed
        assert not found.requests


def test_a_job_may_change_its_own_ports_from_its_pods() -> None:
    for method, path in [("PUT", PE + "/import/{port}/filter"), ("GET", PE), ("DELETE", PE)]:
        assert verdict(POD, method, path, bound="spark").allowed


@pytest.mark.parametrize(
    ("caller", "where", "bound"),
    [
        (POD, "jobs/alerts/0", "other"),
        (POD, "jobs/alerts/0", None),
        (POD, "elsewhere/alerts/0", "spark"),
        (Caller(user=POD.user, namespace="jobs", account="spark"), "jobs/alerts/0", "spark"),
        (PERSON, "jobs/alerts/0", "spark"),
        (AGENT, "jobs/other/0", "spark"),
        (AGENT, "elsewhere/alerts/0", "spark"),
    ],
)
def test_somebody_elses_ports_are_asked_of_the_cluster(
    caller: Caller, where: str, bound: str | None
) -> None:
    found = verdict(caller, "PUT", PE + "/import/{port}/filter", where=where, bound=bound)

    assert not found.allowed
    assert found.requests == (
        (
            AccessRequest(verb="patch", resource="imports", subresource="filter"),
            AccessRequest(verb="patch", resource="imports"),
        ),
    )


def test_an_agent_that_signs_is_its_job() -> None:
    assert verdict(AGENT, "PUT", PE + "/export/{port}", bound=None).allowed
    assert verdict(AGENT, "PUT", PE + "/report", bound=None).allowed


def test_the_first_registration_fixes_the_account() -> None:
    first = verdict(POD, "PUT", PE, bound=None)
    again = verdict(POD, "PUT", PE, bound="spark")

    assert (first.allowed, first.bound_account) == (True, "spark")
    assert (again.allowed, again.bound_account) == (True, None)


@pytest.mark.parametrize(
    ("caller", "where", "bound", "why"),
    [
        (POD, "jobs/alerts/0", "other", "belongs to the service account other"),
        (POD, "elsewhere/alerts/0", None, "another namespace"),
        (PERSON, "jobs/alerts/0", None, "bound to its pod"),
        (AGENT, "jobs/alerts/1", None, "cannot register for"),
    ],
)
def test_nobody_else_registers_an_agent(
    caller: Caller, where: str, bound: str | None, why: str
) -> None:
    found = verdict(caller, "PUT", PE, where=where, bound=bound)

    assert not found.allowed
    assert not found.requests
    assert why in found.reason


@pytest.mark.parametrize(("method", "part"), [("PUT", "/report"), ("POST", "/errands")])
def test_reports_and_commands_are_the_agents_alone(method: str, part: str) -> None:
    found = verdict(PERSON, method, PE + part, bound="spark")

    assert not found.allowed
    assert not found.requests


def test_lists_need_the_right_to_list() -> None:
    found = judge(PERSON, method="HEAD", path="/api/subscriptions/routes")

    assert describe_requests(found.requests) == "`list exports` and `list imports`"


def test_who_replaces_a_resource_may_create_and_change_it() -> None:
    found = verdict(PERSON, "PUT", PE + "/export/{port}", bound=None)

    assert describe_requests(found.requests) == "`create exports` and `patch exports`"


def test_a_set_of_changes_needs_every_right() -> None:
    found = judge(POD, method="POST", path="/api/subscriptions/apply")

    assert not found.allowed
    assert len(found.requests) == 6


def test_the_description_itself_needs_no_right() -> None:
    assert judge(PERSON, method="GET", path="/api/openapi.json").allowed
