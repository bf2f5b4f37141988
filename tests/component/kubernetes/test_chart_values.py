"""The values of the chart: described, strict, and each with its effect."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import helm_python
import pytest
import yaml

from streambroker_core.wire.manifests.quotas import read_quotas
from support.kubernetes import charts

SCHEMA: dict[str, Any] = json.loads((charts.CHART / "values.schema.json").read_text())
DEFAULTS: dict[str, Any] = yaml.safe_load((charts.CHART / "values.yaml").read_text())
ELSEWHERE = ("global",)
"""Values that Helm itself hands over."""


def resolved(node: dict[str, Any]) -> dict[str, Any]:
    name = node.get("$ref", "").removeprefix("#/$defs/")
    return {**SCHEMA["$defs"][name], **node} if name else node


def nodes(
    node: dict[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield each part of the schema that a key of the values has."""
    node = resolved(node)
    yield path, node
    for name, child in node.get("properties", {}).items():
        if name not in ELSEWHERE:
            yield from nodes(child, (*path, name))


def at(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    made = value
    for name in reversed(path):
        made = {name: made}
    assert isinstance(made, dict)
    return made


def leaves(values: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in values.items():
        if (*path, name) in GROUPS:
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name)


GROUPS = [path for path, node in nodes(SCHEMA) if "properties" in node]
LEAVES = list(leaves(DEFAULTS))


@pytest.mark.parametrize("path", GROUPS, ids=".".join)
def test_an_unknown_key_is_refused_at_every_level(path: tuple[str, ...]) -> None:
    with pytest.raises(helm_python.HelmValuesError, match="unheardOf"):
        charts.chart().validate_schema(at((*path, "unheardOf"), 1))


@pytest.mark.parametrize("path", LEAVES, ids=".".join)
def test_a_value_of_another_type_is_refused(path: tuple[str, ...]) -> None:
    wrong: Any = [["of", "no", "use"]]
    with pytest.raises(helm_python.HelmValuesError, match="/" + "/".join(path)):
        charts.chart().validate_schema(at(path, wrong))


@pytest.mark.parametrize("path", LEAVES, ids=".".join)
def test_a_number_for_a_text_and_a_text_for_a_number_are_refused(path: tuple[str, ...]) -> None:
    default: Any = DEFAULTS
    for name in path:
        default = default[name]
    wrong = 7.5 if isinstance(default, str) and "resources" not in path else "of no use!"
    with pytest.raises(helm_python.HelmValuesError, match="/" + "/".join(path)):
        charts.chart().validate_schema(at(path, wrong))


def test_every_value_is_described_and_every_description_has_a_value() -> None:
    described = {path for path, node in nodes(SCHEMA) if "description" in node}
    assert set(LEAVES) <= described
    known = {path for path, _ in nodes(SCHEMA)} - {("resources", "limits", "cpu")}
    assert {path for path in known if path not in GROUPS} == set(LEAVES)


PARTS_OF_PODS = ("affinity", "extraVolumes", "extraVolumeMounts")
"""What Kubernetes checks, and this schema only roughly."""


def test_maps_that_users_fill_hold_texts_or_objects_of_known_keys() -> None:
    for path, node in nodes(SCHEMA):
        if path and path[0] in PARTS_OF_PODS:
            continue
        if node.get("type") == "object" and "properties" not in node:
            inside = node["additionalProperties"]
            assert inside["type"] == "string" or inside["additionalProperties"] is False, path
        elif node.get("type") == "object":
            assert node["additionalProperties"] is False, path


@pytest.mark.parametrize(
    ("values", "reported"),
    [
        ({"replicas": 0}, "/replicas"),
        ({"watchNamespaces": []}, "/watchNamespaces"),
        ({"watchNamespaces": "jobs"}, "'own', '*'"),
        ({"watchNamespaces": ["Jobs"]}, "/watchNamespaces/0"),
        ({"watchNamespaces": ["jobs", "jobs"]}, "/watchNamespaces"),
        ({"feeder": "informer"}, "'kopf', 'reflector'"),
        ({"tls": {"mode": "on"}}, "/tls/mode"),
        ({"tls": {"mode": True}}, "/tls/mode"),
        ({"agentTls": {"mode": "on"}}, "/agentTls/mode"),
        ({"image": {"digest": "sha256:1"}}, "/image/digest"),
        ({"image": {"registry": "https://images.example.com"}}, "/image/registry"),
        ({"image": {"registry": "images.example.com/"}}, "/image/registry"),
        ({"runAsUser": 0}, "/runAsUser"),
        ({"extraArgs": ["feeder"]}, "/extraArgs/0"),
        ({"extraEnv": [{"name": "TZ"}]}, "value"),
        ({"extraEnv": [{"name": "TZ", "value": "UTC", "more": 1}]}, "more"),
        ({"tolerations": [{"keys": "a"}]}, "keys"),
        ({"service": {"port": 70000}}, "/service/port"),
        ({"networkPolicy": {"apiServerCidrs": ["10.0.0.1"]}}, "/networkPolicy/apiServerCidrs/0"),
        ({"resources": {"limits": {"memory": "1GB"}}}, "/resources/limits/memory"),
        ({"podLabels": {"a": "not a label"}}, "/podLabels/a"),
        ({"lineage": {"url": "marquez:5000"}}, "/lineage/url"),
        ({"lineage": {"url": "http://me:secret@marquez"}}, "/lineage/url"),
        ({"otlp": {"endpoint": "collector:4318"}}, "/otlp/endpoint"),
        ({"logFormat": "xml"}, "'text', 'json'"),
    ],
)
def test_a_value_out_of_its_range_is_refused(values: dict[str, Any], reported: str) -> None:
    with pytest.raises(helm_python.HelmValuesError) as refused:
        charts.chart().validate_schema(values)
    assert reported in str(refused.value)


@pytest.mark.parametrize(
    ("values", "reported"),
    [
        ({"tls": {"mode": "secret"}}, "tls.secretName: name the Secret"),
        ({"tls": {"mode": "cert-manager"}}, "tls.certManager.issuerName: name the issuer"),
        (
            {"agentTls": {"mode": "cert-manager"}},
            "agentTls.certManager.issuerName: name the issuer",
        ),
        (
            {"agentTls": {"mode": "self-signed"}, "watchNamespaces": "*"},
            "make a Secret streambroker-agent-tls in each and set agentTls.mode to secret",
        ),
    ],
)
def test_what_a_tls_mode_needs_is_asked_for(values: dict[str, Any], reported: str) -> None:
    with pytest.raises(helm_python.HelmRenderError, match=reported):
        charts.files(values)


def test_a_chart_without_a_registry_is_refused_and_an_example_is_given() -> None:
    with pytest.raises(helm_python.HelmRenderError) as refused:
        charts.chart().render({}, name=charts.RELEASE, namespace=charts.NAMESPACE)
    assert "image.registry: name the registry that has the image" in str(refused.value)
    assert "--set image.registry=registry.example.com/streams" in str(refused.value)


def test_a_registry_with_a_port_and_a_path_stands_before_the_image() -> None:
    found = charts.objects({"image": {"registry": "images.example.com:5000/streams"}})
    for _, pod in charts.pods(found):
        [container] = pod["spec"]["containers"]
        assert container["image"].startswith("images.example.com:5000/streams/streambroker/broker:")


def test_a_bare_off_in_a_values_file_is_off() -> None:
    values = helm_python.values_from_yaml("{tls: {mode: off}, agentTls: {mode: off}}")
    assert values == {"tls": {"mode": False}, "agentTls": {"mode": False}}
    made = {charts.key_of(each) for each in charts.objects(values)}
    agents = {("Secret", "sb", f"streambroker-agent-{name}") for name in ("tls", "client")}
    assert made == {charts.key_of(each) for each in charts.objects()} - agents
    assert not any("--tls" in arg for arg in arguments(charts.objects(values)))


@pytest.mark.parametrize("values", charts.VARIANTS.values(), ids=charts.VARIANTS)
def test_lint_finds_nothing_wrong(values: dict[str, Any]) -> None:
    report = helm_python.lint(
        charts.CHART,
        charts.with_registry(values),
        strict=True,
        namespace="sb",
        kube_version="v1.34.4",
    )
    # 1 is information: the chart has no icon.
    assert [each for each in report["messages"] if each["severity"] > 1] == []
    assert report["errors"] == []


def arguments(found: list[charts.Object]) -> list[str]:
    deployment = charts.one(found, "Deployment")
    args: list[str] = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    return args


def test_values_become_options_of_the_operator() -> None:
    assert arguments(charts.objects()) == [
        "operator",
        "--feeder=kopf",
        "--watch-namespaces=own",
        "--lease-name=streambroker",
        "--secret-name=streambroker-key",
        "--host=0.0.0.0",
        "--port=8470",
        "--metrics-port=8471",
        "--log-level=INFO",
        "--log-format=text",
    ]
    changed = arguments(charts.objects(charts.VARIANTS["everything else"]))
    assert {"--feeder=reflector", "--lease-name=leader", "--secret-name=the-key"} <= set(changed)
    assert {"--log-level=DEBUG", "--limits=reads=100"} <= set(changed)
    listed = arguments(charts.objects({"watchNamespaces": ["jobs", "reports"]}))
    assert "--watch-namespaces=jobs,reports" in listed
    assert "--watch-namespaces=*" in arguments(charts.objects({"watchNamespaces": "*"}))
    limited = arguments(charts.objects({"statusesPerSecond": 0.5}))
    assert "--statuses-per-s=0.5" in limited
    lineage = {"url": "http://marquez:5000", "namespace": "prod"}
    sending = arguments(charts.objects({"lineage": lineage}))
    assert {"--lineage-url=http://marquez:5000", "--lineage-namespace=prod"} <= set(sending)
    quotas = {"*": {"ports": 200, "bytes": 10_737_418_240, "jobBytesPerSecond": "20Mi"}}
    (given,) = [
        one.removeprefix("--quotas=")
        for one in arguments(charts.objects({"quotas": quotas}))
        if one.startswith("--quotas=")
    ]
    assert read_quotas(json.loads(given)) == read_quotas(quotas)
    by_broker = charts.objects({"key": {"create": False, "byBroker": True}})
    assert "--make-secret" in arguments(by_broker)
    secured = arguments(charts.objects(charts.VARIANTS["TLS self-signed"]))
    assert {"--tls-cert=/tls/tls.crt", "--tls-key=/tls/tls.key"} <= set(secured)


def test_a_collector_is_in_the_environment_and_allowed_by_the_network_policy() -> None:
    def broker(values: dict[str, Any]) -> tuple[Any, list[Any]]:
        found = charts.objects(values)
        [container] = charts.one(found, "Deployment")["spec"]["template"]["spec"]["containers"]
        names = {one["name"]: one.get("value") for one in container["env"]}
        policy = charts.one(found, "NetworkPolicy")
        return names.get("OTEL_EXPORTER_OTLP_ENDPOINT"), policy["spec"]["egress"]

    url = "http://collector.monitoring:4318"
    (none, before), (named, after) = broker({}), broker({"otlp": {"endpoint": url}})
    assert (none, named) == (None, url)
    monitoring = {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}
    added = {
        "to": [{"namespaceSelector": monitoring}],
        "ports": [{"protocol": "TCP", "port": 4318}],
    }
    assert [rule for rule in after if rule not in before] == [added]
    assert "--log-format=json" in arguments(charts.objects({"logFormat": "json"}))


@pytest.mark.parametrize(
    ("variant", "less", "more"),
    [
        ("one replica", {"PodDisruptionBudget"}, set()),
        ("TLS from a secret", set(), set()),
        ("TLS by cert-manager", set(), {"Certificate"}),
        ("TLS self-signed", set(), {"Secret", "ConfigMap"}),
        ("agents' TLS from a secret", {"Secret"}, set()),
        (
            "admission policy",
            set(),
            {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"},
        ),
        ("monitoring", set(), {"ServiceMonitor", "PrometheusRule", "ConfigMap"}),
        (
            "nothing that can be left out",
            {
                "Secret",
                "CustomResourceDefinition",
                "Role",
                "RoleBinding",
                "ClusterRole",
                "ClusterRoleBinding",
                "NetworkPolicy",
                "PodDisruptionBudget",
                "ServiceAccount",
            },
            set(),
        ),
    ],
)
def test_a_switch_adds_and_removes_its_objects_only(
    variant: str, less: set[str], more: set[str]
) -> None:
    before = {charts.key_of(each) for each in charts.objects()}
    after = {charts.key_of(each) for each in charts.objects(charts.VARIANTS[variant])}
    assert {kind for kind, _, _ in before - after} == less
    assert {kind for kind, _, _ in after - before} == more


def test_pods_carry_what_the_values_give_them() -> None:
    found = charts.objects(charts.VARIANTS["everything else"])
    pod = charts.one(found, "Deployment")["spec"]["template"]
    container = pod["spec"]["containers"][0]
    assert container["image"] == "images.example.com/broker@sha256:" + "a" * 64
    assert {"name": "TZ", "value": "UTC"} in container["env"]
    assert pod["metadata"]["annotations"] == {"a": "b"}
    assert pod["metadata"]["labels"]["tier"] == "control"
    assert pod["metadata"]["labels"]["team"] == "streams"
    assert pod["spec"]["imagePullSecrets"] == [{"name": "images"}]
    assert pod["spec"]["securityContext"]["runAsUser"] == 20000
    assert pod["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert pod["spec"]["tolerations"][0]["key"] == "dedicated"
    assert pod["spec"]["priorityClassName"] == "high"
    assert charts.one(found, "Deployment")["metadata"]["annotations"] == {"a": "b"}
    assert {"name": "ca", "configMap": {"name": "ca"}} in pod["spec"]["volumes"]
    mount = {"name": "ca", "mountPath": "/ca", "readOnly": True}
    assert mount in container["volumeMounts"]
    assert list(pod["spec"]["affinity"]) == ["nodeAffinity"]
    startup, liveness = container["startupProbe"], container["livenessProbe"]
    assert (startup["failureThreshold"], startup["periodSeconds"]) == (300, 2)
    assert (liveness["timeoutSeconds"], liveness["failureThreshold"]) == (9, 6)
    spread = [each["whenUnsatisfiable"] for each in pod["spec"]["topologySpreadConstraints"]]
    assert spread == ["DoNotSchedule", "ScheduleAnyway"]
    assert charts.one(found, "PodDisruptionBudget")["spec"]["maxUnavailable"] == "50%"
    service = charts.one(found, "Service", "streambroker")["spec"]
    assert (service["ports"][0]["port"], service["sessionAffinity"]) == (80, "None")
    usual = charts.one(charts.objects(), "Service", "streambroker")["spec"]
    assert usual["sessionAffinity"] == "ClientIP"


def test_labels_of_the_user_do_not_take_the_pods_from_their_deployment() -> None:
    names = ("app.kubernetes.io/name", "app.kubernetes.io/component")
    theirs = dict.fromkeys(names, "other")
    found = charts.objects({"podLabels": theirs, "commonLabels": theirs})
    deployment = charts.one(found, "Deployment")["spec"]
    wanted = deployment["selector"]["matchLabels"].items()
    assert wanted <= deployment["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize(
    ("values", "port"),
    [
        ({"url": "http://marquez:5000"}, 5000),
        ({"url": "http://marquez/api"}, 80),
        ({"url": "https://marquez"}, 443),
        ({"url": "http://[fd00::1]:81"}, 81),
        ({"url": "http://marquez", "port": 5000}, 5000),
    ],
)
def test_brokers_may_reach_the_receiver_of_lineage(values: dict[str, Any], port: int) -> None:
    def egress(found: list[charts.Object]) -> list[Any]:
        rules: list[Any] = charts.one(found, "NetworkPolicy")["spec"]["egress"]
        return rules

    before, after = egress(charts.objects()), egress(charts.objects({"lineage": values}))
    added = [rule for rule in after if rule not in before]
    assert added == [{"ports": [{"protocol": "TCP", "port": port}]}]


def test_the_token_for_lineage_comes_from_its_secret_and_only_if_lineage_is_sent() -> None:
    def variables(lineage: dict[str, str]) -> list[Any]:
        deployment = charts.one(charts.objects({"lineage": lineage}), "Deployment")
        env: list[Any] = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
        return [one for one in env if one["name"] == "STREAMBROKER_LINEAGE_TOKEN"]

    source = {"secretKeyRef": {"name": "marquez", "key": "token"}}
    (found,) = variables({"url": "http://marquez", "secretName": "marquez"})
    assert found["valueFrom"] == source
    assert variables({"secretName": "marquez"}) == []
    assert variables({"url": "http://marquez"}) == []
