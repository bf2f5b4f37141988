"""Two jobs as pods on a real node: what is changed, killed and deleted there costs no row.

The tests go on from each other, in the order of the file, as one run of the same two jobs; the
last one counts their rows. With ``STREAMBROKER_E2E_TLS=1`` the broker and both agents speak TLS.
With ``STREAMBROKER_E2E_BUCKET=1`` the exporter's agent keeps its log in a bucket, and its directory
ends with its pod.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import helm_python
import pytest

from pe_agent.spark.local_session import ensure_java
from support.clusters.bucket import run_bucket
from support.clusters.node import Cluster, running_cluster
from support.clusters.pods import (
    CLAIMS,
    NAMESPACE,
    Filter,
    Jobs,
    explained,
    prepared,
    row,
    with_bucket,
)
from support.kubernetes.charts import CHART, RELEASE
from support.processes.waiting import until

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]

TLS = os.environ.get("STREAMBROKER_E2E_TLS") == "1"
BUCKET = os.environ.get("STREAMBROKER_E2E_BUCKET") == "1"
BROKER = "streambroker"
"""Namespace of the release."""
_READY_SECONDS = 180.0
_PAUSE_SECONDS = 1.0


@dataclass
class World:
    """The jobs, and the filters that held one after the other; None while there was no route."""

    cluster: Cluster
    helm: helm_python.Config
    jobs: Jobs
    filters: list[Filter | None] = field(default_factory=list)

    def stream(self, name: str) -> Any:
        """Return an Export or Import, such as ``import/alerts-trades``."""
        return self.cluster.get(name, f"--namespace={NAMESPACE}")

    def await_condition(self, name: str, kind: str, status: str) -> None:
        """Wait until a condition of the resource's latest generation has a status."""

        def holds() -> bool:
            found = self.stream(name)
            reported = found.get("status", {})
            return reported.get("observedGeneration") == found["metadata"]["generation"] and any(
                (each["type"], each["status"]) == (kind, status) for each in reported["conditions"]
            )

        until(holds, _READY_SECONDS, f"{name} {kind}={status}", pause_s=_PAUSE_SECONDS)

    def apply(self, changes: dict[str, str]) -> None:
        """Apply the example's streams with parts of the text changed."""
        text = (self.jobs.folder / "streams.yaml").read_text()
        for old, new in changes.items():
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        self.cluster.kubectl("apply", "--filename=-", stdin=text)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Return a folder that other runs of the tests, which clear away older ones', leave alone."""
    with tempfile.TemporaryDirectory(prefix="streambroker-", ignore_cleanup_errors=True) as path:
        yield Path(path)


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, folder: Path) -> Iterator[Cluster]:
    """Run a node, or take the cluster of KUBECONFIG, which must not have the namespaces yet."""
    shuffled = request.config.pluginmanager.has_plugin("randomly")
    assert not shuffled, "these tests go on from each other: make e2e, or pytest -p no:randomly"
    ensure_java()
    with running_cluster(folder) as found:
        there = {each["metadata"]["name"] for each in found.get("namespaces")["items"]}
        assert not there & {NAMESPACE, BROKER}, "the cluster is in use"
        yield found


@pytest.fixture(scope="module")
def world(cluster: Cluster, folder: Path) -> Iterator[World]:
    """Install the chart as the example's README says; remove it from a cluster that goes on."""
    jobs = Jobs(cluster, prepared(folder / "example"), TLS, BUCKET)
    signed = {"mode": "self-signed" if TLS else "off"}
    with helm_python.Config(kubeconfig_path=cluster.kubeconfig, namespace=BROKER) as helm:
        try:
            cluster.kubectl("apply", f"--filename={jobs.folder / 'jobs.yaml'}")
            cluster.make_volumes(CLAIMS, NAMESPACE)
            if BUCKET:
                with_bucket(jobs.folder)
                access = [f"--from-literal={k}={v}" for k, v in run_bucket(cluster).items()]
                jobs.kubectl("create", "secret", "generic", "feed-bucket", *access)
            helm.install(
                CHART,
                RELEASE,
                {
                    "image": {"registry": "docker.io"},
                    "watchNamespaces": [NAMESPACE],
                    "tls": signed,
                    "agentTls": signed,
                },
                create_namespace=True,
                wait="watcher",
                timeout=int(_READY_SECONDS),
            )
            yield World(cluster, helm, jobs)
        finally:
            _report(jobs)
            if not cluster.own:
                helm.uninstall(RELEASE, ignore_not_found=True)
                cluster.kubectl("delete", "namespace", NAMESPACE, BROKER, "--ignore-not-found")
                crds = ("exports.streambroker.io", "imports.streambroker.io")
                cluster.kubectl("delete", "crd", *crds, "--ignore-not-found")


