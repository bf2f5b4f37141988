"""The chart on a real API server: installed, upgraded, rolled back, uninstalled, and its rights."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from uuid import uuid4

import helm_python
import pytest
import yaml

from streambroker_core.wire.manifests.ports import OBJECTS
from support.clusters.api_server import MERGE, ApiServer, running_api_server
from support.clusters.calls import token_of
from support.clusters.replicas import connected, declare, operator, status_of
from support.kubernetes import charts
from support.kubernetes.samples import samples
from support.processes.ports import free_port
from support.processes.releases import Release
from support.processes.waiting import until

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
STREAMS = "/apis/streambroker.io/v1alpha1"
OVERLAY = charts.ROOT / "deploy/overlays/jobs"
EXPORT: dict[str, Any] = {
    "apiVersion": "streambroker.io/v1alpha1",
    "kind": "Export",
    "metadata": {"name": "trades"},
    "spec": {"job": "feed", "port": "trades", "streamId": "trades"},
}
FOREIGN = ("Certificate", "PrometheusRule", "ServiceMonitor")


@pytest.fixture(scope="module")
def cluster(kube_assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Run an API server of this module's own, without CRDs at first."""
    with running_api_server(kube_assets, tmp_path_factory.mktemp("chart")) as server:
        remove_crds(server)
        yield server


def remove_crds(server: ApiServer) -> None:
    """Remove all definitions, for the next test to bring its own."""
    paths = [f"{CRDS}/{name}.streambroker.io" for name in OBJECTS.values()]
    for path in paths:
        server.request("DELETE", path)
    for path in paths:
        try:
            until(partial(is_gone, server, path), 20.0, f"{path} is gone")
        except AssertionError:
            # After an error the API server tries again ever later; after a change it tries at once.
            change = {"metadata": {"annotations": {"test": "look again"}}}
            server.request("PATCH", path, change, content_type=MERGE)
            until(partial(is_gone, server, path), 60.0, f"{path} is gone")


def is_gone(server: ApiServer, path: str) -> bool:
    return server.request("GET", path).status == 404


@pytest.fixture
def place(cluster: ApiServer) -> Iterator[str]:
    """Make a namespace for a release of its own, which takes restricted pods only."""
    name = f"chart-{uuid4().hex[:8]}"
    cluster.create_namespace(name)
    standard = "pod-security.kubernetes.io"
    labels = {f"{standard}/enforce": "restricted", f"{standard}/warn": "restricted"}
    path = f"/api/v1/namespaces/{name}"
    cluster.request("PATCH", path, {"metadata": {"labels": labels}}, content_type=MERGE)
    # A controller makes it elsewhere.
    cluster.request("POST", f"{path}/serviceaccounts", {"metadata": {"name": "default"}})
    yield name
    cluster.remove_namespace(name)


@pytest.fixture
def helm(cluster: ApiServer, place: str) -> Iterator[helm_python.Config]:
    """Return Helm, and uninstall the release at the end."""
    with helm_python.Config(kubeconfig_path=cluster.kubeconfig(), namespace=place) as config:
        yield config
        config.uninstall(charts.RELEASE, ignore_not_found=True)
    cluster.request("DELETE", f"{STREAMS}/namespaces/{place}/exports")
    remove_crds(cluster)


def get(cluster: ApiServer, path: str) -> Any:
    answer = cluster.request("GET", path)
    return answer.body if answer.status == 200 else None


def key(cluster: ApiServer, place: str) -> str | None:
    secret = get(cluster, f"/api/v1/namespaces/{place}/secrets/streambroker-key")
    return str(secret["data"]["key"]) if secret else None


def replicas(cluster: ApiServer, place: str) -> Any:
    deployment = get(cluster, f"/apis/apps/v1/namespaces/{place}/deployments/streambroker")
    return deployment and deployment["spec"]["replicas"]


def without_crds(**values: Any) -> dict[str, Any]:
    return charts.with_registry({"crds": {"create": False}, **values})


# ---- life of a release -----------------------------------------------------------------------


