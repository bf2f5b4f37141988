"""A watched namespace goes with its rights, on a real API server: the others are followed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from streambroker_core.wire.manifests.ports import OBJECTS
from streambroker_operator.kubernetes.client.kubeconfig import from_kubeconfig
from support.clusters.api_server import ApiServer
from support.clusters.calls import grant
from support.clusters.informer import HASTY, FeederName, Followed
from support.clusters.objects import ClusterObjects
from support.processes.waiting import until

RBAC = "/apis/rbac.authorization.k8s.io/v1"
RULES = [
    {
        "apiGroups": ["streambroker.io"],
        "resources": list(OBJECTS.values()),
        "verbs": ["get", "list", "watch"],
    }
]


class Watched:
    """A namespace that `broker` may follow as long as it has its Role, as with the chart."""

    def __init__(self, api: ApiServer) -> None:
        self.api = api
        self.name = f"test-{uuid4().hex[:12]}"
        self.objects = ClusterObjects(api, self.name)
        self.make()

    def make(self) -> None:
        """Create the namespace and its Role."""
        self.api.create_namespace(self.name)
        self.bind()

    def bind(self) -> None:
        """Create the Role and its binding."""
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "streams"}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "broker"}
        self._create("roles", "Role", rules=RULES)
        self._create("rolebindings", "RoleBinding", roleRef=role, subjects=[subject])

    def _create(self, plural: str, kind: str, **more: Any) -> None:
        body = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": "streams"},
            **more,
        }
        answer = self.api.request("POST", f"{RBAC}/namespaces/{self.name}/{plural}", body)
        assert answer.status == 201, answer.message

    def unbind(self) -> None:
        """Delete the Role and its binding, as a namespace controller does early."""
        for plural in ("rolebindings", "roles"):
            self.api.request("DELETE", f"{RBAC}/namespaces/{self.name}/{plural}/streams")

    def pair(self, name: str) -> set[str]:
        return {self.objects.write("Export", name), self.objects.write("Import", name)}


@pytest.fixture
def two(api: ApiServer) -> Iterator[tuple[Watched, Watched]]:
    grant(
        api,
        "definitions",
        "broker",
        ("apiextensions.k8s.io", "customresourcedefinitions", "get"),
        ("", "namespaces", "get"),
    )
    found = Watched(api), Watched(api)
    yield found
    for each in found:
        each.unbind()
        api.remove_namespace(each.name)


def refused(followed: Followed, watched: Watched) -> Callable[[], set[str]]:
    """Return a question: why is no kind of a namespace followed; empty if one is."""

    def why() -> set[str]:
        found = followed.health().refused
        assert {namespace for _, namespace in found} <= {watched.name}
        return set(found.values()) if len(found) == len(OBJECTS) else set()

    return why


@pytest.mark.parametrize("feeder", ["reflector", "kopf"])
def test_one_namespace_that_is_refused_stays_as_it_was_and_the_others_are_followed(
    two: tuple[Watched, Watched], feeder: FeederName, caplog: pytest.LogCaptureFixture
) -> None:
    jobs, reports = two
    api, names = jobs.api, [jobs.name, reports.name]
    steady = jobs.pair("stays") | reports.pair("stays")
    goes = reports.pair("goes")
    access = from_kubeconfig(api.kubeconfig("broker"))
    caplog.set_level(logging.WARNING)
    with Followed(access, feeder, names, replace(HASTY, refused_s=0.2)).running() as followed:
        followed.steady = steady | goes
        followed.await_scan(api, names)
        why = refused(followed, reports)
        reports.unbind()
        until(lambda: why() == {"Forbidden"}, 20.0, "the refusal is noticed")
        followed.call(followed.proxy.cut_watches)
        made = jobs.pair("new")
        until(lambda: made <= followed.entries().keys(), 20.0, "the other namespace is followed")
        jobs.objects.delete("Export", "new")
        until(lambda: not made <= followed.entries().keys(), 20.0, "its deletion is noticed")
        assert steady | goes <= followed.entries().keys()
        assert followed.health().synced
        lines = [one for one in caplog.messages if reports.name in one and "state is kept" in one]
        assert len(lines) == len(OBJECTS)

        followed.steady = steady
        reports.objects.delete("Export", "goes")
        reports.pair("new")
        reports.bind()
        followed.await_scan(api, names)
        until(lambda: not followed.health().refused, 20.0, "the namespace is followed again")
        reports.pair("later")
        followed.await_scan(api, names)
    assert len(caplog.messages) < 20, caplog.messages


@pytest.mark.parametrize("feeder", ["reflector", "kopf"])
def test_a_namespace_that_is_gone_takes_its_resources_and_is_followed_once_it_is_made_again(
    two: tuple[Watched, Watched], feeder: FeederName
) -> None:
    jobs, reports = two
    api, names = jobs.api, [jobs.name, reports.name]
    steady = jobs.pair("stays")
    reports.pair("goes")
    access = from_kubeconfig(api.kubeconfig("broker"))
    with Followed(access, feeder, names, replace(HASTY, refused_s=0.2)).running() as followed:
        followed.steady = set(steady)
        followed.await_scan(api, names)
        why = refused(followed, reports)
        reports.unbind()
        until(lambda: why() == {"Forbidden"}, 20.0, "the refusal is noticed")
        followed.call(followed.proxy.cut_watches)
        api.remove_namespace(reports.name)
        until(lambda: why() == {"NamespaceGone"}, 20.0, "the namespace is gone")
        followed.await_scan(api, [jobs.name])
        assert followed.entries().keys() == steady

        reports.make()
        reports.pair("new")
        followed.await_scan(api, names)
        reports.pair("later")
        followed.await_scan(api, names)
        assert followed.health().refused == {}