def _report(jobs: Jobs) -> None:
    """Print what somebody asks for first when a test has failed."""
    for arguments in (
        ("get", "pods", "--all-namespaces", "--output=wide"),
        ("get", "streams", "--all-namespaces"),
        ("get", "events", f"--namespace={NAMESPACE}"),
        ("logs", f"--namespace={BROKER}", "--selector=app.kubernetes.io/name=streambroker"),
        ("logs", f"--namespace={NAMESPACE}", "--selector=spark-role=driver", "--tail=60"),
    ):
        print(f"$ kubectl {' '.join(arguments)}", jobs.cluster.run(*arguments).stdout, sep="\n")  # noqa: T201


def test_the_chart_runs_and_passes_its_own_test(world: World) -> None:
    said = world.helm.test(RELEASE, timeout=int(_READY_SECONDS), logs=True)
    assert said["logs"].count("as it should") == 2
    deployment = world.cluster.get("deployment", RELEASE, f"--namespace={BROKER}")
    assert deployment["status"]["readyReplicas"] == 2


def test_jobs_that_are_submitted_find_the_declared_ports_and_each_other(world: World) -> None:
    world.apply({})
    # It starts at the latest: what was exported before its query was connected is not for it.
    world.filters += [None, lambda row: row[2] > 80]
    world.jobs.submit("alerts")
    world.await_condition("import/alerts-trades", "Matched", "True")
    world.jobs.driver("alerts")
    world.jobs.submit("feed")
    world.jobs.driver("feed")
    for name in ("import/alerts-trades", "export/feed-trades"):
        world.await_condition(name, "Ready", "True")
    world.jobs.await_row("rows", lambda row: row[2] > 80)
    location = world.stream("export/feed-trades")["status"]["endpoint"]["location"]
    assert location.partition(":")[0] == ("grpc+tls" if TLS else "grpc+tcp")
    listed = world.jobs.kubectl("get", "streams", "--no-headers")
    assert re.search(r"import.streambroker.io/alerts-trades +alerts +0 +trades .*1 +True", listed)


def test_the_plugin_of_kubectl_reaches_the_broker_with_a_token_of_its_own(world: World) -> None:
    world.jobs.kubectl("create", "serviceaccount", "ann")
    rights = ("--clusterrole=view", f"--serviceaccount={NAMESPACE}:ann")
    world.jobs.kubectl("create", "rolebinding", "ann", *rights)
    words = ("get", "imports", "--namespace", NAMESPACE, "--service-account", "ann")
    assert "alerts-trades" in world.cluster.kubectl("streambroker", *words)


def test_a_filter_that_is_edited_holds_while_both_run(world: World, folder: Path) -> None:
    editor = folder / "editor"
    change = r"s/^  filter: .*/  filter: symbol == \"IBM\"/"
    editor.write_text(f"#!/bin/sh\nsed -i '{change}' \"$1\"\n")
    editor.chmod(0o755)
    world.jobs.kubectl("edit", "import/alerts-trades", KUBE_EDITOR=str(editor))
    world.filters.append(lambda row: row[1] == "IBM")
    world.jobs.await_row("an IBM below 80", lambda row: row[1] == "IBM" and row[2] <= 80)