def test_a_packaged_chart_is_installed_upgraded_rolled_back_and_keeps_its_key(
    cluster: ApiServer, place: str, helm: helm_python.Config, tmp_path: Path
) -> None:
    packaged = helm_python.package(charts.CHART, destination=tmp_path)
    installed = helm.install(packaged, charts.RELEASE, charts.with_registry())
    assert installed["status"] == "deployed"
    made = key(cluster, place)
    assert made is not None
    assert len(base64.b64decode(made)) == 32
    assert replicas(cluster, place) == 2
    assert get(cluster, f"{CRDS}/exports.streambroker.io") is not None

    helm.upgrade(
        charts.CHART,
        charts.RELEASE,
        charts.with_registry({"replicas": 3, "logLevel": "DEBUG"}),
    )
    assert (replicas(cluster, place), key(cluster, place)) == (3, made)

    helm.rollback(charts.RELEASE)
    assert (replicas(cluster, place), key(cluster, place)) == (2, made)
    assert [each["revision"] for each in helm.history(charts.RELEASE)] == [1, 2, 3]


@pytest.mark.compatibility(
    "chart",
    "the chart of the last release is upgraded and rolled back; key and resources stay",
)
def test_the_chart_of_the_last_release_is_upgraded_to_this_one_and_rolled_back(
    cluster: ApiServer, place: str, helm: helm_python.Config, released: Release
) -> None:
    helm.install(released.chart, charts.RELEASE)
    made = key(cluster, place)
    exports = f"{STREAMS}/namespaces/{place}/exports"
    assert cluster.request("POST", exports, EXPORT).status == 201

    helm.upgrade(charts.CHART, charts.RELEASE, charts.with_registry())
    stored = {"durability": "stored"}
    change = cluster.request("PATCH", f"{exports}/trades", {"spec": stored}, content_type=MERGE)
    assert change.body["spec"].items() >= {**EXPORT["spec"], **stored}.items()
    assert key(cluster, place) == made
    newer = json.dumps(EXPORT).replace("v1alpha1", "v1beta1").replace("trades", "quotes")
    applied = cluster.kubectl("-n", place, "apply", "-f", "-", stdin=newer)
    assert applied.stdout == "export.streambroker.io/quotes created\n", applied.stderr

    helm.rollback(charts.RELEASE)
    older = newer.replace("v1beta1", "v1alpha1")
    applied = cluster.kubectl("-n", place, "apply", "-f", "-", stdin=older)
    assert applied.returncode == 0, applied.stderr
    assert get(cluster, f"{exports}/quotes")["metadata"]["generation"] == 1
    assert get(cluster, f"{exports}/trades")["spec"].items() >= EXPORT["spec"].items()
    assert (replicas(cluster, place), key(cluster, place)) == (2, made)


def test_uninstalling_leaves_streams_and_the_key_and_an_install_goes_on_with_both(
    cluster: ApiServer, place: str, helm: helm_python.Config
) -> None:
    helm.install(charts.CHART, charts.RELEASE, charts.with_registry())
    made = key(cluster, place)
    stream = f"{STREAMS}/namespaces/{place}/exports"
    assert cluster.request("POST", stream, EXPORT).status == 201
    uid = get(cluster, f"{stream}/trades")["metadata"]["uid"]

    helm.uninstall(charts.RELEASE)
    assert replicas(cluster, place) is None
    assert get(cluster, f"/api/v1/namespaces/{place}/services/streambroker") is None
    assert get(cluster, f"{stream}/trades")["metadata"]["uid"] == uid
    assert key(cluster, place) == made

    installed = helm.install(charts.CHART, charts.RELEASE, charts.with_registry())
    assert installed["status"] == "deployed"
    assert get(cluster, f"{stream}/trades")["metadata"]["uid"] == uid
    assert key(cluster, place) == made


