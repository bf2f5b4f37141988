"""The manifests and programs of examples/kubernetes fit each other, the chart and the agent."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from pe_agent.agent.process import STORAGE_VARIABLE, parse_settings
from pe_agent.transport import broker_trust as tls
from pe_agent.transport.agent_tls import INSECURE_VARIABLE
from streambroker_core.wire.manifests.ports import READ_API_VERSIONS, read_manifest
from support.kubernetes import charts

HOME = charts.ROOT / "examples/kubernetes"
MANIFESTS = sorted(HOME.rglob("*.yaml"))
TOKEN = {
    "serviceAccountToken": {"audience": "streambroker", "expirationSeconds": 600, "path": "token"}
}
DRIVERS = {
    "feed-driver.yaml": "feed",
    "feed-driver-sidecar.yaml": "feed",
    "alerts-driver.yaml": "alerts",
}
"""Pod templates, and the job of each."""


def documents(name: str) -> list[charts.Object]:
    return list(yaml.load_all((HOME / name).read_text(), charts.Strict))


def everything() -> list[charts.Object]:
    return [each for path in MANIFESTS for each in documents(str(path.relative_to(HOME)))]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: str(path.relative_to(HOME)))
def test_a_manifest_is_valid(path: Path) -> None:
    for each in documents(str(path.relative_to(HOME))):
        if each["apiVersion"] in READ_API_VERSIONS:
            read_manifest(each)
        elif each["kind"] == "Pod":
            # Spark fills in name, image and volumes of its own.
            whole = {**each, "metadata": {**each.get("metadata", {}), "name": "a"}}
            kubernetes_validate.validate(whole, charts.VERSION, strict=True)
        elif each["kind"] in ("SparkApplication", "SparkConnect"):
            # test_spark_operators.py checks fields of the operator's own.
            for template in templates(each):
                whole = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "a"}}
                whole["template"] = template
                kubernetes_validate.validate(whole, charts.VERSION, strict=True)
        else:
            kubernetes_validate.validate(each, charts.VERSION, strict=True)


def test_every_pod_fits_the_standard_that_its_namespace_enforces() -> None:
    namespace = charts.one(documents("jobs.yaml"), "Namespace")
    label = "pod-security.kubernetes.io/enforce"
    assert namespace["metadata"]["labels"][label] == "restricted"
    for name in (
        *DRIVERS,
        *(f"tls/{each}" for each in DRIVERS),
        "feed-driver-bucket.yaml",
        "executor.yaml",
        "tls/executor.yaml",
    ):
        charts.restricted(documents(name)[0]["spec"])
    for role in ("driver", "executor"):
        part = operator_spec("alerts-kubeflow")[role]
        container = {"securityContext": part["securityContext"]}
        charts.restricted(
            {"securityContext": part["podSecurityContext"], "containers": [container]}
        )
    for name in ("alerts-apache", "connect-kubeflow"):
        (application,) = documents(f"operators/{name}.yaml")
        assert len(templates(application)) == 2
        for template in templates(application):
            charts.restricted(template["spec"])


def operator_spec(name: str) -> Any:
    """Return the spec of a manifest for an operator."""
    (application,) = documents(f"operators/{name}.yaml")
    return application["spec"]


def templates(application: charts.Object) -> list[Any]:
    """Return the pod templates of an application or a server: driver or server, then executors."""
    spec = application["spec"]
    found = [spec.get(role, {}) for role in ("driverSpec", "server", "executorSpec", "executor")]
    each = [part.get("podTemplateSpec") or part.get("template") for part in found]
    return [template for template in each if template is not None]


def test_a_driver_of_an_operator_is_the_one_of_spark_submit() -> None:
    submitted = documents("alerts-driver.yaml")[0]
    (container,) = submitted["spec"]["containers"]
    parts = "env", "securityContext", "volumeMounts"
    wanted = {part: container[part] for part in parts}
    (apache,) = documents("operators/alerts-apache.yaml")
    template = templates(apache)[0]
    kubeflow = operator_spec("alerts-kubeflow")
    assert {part: template["spec"]["containers"][0][part] for part in parts} == wanted
    assert {part: kubeflow["driver"][part] for part in parts} == wanted
    assert template["spec"]["securityContext"] == submitted["spec"]["securityContext"]
    labels = submitted["metadata"]["labels"]
    assert template["metadata"]["labels"] == kubeflow["driver"]["labels"] == labels
    volumes = submitted["spec"]["volumes"]
    assert template["spec"]["volumes"] == kubeflow["volumes"] == volumes
    conf = apache["spec"]["sparkConf"]
    account = conf["spark.kubernetes.authenticate.driver.serviceAccountName"]
    assert account == kubeflow["driver"]["serviceAccount"] == "alerts"
    images = conf["spark.kubernetes.container.image"], kubeflow["image"]
    assert images == (container["image"],) * 2
    program = "local:///opt/job/alerts.py"
    assert apache["spec"]["pyFiles"] == kubeflow["mainApplicationFile"] == program


def test_executors_of_apaches_operator_are_those_of_spark_submit() -> None:
    submitted = documents("executor.yaml")[0]["spec"]
    (apache,) = documents("operators/alerts-apache.yaml")
    executor = templates(apache)[1]["spec"]
    del submitted["containers"][0]["image"]  # the operator has it once, for all pods
    assert executor == submitted


def drivers() -> list[Any]:
    """Return job, volumes, and the containers that talk to the broker, of each driver."""
    spec = operator_spec("alerts-kubeflow")
    found = [("alerts", spec["volumes"], [spec["driver"]])]
    spec = operator_spec("alerts-apache")["driverSpec"]["podTemplateSpec"]["spec"]
    found.append(("alerts", spec["volumes"], spec["containers"]))
    for name, job in DRIVERS.items():
        pod = documents(name)[0]["spec"]
        containers = [*pod["containers"], *pod.get("initContainers", [])]
        found.append((job, pod["volumes"], containers))
    return found


@pytest.mark.parametrize(("job", "volumes", "containers"), drivers())
def test_a_driver_has_a_claim_of_its_own_and_a_token_for_the_broker_alone(
    job: str, volumes: list[dict[str, Any]], containers: list[dict[str, Any]]
) -> None:
    by_name = {each["name"]: each for each in volumes}
    claims = {x["metadata"]["name"] for x in charts.of_kind(everything(), "PersistentVolumeClaim")}
    assert by_name["agent"]["persistentVolumeClaim"] == {"claimName": f"{job}-0"}
    assert f"{job}-0" in claims
    assert by_name["broker-token"]["projected"]["sources"] == [TOKEN]
    for container in containers:
        mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        assert mounts["agent"] == "/var/lib/streambroker"
        assert mounts["broker-token"] == "/var/run/secrets/streambroker"
        names = {each["name"] for each in container["env"]}
        assert names == {"POD_IP", "POD_NAMESPACE", "STREAMBROKER_URL", INSECURE_VARIABLE}


def test_jobs_call_the_service_of_the_chart() -> None:
    service = charts.one(charts.objects(namespace="streambroker"), "Service", "streambroker")
    port = service["spec"]["ports"][0]["port"]
    url = f"http://{service['metadata']['name']}.{service['metadata']['namespace']}.svc:{port}"
    for _, _, containers in drivers():
        for container in containers:
            assert {"name": "STREAMBROKER_URL", "value": url} in container["env"]


@pytest.mark.parametrize("name", DRIVERS)
def test_a_driver_with_tls_is_the_one_without_and_what_tls_needs(name: str) -> None:
    values = {"watchNamespaces": ["jobs"]}
    made = charts.objects(
        {**values, "tls": {"mode": "self-signed"}, "agentTls": {"mode": "self-signed"}},
        namespace="streambroker",
    )
    there = {charts.key_of(each) for each in made}
    ca, secret = "streambroker-ca", "streambroker-agent-tls"
    assert {("ConfigMap", "jobs", ca), ("Secret", "jobs", secret)} <= there
    assert ("Secret", "jobs", "streambroker-agent-client") in there
    plain, secured = documents(name)[0], documents(f"tls/{name}")[0]
    plain["spec"]["volumes"] += [
        {"name": "broker-ca", "configMap": {"name": ca}},
        {"name": "agent-tls", "secret": {"secretName": secret, "defaultMode": 0o440}},
    ]
    place = "/var/run/secrets"
    for container in [*plain["spec"]["containers"], *plain["spec"].get("initContainers", [])]:
        for each in container["env"]:
            if each["name"] == "STREAMBROKER_URL":
                each["value"] = each["value"].replace("http:", "https:")
        container["env"] = [e for e in container["env"] if e["name"] != INSECURE_VARIABLE]
        container["env"] += [
            {"name": variable, "value": f"{place}/streambroker-{file}"}
            for variable, file in (
                (tls.VARIABLE, "ca/ca.crt"),
                (tls.CERTIFICATE_VARIABLE, "agent/tls.crt"),
                (tls.KEY_VARIABLE, "agent/tls.key"),
                (tls.AGENT_CA_VARIABLE, "agent/ca.crt"),
            )
        ]
        container["volumeMounts"] += [
            {"name": n, "mountPath": f"{place}/streambroker-{m}", "readOnly": True}
            for n, m in (("broker-ca", "ca"), ("agent-tls", "agent"))
        ]

    assert in_order(secured) == in_order(plain)


def test_a_driver_with_a_bucket_is_the_one_without_and_has_no_volume_that_stays() -> None:
    plain, stored = documents("feed-driver.yaml")[0], documents("feed-driver-bucket.yaml")[0]
    (container,) = stored["spec"]["containers"]
    given = {each["name"]: each.get("value") for each in container["env"]}
    bucket = given[STORAGE_VARIABLE]
    assert bucket.startswith("s3://")
    assert given["CHECKPOINT"] == "s3a://rows/checkpoints/jobs/feed"
    assert 'os.environ.get("CHECKPOINT"' in (HOME / "feed.py").read_text()
    own = (STORAGE_VARIABLE, "CHECKPOINT")
    container["env"] = [each for each in container["env"] if each["name"] not in own]
    assert container.pop("envFrom") == [{"secretRef": {"name": "feed-bucket", "optional": True}}]
    volumes = [{each["name"]: each for each in pod["spec"]["volumes"]} for pod in (stored, plain)]
    assert volumes[0]["agent"].pop("emptyDir") == {"sizeLimit": "4Gi"}
    volumes[1]["agent"].pop("persistentVolumeClaim")
    assert stored == plain


def in_order(pod: charts.Object) -> charts.Object:
    """Return a pod with its lists of named things sorted."""
    spec = pod["spec"]
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        for part in ("env", "volumeMounts"):
            container[part].sort(key=lambda each: each["name"])
    spec["volumes"].sort(key=lambda each: each["name"])
    return pod


def test_an_executor_with_tls_is_the_one_without_and_a_certificate_to_show() -> None:
    plain, secured = documents("executor.yaml")[0], documents("tls/executor.yaml")[0]
    secret = {"secretName": "streambroker-agent-client", "defaultMode": 0o440}
    plain["spec"]["volumes"] = [{"name": "client-tls", "secret": secret}]
    plain["spec"]["securityContext"]["fsGroup"] = 185
    (container,) = plain["spec"]["containers"]
    place = "/var/run/secrets/streambroker-client"
    shown = {tls.CERTIFICATE_VARIABLE: "tls.crt", tls.KEY_VARIABLE: "tls.key"}
    container["env"] = [{"name": n, "value": f"{place}/{file}"} for n, file in shown.items()]
    container["volumeMounts"] = [{"name": "client-tls", "mountPath": place, "readOnly": True}]
    assert secured == plain


def test_an_executor_gets_neither_token_nor_volume() -> None:
    (executor,) = documents("executor.yaml")
    assert executor["spec"]["automountServiceAccountToken"] is False
    assert "volumes" not in executor["spec"]
    assert "volumeMounts" not in operator_spec("alerts-kubeflow")["executor"]


def test_each_job_has_an_account_of_its_own() -> None:
    accounts = {
        x["metadata"]["name"] for x in charts.of_kind(documents("jobs.yaml"), "ServiceAccount")
    }
    text = (HOME / "submit.sh").read_text()
    assert '"spark.kubernetes.authenticate.driver.serviceAccountName=$job"' in text
    assert set(DRIVERS.values()) == accounts
    assert operator_spec("alerts-kubeflow")["driver"]["serviceAccount"] == "alerts"
    binding = charts.one(documents("jobs.yaml"), "RoleBinding")
    assert {each["name"] for each in binding["subjects"]} == accounts


def test_drivers_have_no_rights_to_streams_but_through_the_broker() -> None:
    (role,) = charts.of_kind(documents("jobs.yaml"), "Role")
    assert {group for rule in role["rules"] for group in rule["apiGroups"]} == {""}


def test_the_sidecar_starts_the_agent_that_the_program_adopts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(INSECURE_VARIABLE, "allow")  # as in both containers
    pod = documents("feed-driver-sidecar.yaml")[0]["spec"]
    (sidecar,) = pod["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["args"][:3] == ["python3", "-m", "pe_agent.agent"]
    env = {"POD_NAMESPACE": "jobs", "POD_IP": "10.0.0.5", "STREAMBROKER_URL": "http://b:8470"}
    given = [re.sub(r"\$\((\w+)\)", lambda m: env[m[1]], each) for each in sidecar["args"][3:]]
    agent, program = parse_settings(given), started("feed.py")
    assert agent.pe.job == program["job"]
    assert str(agent.home) == program["data_dir"]
    assert agent.port == program["port"]
    assert agent.linger < 0
    assert str(agent.token.path) == program["token_file"]
    assert sidecar["startupProbe"]["tcpSocket"]["port"] == agent.port


def started(name: str) -> dict[str, Any]:
    """Return the constant arguments of a program's ``sb.start``, those of nested settings too."""
    text = (HOME / name).read_text()
    home = re.search(r'^HOME = "(.+)"$', text, re.MULTILINE)
    assert home is not None
    for node in ast.walk(ast.parse(text.replace('f"{HOME}', f'"{home[1]}'))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "sb.start":
            words = {one.arg: one.value for one in ast.walk(node) if isinstance(one, ast.keyword)}
            return {k: v.value for k, v in words.items() if k and isinstance(v, ast.Constant)}
    raise AssertionError(f"{name} starts no PE")


@pytest.mark.parametrize(("program", "kind"), [("feed.py", "Export"), ("alerts.py", "Import")])
def test_programs_use_the_ports_that_are_declared(program: str, kind: str) -> None:
    declared = charts.one(documents("streams.yaml"), kind)["spec"]
    given = started(program)
    assert given["job"] == declared["job"]
    call = "publish" if kind == "Export" else "subscribe"
    assert re.search(
        rf'pe\.{call}\((?:trades, )?"{declared["port"]}"', (HOME / program).read_text()
    )


def test_policies_open_the_port_of_the_agents_and_that_of_the_broker() -> None:
    agents, jobs, *_ = documents("network-policies.yaml")
    port = started("feed.py")["port"]
    rows, hints = agents["spec"]["ingress"]
    assert rows["ports"] == [{"protocol": "TCP", "port": port}]
    assert hints["ports"] == [{"protocol": "UDP"}]
    pods = dict(charts.pods(charts.objects(namespace="streambroker")))
    labels = pods["streambroker"]["metadata"]["labels"].items()
    for peer in (hints["from"][0], jobs["spec"]["egress"][0]["to"][0]):
        assert peer["podSelector"]["matchLabels"].items() <= labels
        selector = peer["namespaceSelector"]["matchLabels"]
        assert selector == {"kubernetes.io/metadata.name": "streambroker"}
    assert jobs["spec"]["egress"][0]["ports"] == [{"protocol": "TCP", "port": 8470}]


def test_policies_leave_spark_what_it_needs_among_its_own_pods_and_from_the_cluster() -> None:
    """Who selects a pod closes it for all that no policy names."""
    *_, spark, cluster = documents("network-policies.yaml")
    own = [{"podSelector": spark["spec"]["podSelector"]}]
    assert (spark["spec"]["ingress"], spark["spec"]["egress"]) == ([{"from": own}], [{"to": own}])
    assert cluster["spec"]["podSelector"] == spark["spec"]["podSelector"]
    ports = {port["port"] for rule in cluster["spec"]["egress"] for port in rule["ports"]}
    assert ports == {53, 443, 6443}


@pytest.mark.parametrize(("name", "job"), DRIVERS.items())
def test_submitting_names_files_that_are_there(name: str, job: str) -> None:
    text = (HOME / "submit.sh").read_text().replace("$job", job)
    for each in re.findall(r"\b[a-z][\w-]*\.(?:yaml|py)\b", text):
        assert (HOME / each).exists(), each
    (pod,) = documents(name)
    assert pod["metadata"]["labels"] == {"streambroker.io/job": job}
    assert {"name": "program", "configMap": {"name": f"{job}-program"}} in pod["spec"]["volumes"]
    container = pod["spec"]["containers"][0]
    assert f"podTemplateContainerName={container['name']}" in text
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert f"local://{mounts['program']}/{job}.py" in text