def test_a_filter_that_is_applied_holds_while_both_run(world: World) -> None:
    world.apply({"price > 80": "price <= 20"})
    world.filters.append(lambda row: row[2] <= 20)
    world.jobs.await_row("a cheap one", lambda row: row[1] != "IBM" and row[2] <= 20)


def test_an_export_that_fits_no_more_is_cut_and_one_that_fits_again_is_read_on(
    world: World,
) -> None:
    world.jobs.kubectl(
        "patch",
        "export/feed-trades",
        "--type=merge",
        '--patch={"spec":{"properties":{"kind":"x"}}}',
    )
    world.filters.append(None)
    world.await_condition("import/alerts-trades", "Matched", "False")
    world.jobs.await_gap()

    world.apply({"price > 80": 'price <= 20 && symbol == "GOOG"'})
    world.filters.append(lambda row: row[2] <= 20 and row[1] == "GOOG")
    world.jobs.await_row("a cheap GOOG", lambda row: row[2] <= 20 and row[1] == "GOOG")


def test_an_import_that_is_deleted_is_cut_and_one_that_is_applied_again_is_read_on(
    world: World,
) -> None:
    world.jobs.kubectl("delete", "import/alerts-trades")
    world.filters.append(None)
    world.await_condition("export/feed-trades", "Matched", "False")
    world.jobs.await_gap()

    world.apply({})
    world.filters.append(lambda row: row[2] > 80)
    world.jobs.await_row("a dear one", lambda row: row[2] > 80)
    world.await_condition("import/alerts-trades", "Ready", "True")


def test_a_killed_broker_costs_nothing_and_changes_go_on_with_the_other(world: World) -> None:
    def holder() -> str:
        lease = world.cluster.get("lease", RELEASE, f"--namespace={BROKER}")
        return str(lease["spec"].get("holderIdentity") or "").split("_")[0]

    killed = holder()
    world.cluster.kill(killed, BROKER)
    world.cluster.kubectl(
        "delete", "pod", killed, f"--namespace={BROKER}", "--grace-period=0", "--force"
    )
    world.jobs.await_row("rows with a broker gone", lambda row: row[2] > 80)
    world.apply({"price > 80": "price > 60"})
    world.filters.append(lambda row: row[2] > 60)
    world.jobs.await_row("a row of the new filter", lambda row: 60 < row[2] <= 80)
    until(
        lambda: holder() not in ("", killed), 60.0, "another broker leads", pause_s=_PAUSE_SECONDS
    )
    world.cluster.kubectl(
        "rollout", "status", f"deployment/{RELEASE}", f"--namespace={BROKER}", "--timeout=90s"
    )
    world.await_condition("import/alerts-trades", "Ready", "True")


def test_a_driver_pod_that_is_deleted_under_load_goes_on_from_its_volume(world: World) -> None:
    """The agent of the first driver ran beside it, that of the second one is a sidecar.

    With a bucket the second one has an empty directory, and no sidecar.
    """
    deleted = world.jobs.driver("feed")
    world.jobs.kubectl("delete", "pod", deleted, "--wait=false")
    world.jobs.submit("feed", sidecar=True)
    assert world.jobs.driver("feed") != deleted
    world.jobs.await_row("a row after the restart", lambda row: row[2] > 60, 180.0)
    world.await_condition("export/feed-trades", "Ready", "True")


def test_every_row_came_exactly_once(world: World) -> None:
    exported = world.jobs.end_feed()
    last = world.filters[-1]
    assert last is not None
    due = [row(number) for number in range(exported - 100, exported) if last(row(number))]
    until(
        lambda: world.jobs.rows(exported - 100) == due,
        _READY_SECONDS,
        "the last rows are there",
        pause_s=_PAUSE_SECONDS,
    )
    rows = world.jobs.rows()
    assert len(rows) == len({number for number, *_ in rows}), "a row came twice"
    fine, problem = explained(rows, world.filters, exported)
    assert fine, problem
    # What was cut was cut: without the cuts there would be rows that did not come.
    assert not explained(rows, [each for each in world.filters if each], exported)[0]