def test_a_self_signed_certificate_is_made_once(
    cluster: ApiServer, place: str, helm: helm_python.Config
) -> None:
    def certificate() -> Any:
        return get(cluster, f"/api/v1/namespaces/{place}/secrets/streambroker-tls")["data"]

    values = without_crds(tls={"mode": "self-signed"})
    helm.install(charts.CHART, charts.RELEASE, values)
    first = certificate()
    helm.upgrade(charts.CHART, charts.RELEASE, {**values, "replicas": 3})
    assert certificate() == first
    trusted = get(cluster, f"/api/v1/namespaces/{place}/configmaps/streambroker-ca")["data"]
    assert trusted["ca.crt"].strip() == base64.b64decode(first["ca.crt"]).decode().strip()

    cluster.request("DELETE", f"/api/v1/namespaces/{place}/secrets/streambroker-tls")
    helm.upgrade(charts.CHART, charts.RELEASE, values)
    assert certificate()["tls.crt"] != first["tls.crt"]


def test_certificates_outlive_the_release_and_a_further_namespace_gets_that_of_the_others(
    cluster: ApiServer, place: str, helm: helm_python.Config
) -> None:
    def kept(namespace: str, name: str) -> Any:
        return get(cluster, f"/api/v1/namespaces/{namespace}/secrets/{name}")["data"]

    others = [f"{place}-a", f"{place}-b"]
    for namespace in others:
        cluster.create_namespace(namespace)
    values = without_crds(tls={"mode": "self-signed"}, agentTls={"mode": "self-signed"})
    helm.install(charts.CHART, charts.RELEASE, {**values, "watchNamespaces": others[:1]})
    agents, rest = kept(others[0], "streambroker-agent-tls"), kept(place, "streambroker-tls")
    helm.upgrade(charts.CHART, charts.RELEASE, {**values, "watchNamespaces": others})
    assert [kept(each, "streambroker-agent-tls") for each in others] == [agents, agents]

    helm.uninstall(charts.RELEASE)
    helm.install(charts.CHART, charts.RELEASE, {**values, "watchNamespaces": others})
    assert [kept(each, "streambroker-agent-tls") for each in others] == [agents, agents]
    assert kept(place, "streambroker-tls") == rest
    trusted = get(cluster, f"/api/v1/namespaces/{others[1]}/configmaps/streambroker-ca")["data"]
    assert trusted["ca.crt"].strip() == base64.b64decode(rest["ca.crt"]).decode().strip()

    for each in others:
        secrets = f"/api/v1/namespaces/{each}/secrets"
        cluster.request("DELETE", f"{secrets}/streambroker-agent-tls")
    helm.upgrade(charts.CHART, charts.RELEASE, {**values, "watchNamespaces": others})
    renewed = [kept(each, "streambroker-agent-tls") for each in others]
    assert renewed[0] == renewed[1] != agents
    clients = [kept(each, "streambroker-agent-client") for each in others]
    assert clients[0] == clients[1]
    assert clients[0]["ca.crt"] == renewed[0]["ca.crt"]


def test_a_chart_that_was_rendered_without_the_cluster_cannot_change_the_key(
    cluster: ApiServer, place: str, helm: helm_python.Config
) -> None:
    helm.install(charts.CHART, charts.RELEASE, without_crds())
    made = key(cluster, place)
    rendered = charts.one(charts.objects(namespace=place), "Secret", "streambroker-key")
    done = cluster.kubectl(
        "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(rendered)
    )
    assert "field is immutable" in done.stderr
    assert key(cluster, place) == made


def test_a_refused_value_leaves_the_release_as_it_was(
    cluster: ApiServer, place: str, helm: helm_python.Config
) -> None:
    helm.install(charts.CHART, charts.RELEASE, without_crds())
    with pytest.raises(helm_python.HelmError, match="replicaCount"):
        helm.upgrade(charts.CHART, charts.RELEASE, without_crds(replicaCount=3))
    assert replicas(cluster, place) == 2


# ---- what the API server says ----------------------------------------------------------------


