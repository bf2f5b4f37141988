"""Where agents are, as the statuses of their resources tell it, in whatever order."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from streambroker_core.wire.broker.registration import Registration
from streambroker_operator.kubernetes.client.documents import Document
from streambroker_operator.kubernetes.client.managed_fields import AGENT
from streambroker_operator.kubernetes.replicas.agent_endpoints import (
    Endpoints,
    agent_status,
    read_agent,
)
from support.core.resources import pe

FEED = pe("feed")
OLD = Registration(instance="0123456789abcdef", location="grpc+tcp://10.0.0.7:4711", hint=None)
NEW = Registration(instance="0123456789abcdef", location="grpc+tcp://10.0.0.8:4711", hint="a:9")


def document(found: Registration | None, account: str | None = None, second: int = 0) -> Any:
    status = {} if found is None else agent_status(found, account)
    fields = {"manager": AGENT, "operation": "Apply", "subresource": "status", "fieldsV1": {}}
    time = {"time": f"2026-11-21T11:29:{second:02}Z"}
    return {"metadata": {"managedFields": [{**fields, **time}]}, "status": status}


def saw(
    endpoints: Endpoints, uid: str, found: Registration | None, version: int, second: int = 0
) -> tuple[Registration, int] | None:
    shown = read_agent(FEED, document(found, second=second))
    event = endpoints.observe(uid, shown, version)
    return None if event is None else (event.registration, event.version)


def test_a_status_is_read_as_it_was_written() -> None:
    shown = read_agent(FEED, document(NEW, "spark", 31))
    assert (shown.registration, shown.account, shown.at.second) == (NEW, "spark", 31)
    assert read_agent(FEED, document(OLD)).registration == OLD
    assert "hint" not in str(agent_status(OLD, None)["endpoint"])


def test_a_status_that_cannot_be_read_tells_of_no_agent() -> None:
    for endpoint in (None, "here", {}, {"instance": "x", "location": "y"}):
        found: Document = {"metadata": {}, "status": {"endpoint": endpoint, "serviceAccount": 5}}
        assert (
            read_agent(FEED, found).registration,
            read_agent(FEED, found).account,
        ) == (
            None,
            None,
        )
    assert read_agent(FEED, {"metadata": {}}).registration is None


def test_a_new_endpoint_is_reported_once() -> None:
    endpoints = Endpoints()
    assert saw(endpoints, "a", OLD, 10) == (OLD, 10)
    assert saw(endpoints, "a", OLD, 11) is None
    assert saw(endpoints, "b", OLD, 12) == (OLD, 12)
    assert saw(endpoints, "a", NEW, 13, second=1) == (NEW, 13)
    assert endpoints.registration(FEED) == (NEW, 13)


def test_a_resource_that_still_says_the_old_brings_nothing_back() -> None:
    """Its conditions are written meanwhile, so that it is the younger one by its version."""
    endpoints = Endpoints()
    saw(endpoints, "a", OLD, 10)
    saw(endpoints, "b", OLD, 11)
    saw(endpoints, "a", NEW, 12, second=1)
    assert saw(endpoints, "b", OLD, 13) is None
    assert endpoints.registration(FEED) == (NEW, 12)


def test_of_two_that_differ_at_the_start_the_one_written_last_counts() -> None:
    for order in (("a", "b"), ("b", "a")):
        endpoints = Endpoints()
        seen = {"a": (NEW, 12, 5), "b": (OLD, 90, 1)}
        for uid in order:
            saw(endpoints, uid, *seen[uid])
        assert endpoints.registration(FEED) is not None
        assert endpoints.registration(FEED)[0] == NEW  # type: ignore[index]


def test_a_resource_without_a_status_takes_nothing_away() -> None:
    endpoints = Endpoints()
    saw(endpoints, "a", OLD, 10)
    assert saw(endpoints, "b", None, 12) is None
    endpoints.on_deleted("a")
    assert endpoints.registration(FEED) == (OLD, 10)
    assert endpoints.pes() == [FEED]


def test_of_one_resource_the_later_version_counts_whatever_the_clocks_say() -> None:
    """Two API servers whose clocks differ write one after the other."""
    endpoints = Endpoints()
    saw(endpoints, "a", OLD, 10, second=30)
    assert saw(endpoints, "a", NEW, 13, second=20) == (NEW, 13)
    assert saw(endpoints, "a", OLD, 10, second=30) == (OLD, 13), "a restored store, written later"


def test_a_late_sight_of_a_resource_brings_nothing_back() -> None:
    endpoints = Endpoints()
    saw(endpoints, "a", OLD, 10, second=1)
    saw(endpoints, "a", NEW, 13, second=2)
    assert saw(endpoints, "a", OLD, 11, second=1) is None
    assert endpoints.registration(FEED) == (NEW, 13)


def test_an_agent_that_registers_here_is_not_replaced_by_what_a_resource_said_before() -> None:
    endpoints = Endpoints()
    endpoints.on_registered(FEED, NEW, None, 0)
    assert saw(endpoints, "a", OLD, 10, second=1) is None
    assert endpoints.registration(FEED) == (NEW, 0)
    assert endpoints.is_behind("a")


def test_only_what_lacks_its_agent_or_is_older_is_behind() -> None:
    """Else two replicas that were told of two agents would write over each other for ever."""
    endpoints = Endpoints()
    saw(endpoints, "a", NEW, 12, second=5)
    saw(endpoints, "b", OLD, 90, second=1)
    saw(endpoints, "c", None, 91)
    saw(endpoints, "d", NEW, 92, second=1)
    assert {uid for uid in "abcd" if endpoints.is_behind(uid)} == {"b", "c"}
    assert not endpoints.is_behind("nobody")

    endpoints = Endpoints(now=lambda: datetime(2026, 11, 21, 11, 29, 3, tzinfo=UTC))
    endpoints.on_registered(FEED, OLD, None, 0)
    assert saw(endpoints, "a", NEW, 12, second=5) == (NEW, 12)
    assert not endpoints.is_behind("a")


def test_what_a_status_says_of_an_account_counts_before_what_was_heard_here() -> None:
    """Another replica was told first, and wrote it down."""
    endpoints = Endpoints()
    endpoints.on_registered(FEED, OLD, "thief", 0)
    endpoints.observe("a", read_agent(FEED, document(NEW, "spark", 1)), 10)
    assert endpoints.account(FEED) == "spark"
    assert endpoints.jobs_for("default", "thief") == []
    assert endpoints.jobs_for("default", "spark") == ["feed"]
    endpoints.on_registered(FEED, OLD, "thief", 0)
    assert endpoints.account(FEED) == "spark"


def test_what_is_lacking_is_what_says_something_else() -> None:
    endpoints = Endpoints()
    saw(endpoints, "a", OLD, 10)
    assert endpoints.is_published("a", OLD, None)
    assert not endpoints.is_published("a", NEW, None)
    assert not endpoints.is_published("a", OLD, "spark")
    assert not endpoints.is_published("nobody", OLD, None)


def test_a_job_is_bound_by_its_first_account_and_free_when_all_of_it_is_gone() -> None:
    endpoints = Endpoints()
    endpoints.on_registered(FEED, OLD, "spark", 0)
    endpoints.on_registered(pe("default/feed/1"), OLD, "other", 0)
    assert endpoints.account(pe("default/feed/7")) == "spark"
    assert endpoints.account_for("default", "feed") == "spark"
    assert endpoints.account(pe("elsewhere/feed/0")) is None
    endpoints.withdraw(FEED)
    assert endpoints.account(FEED) == "spark"
    endpoints.withdraw(pe("default/feed/1"))
    assert endpoints.account(FEED) is None


def test_versions_of_registrations_never_go_down_not_even_over_a_withdrawal() -> None:
    endpoints = Endpoints()
    first = endpoints.on_registered(FEED, OLD, None, 20)
    again = endpoints.on_registered(FEED, NEW, None, 0)
    assert (first.version, again.version) == (20, 20)
    assert endpoints.withdraw(FEED) == 20
    assert endpoints.on_registered(FEED, OLD, None, 0).version == 20