@pytest.mark.parametrize("values", charts.VARIANTS.values(), ids=charts.VARIANTS)
def test_the_api_server_takes_every_object(
    cluster: ApiServer, place: str, values: charts.Values
) -> None:
    for namespace in ("jobs", "reports"):
        cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    made = [x for x in charts.objects(values, namespace=place) if x["kind"] not in FOREIGN]
    done = cluster.kubectl(
        "apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=yaml.safe_dump_all(made)
    )
    assert done.stderr.strip() == ""
    assert len(done.stdout.splitlines()) == len(made)


def test_the_overlay_is_what_the_chart_makes_for_the_namespace_of_the_examples(
    cluster: ApiServer,
) -> None:
    values = {
        "image": {"registry": "registry.example.com/streams"},
        "watchNamespaces": ["jobs"],
        "key": {"create": False, "byBroker": True},
        "agentTls": {"mode": "off"},
    }
    made = charts.objects(values, name="streambroker", namespace="streambroker")
    built = cluster.kubectl("kustomize", str(OVERLAY)).stdout
    found = {charts.key_of(x): x for x in yaml.safe_load_all(built)}

    assert found.pop(("Namespace", "", "streambroker"))
    assert found.pop(("Namespace", "", "jobs"))
    assert found == {charts.key_of(x): x for x in made if x["kind"] != "Pod"}


def test_without_helm_the_overlay_is_applied_and_the_broker_connects_the_examples(
    cluster: ApiServer, tmp_path: Path
) -> None:
    overlay = str(OVERLAY)
    first = cluster.kubectl("apply", "--server-side", "-k", overlay)
    assert first.stderr.strip() == ""
    again = cluster.kubectl("diff", "--server-side", "-k", overlay)
    assert (again.returncode, again.stdout) == (0, "")
    cluster.await_kinds()
    streams = str(charts.ROOT / "examples/kubernetes/streams.yaml")
    assert cluster.kubectl("apply", "-f", streams).stderr.strip() == ""
    options = options_of(cluster, "streambroker")
    audience = ("https://kubernetes.default.svc",)
    token = token_of(cluster, "streambroker", "streambroker", audiences=audience)
    assert key(cluster, "streambroker") is None

    with operator(cluster, tmp_path, "streambroker", *options, token=token):
        made = key(cluster, "streambroker")
        until(
            lambda: status_of(cluster, "jobs", "imports", "alerts-trades").get("matches") == 1,
            30.0,
            "the import of the examples is connected",
        )
    with operator(cluster, tmp_path, "streambroker", *options, token=token):
        assert key(cluster, "streambroker") == made is not None

    cluster.kubectl("delete", "-f", streams)
    cluster.kubectl("delete", "--wait=false", "-k", overlay)
    for name in ("streambroker", "jobs"):
        cluster.remove_namespace(name)
    remove_crds(cluster)


def options_of(cluster: ApiServer, place: str) -> list[str]:
    """Return the options that the Deployment gives to a broker, but for its addresses."""
    deployment = get(cluster, f"/apis/apps/v1/namespaces/{place}/deployments/streambroker")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    of_the_place = ("--host", "--port", "--metrics-port", "--webhook-port")
    return [x for x in container["args"][1:] if x.partition("=")[0] not in of_the_place]


def test_the_api_server_takes_the_examples(cluster: ApiServer) -> None:
    cluster.apply_crds()
    home = charts.ROOT / "examples/kubernetes"
    done = cluster.kubectl("apply", "--server-side", "-f", str(home / "jobs.yaml"))
    assert done.stderr.strip() == ""
    account = {"metadata": {"name": "default"}}
    cluster.request("POST", "/api/v1/namespaces/jobs/serviceaccounts", account)
    made = []
    for name in ("streams", "network-policies", "feed-driver", "feed-driver-sidecar", "executor"):
        for each in yaml.safe_load_all((home / f"{name}.yaml").read_text()):
            # Spark gives its pods name and namespace.
            own = {"name": name, "namespace": "jobs"} if each["kind"] == "Pod" else {}
            made.append({**each, "metadata": {**each.get("metadata", {}), **own}})
    done = cluster.kubectl(
        "apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=yaml.safe_dump_all(made)
    )
    assert done.stderr.strip() == ""
    assert len(done.stdout.splitlines()) == len(made)
    cluster.remove_namespace("jobs")
    remove_crds(cluster)


def asked(
    cluster: ApiServer, user: str, namespace: str, verb: str, what: str, name: str = ""
) -> bool:
    """Ask whether somebody may do something; ``what`` is ``group/resource[/part]``."""
    group, _, rest = what.partition("/")
    resource, _, part = rest.partition("/")
    attributes = {
        "verb": verb,
        "group": group,
        "resource": resource,
        "subresource": part,
        "namespace": namespace,
        "name": name,
    }
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": attributes},
    }
    answer = cluster.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
    assert answer.status == 201, answer.message
    return bool(answer.body["status"]["allowed"])


def test_the_broker_may_do_its_work_and_nothing_beside_it(
    cluster: ApiServer, place: str, helm: helm_python.Config
) -> None:
    helm.install(charts.CHART, charts.RELEASE, without_crds())
    broker = f"system:serviceaccount:{place}:streambroker"
    allowed = [
        ("list", "streambroker.io/exports", ""),
        ("patch", "streambroker.io/imports/status", ""),
        ("create", "events.k8s.io/events", ""),
        ("create", "coordination.k8s.io/leases", ""),
        ("update", "coordination.k8s.io/leases", "streambroker"),
        ("get", "/secrets", "streambroker-key"),
        ("create", "authentication.k8s.io/tokenreviews", ""),
        ("get", "apiextensions.k8s.io/customresourcedefinitions", "exports.streambroker.io"),
    ]
    refused = [
        ("create", "/events", ""),
        ("list", "/secrets", ""),
        ("get", "/secrets", "another"),
        ("update", "/secrets", "streambroker-key"),
        ("get", "/pods", ""),
        ("update", "coordination.k8s.io/leases", "another"),
        ("list", "coordination.k8s.io/leases", ""),
        ("update", "streambroker.io/exports", ""),
        ("update", "streambroker.io/exports/status", ""),
        ("list", "apiextensions.k8s.io/customresourcedefinitions", ""),
        ("delete", "apiextensions.k8s.io/customresourcedefinitions", "exports.streambroker.io"),
    ]
    for verb, what, name in allowed:
        assert asked(cluster, broker, place, verb, what, name), (verb, what)
    for verb, what, name in refused:
        assert not asked(cluster, broker, place, verb, what, name), (verb, what)
    assert not asked(cluster, broker, "default", "list", "streambroker.io/exports")


@pytest.fixture
def others(cluster: ApiServer) -> Iterator[list[str]]:
    """Make two more namespaces."""
    names = [f"jobs-{uuid4().hex[:8]}" for _ in range(2)]
    for name in names:
        cluster.create_namespace(name)
    yield names
    for name in names:
        cluster.remove_namespace(name)


@pytest.mark.parametrize("watched", ["own", "list", "all"])
def test_the_rights_of_the_chart_are_enough_to_follow_what_it_watches_and_nothing_else(
    cluster: ApiServer,
    place: str,
    others: list[str],
    helm: helm_python.Config,
    tmp_path: Path,
    watched: str,
) -> None:
    everywhere = [place, *others]
    value, followed = {
        "own": ("own", [place]),
        "list": (others, others),
        "all": ("*", everywhere),
    }[watched]
    helm.install(charts.CHART, charts.RELEASE, charts.with_registry({"watchNamespaces": value}))
    cluster.await_kinds()
    options = options_of(cluster, place)
    audience = ("https://kubernetes.default.svc",)
    token = token_of(cluster, place, "streambroker", audiences=audience)

    with operator(cluster, tmp_path, place, *options, token=token) as broker:
        for name in set(everywhere) - set(followed):
            declare(cluster, name)
        agents = [connected(cluster, name, broker)[1] for name in followed]
        for alerts in agents:
            change = alerts.at("/import/in/filter"), {"filter": "price > 1.0"}
            status, answer, _ = broker.call(alerts.token, "PUT", *change)
            assert status == 200, answer
        matched = broker.probe("/metrics")[1]
        for name in followed:
            cluster.kubectl("delete", "export", "feed", "-n", name)
        # Less than the pause between two sweeps: this is told by who follows.
        gone = "\nstreambroker_routes 0.0\n"
        until(lambda: gone in broker.probe("/metrics")[1], 30.0, "the deletions are told")
        figures = broker.probe("/metrics")[1]

    assert f"\nstreambroker_routes {len(followed)}.0\n" in matched
    for name in set(everywhere) - set(followed):
        for plural, stream in (("exports", "feed"), ("imports", "alerts")):
            assert status_of(cluster, name, plural, stream) == {}
    assert "\nstreambroker_feeder_restarts_total 0.0\n" in figures
    assert 'result="done"' in figures
    for missed in ("refused", "failed", "denied"):
        assert not re.search(rf'="{missed}"}} [1-9]', figures), missed


def test_who_may_filter_may_do_nothing_else(
    cluster: ApiServer, place: str, helm: helm_python.Config
) -> None:
    helm.install(charts.CHART, charts.RELEASE, without_crds())
    for role in ("filter", "steer", "edit", "view"):
        name = f"{place}:streambroker:{role}"
        done = cluster.kubectl(
            "-n", place, "create", "rolebinding", role, f"--clusterrole={name}", f"--user={role}"
        )
        assert done.returncode == 0, done.stderr
    rights = {
        (user, verb, what): asked(cluster, user, place, verb, f"streambroker.io/{what}")
        for user in ("filter", "steer", "edit", "view")
        for verb, what in (
            ("get", "imports"),
            ("patch", "imports"),
            ("patch", "imports/filter"),
            ("patch", "imports/streams"),
            ("patch", "exports/properties"),
            ("patch", "exports/control"),
            ("patch", "imports/control"),
        )
    }
    granted = {right for right, allowed in rights.items() if allowed}
    assert granted == {
        *((user, "get", "imports") for user in ("filter", "steer", "edit", "view")),
        ("filter", "patch", "imports/filter"),
        ("steer", "patch", "imports/filter"),
        ("steer", "patch", "imports/streams"),
        ("steer", "patch", "exports/properties"),
        ("steer", "patch", "exports/control"),
        ("steer", "patch", "imports/control"),
        ("edit", "patch", "imports"),
    }


def test_view_and_edit_reach_those_whom_kubernetes_lets_view_and_edit(
    cluster: ApiServer, place: str, helm: helm_python.Config
) -> None:
    helm.install(charts.CHART, charts.RELEASE, without_crds())
    selectors = get(cluster, "/apis/rbac.authorization.k8s.io/v1/clusterroles/view")
    wanted = selectors["aggregationRule"]["clusterRoleSelectors"][0]["matchLabels"]
    path = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{place}:streambroker:view"
    assert wanted.items() <= get(cluster, path)["metadata"]["labels"].items()


# ---- the admission policy --------------------------------------------------------------------

SEEN = (
    "export-property-list-of-two-kinds",
    "export-property-list-with-null",
    "export-property-name",
    "export-property-number-beyond-int64",
    "export-property-reserved-name",
)


def test_the_admission_policy_refuses_what_the_crds_cannot_see(
    cluster: ApiServer, place: str, helm: helm_python.Config
) -> None:
    values = charts.with_registry({"admissionPolicy": {"enabled": True}})
    helm.install(charts.CHART, charts.RELEASE, values)
    path = f"{STREAMS}/namespaces/{place}/exports?dryRun=All&fieldValidation=Strict"
    bad = {each.name: each for each in samples("invalid") if each.only_by_broker}
    assert {name for name in bad if name.startswith("export-property")} == set(SEEN)

    def refused() -> bool:
        return cluster.request("POST", path, bad[SEEN[0]].documents[-1]).status == 422

    # It takes a moment until the API server follows a new policy.
    until(refused, 30.0, "the policy is in force")
    for name, version in product(SEEN, ("v1alpha1", "v1beta1")):
        document = {**bad[name].documents[-1], "apiVersion": f"streambroker.io/{version}"}
        answer = cluster.request("POST", path.replace("v1alpha1", version), document)
        assert (answer.status, "spec.properties: " in answer.message) == (422, True), name
    for good in samples("valid"):
        if good.plural == "exports" and len(good.documents) == 1:
            answer = cluster.request("POST", path, good.documents[0])
            assert answer.status == 201, (good.name, answer.message)


# ---- the webhook -----------------------------------------------------------------------------

WRONG = 'kind = "live"'
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


def subscribed(cluster: ApiServer, place: str, subscription: str, **more: Any) -> Any:
    """Have an Import applied as people do; return what kubectl did."""
    spec = {"job": "alerts", "port": "in", "subscription": subscription, **more}
    metadata = {"name": "alerts", "namespace": place}
    # The versions that people write. The broker gets v1alpha1.
    head = {**declared("Import"), "apiVersion": "streambroker.io/v1beta1"}
    body = {**head, "metadata": metadata, "spec": spec}
    return cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(body))


def declared(kind: str) -> dict[str, Any]:
    return {"apiVersion": "streambroker.io/v1alpha1", "kind": kind}


def test_the_webhook_refuses_at_the_api_server_what_rest_refuses_with_the_place(
    cluster: ApiServer, place: str, helm: helm_python.Config, tmp_path: Path
) -> None:
    """The broker has the account, the Secret and the rights that the chart makes."""
    helm.install(charts.CHART, charts.RELEASE, charts.with_registry({"webhook": {"enabled": True}}))
    cluster.await_kinds()
    # No Service leads anywhere here.
    port = free_port()
    path = f"{CONFIGURATIONS}/streambroker.{place}"
    (hook,) = get(cluster, path)["webhooks"]
    here = {**hook, "clientConfig": {"url": f"https://127.0.0.1:{port}/"}}
    done = cluster.request("PATCH", path, {"webhooks": [here]}, content_type=MERGE)
    assert done.status == 200, done.message
    audience = ("https://kubernetes.default.svc",)
    token = token_of(cluster, place, "streambroker", audiences=audience)
    options = [*options_of(cluster, place), "--webhook-port", str(port)]

    assert subscribed(cluster, place, WRONG).returncode == 0
    with operator(cluster, tmp_path, place, *options, token=token):
        until(lambda: subscribed(cluster, place, WRONG).returncode, 60.0, "it is in force")
        refused = subscribed(cluster, place, WRONG).stderr
        sentence = (
            'admission webhook "resources.streambroker.io" denied the request: Invalid subscription'
            " at line 1, column 6: found `=`, expected a name, a value or an operator; write `==`"
        )
        assert sentence in refused
        assert refused.splitlines()[1:3] == [f"  {WRONG}", "       ^"]

        right = subscribed(cluster, place, 'kind == "live"')
        assert (right.returncode, right.stderr) == (0, "")
        assert subscribed(cluster, "default", WRONG).returncode == 0, "another's namespace"

        spec = {"job": "feed", "port": "out", "properties": {"kind": "live"}}
        columns = {"schema": [{"name": "price", "type": "double"}]}
        export = {**declared("Export"), "metadata": {"name": "feed"}, "spec": {**spec, **columns}}
        made = cluster.request("POST", f"{STREAMS}/namespaces/{place}/exports", export)
        assert made.status == 201, made.message
        filters = partial(subscribed, cluster, place, 'kind == "live"', filter='price > "much"')
        until(lambda: "Warning: " in filters().stderr, 30.0, "the Export is known")
        assert filters().returncode == 0

        own = {**declared("Import"), "metadata": {"name": "alerts"}}
        own["spec"] = {"job": "alerts", "port": "in", "subscription": WRONG}
        where = f"{STREAMS}/namespaces/{place}/imports?dryRun=All"
        assert cluster.request("POST", where, own, token=token).status == 201, "its own write"
        assert cluster.request("POST", where, own).status == 422

    assert subscribed(cluster, place, WRONG).returncode == 0, "the broker is away"
