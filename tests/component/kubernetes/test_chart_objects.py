"""The objects of the chart: valid, fitting together, and with as few rights as can be."""

from __future__ import annotations

import base64
import contextlib
import ssl
import urllib.error
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kubernetes_validate
import pytest

from pe_agent.agent.server import listener
from pe_agent.transport.agent_tls import AgentCertificate
from pe_agent.transport.broker_trust import AGENT_NAME, TrustError
from support.kubernetes import charts

CLIENT = "streambroker-client"
"""The DNS name in what executors show: not that of agents."""
FOREIGN = {"Certificate", "PrometheusRule", "ServiceMonitor"}
"""Kinds of other projects, of which there is no schema here."""


@pytest.mark.parametrize("values", charts.VARIANTS.values(), ids=charts.VARIANTS)
def test_every_object_is_valid_to_the_last_field(values: charts.Values) -> None:
    for each in charts.objects(values):
        if each["kind"] not in FOREIGN:
            kubernetes_validate.validate(each, charts.VERSION, strict=True)


@pytest.mark.parametrize("values", charts.VARIANTS.values(), ids=charts.VARIANTS)
def test_pods_fit_the_restricted_standard(values: charts.Values) -> None:
    running = list(charts.pods(charts.objects(values)))
    assert [name for name, _ in running] == ["streambroker", "streambroker-test"]
    for _, pod in running:
        charts.restricted(pod["spec"])
        for container in pod["spec"]["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["resources"]["limits"]["memory"]
            assert container["resources"]["requests"]["cpu"]


def test_only_the_brokers_pods_get_a_token_of_the_api_server() -> None:
    found = charts.objects()
    mounted = {n: pod["spec"]["automountServiceAccountToken"] for n, pod in charts.pods(found)}
    assert mounted == {"streambroker": True, "streambroker-test": False}
    assert charts.one(found, "ServiceAccount")["automountServiceAccountToken"] is False


def test_the_charts_test_waits_while_the_service_refuses_connections(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (container,) = charts.one(charts.objects(), "Pod")["spec"]["containers"]
    script, *urls = container["args"]
    answers = iter([ConnectionRefusedError("not yet"), 200, ConnectionRefusedError("not yet"), 401])

    def answer(url: str, **_: Any) -> Any:
        match next(answers):
            case OSError() as error:
                raise urllib.error.URLError(error)
            case 200:
                return contextlib.nullcontext(SimpleNamespace(status=200))
            case int(code):
                raise urllib.error.HTTPError(url, code, "", Message(), None)

    monkeypatch.setattr("urllib.request.urlopen", answer)
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr("sys.argv", ["-c", *urls])
    with pytest.raises(SystemExit) as ended:
        exec(compile(script, "test", "exec"), {})
    assert (ended.value.code, capsys.readouterr().out.count("as it should")) == (0, 2)


def test_two_replicas_are_spread_over_hosts_and_zones_and_leave_one_by_one() -> None:
    found = charts.objects()
    deployment = charts.one(found, "Deployment")["spec"]
    assert deployment["replicas"] == 2
    assert deployment["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    constraints = deployment["template"]["spec"]["topologySpreadConstraints"]
    keys = [each["topologyKey"] for each in constraints]
    assert keys == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    own = deployment["selector"]["matchLabels"]
    assert all(each["labelSelector"]["matchLabels"] == own for each in constraints)
    budget = charts.one(found, "PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"]["matchLabels"] == own


def test_services_and_rules_select_the_brokers_pods_and_no_others() -> None:
    found = charts.objects(charts.VARIANTS["monitoring"])
    labels = {name: pod["metadata"]["labels"] for name, pod in charts.pods(found)}
    selectors = [each["spec"]["selector"] for each in charts.of_kind(found, "Service")]
    selectors.append(charts.one(found, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"])
    assert len(selectors) == 3
    for selector in selectors:
        chosen = [name for name, own in labels.items() if selector.items() <= own.items()]
        assert chosen == ["streambroker"]


def test_rest_and_metrics_have_a_service_each() -> None:
    found = charts.objects()
    rest = charts.one(found, "Service", "streambroker")["spec"]
    metrics = charts.one(found, "Service", "streambroker-metrics")["spec"]
    container = charts.one(found, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"rest": 8470, "metrics": 8471}
    assert [(p["port"], p["targetPort"]) for p in rest["ports"]] == [(8470, "rest")]
    assert [(p["port"], p["targetPort"]) for p in metrics["ports"]] == [(8471, "metrics")]
    assert metrics["clusterIP"] == "None"
    assert metrics["publishNotReadyAddresses"] is True
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == "metrics"


def test_the_service_monitor_finds_the_metrics_service_only() -> None:
    found = charts.objects(charts.VARIANTS["monitoring"])
    monitor = charts.one(found, "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    services = charts.of_kind(found, "Service")
    chosen = [x["metadata"]["name"] for x in services if wanted <= x["metadata"]["labels"].items()]
    assert chosen == ["streambroker-metrics"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["endpoints"][0]["port"] == "metrics"


# ---- the key ---------------------------------------------------------------------------------


def test_the_key_is_32_random_bytes_that_nobody_can_change_and_uninstall_leaves() -> None:
    first, second = (charts.one(charts.objects(), "Secret", "streambroker-key") for _ in range(2))
    assert first["immutable"] is True
    assert first["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    keys = {base64.b64decode(each["data"]["key"], validate=True) for each in (first, second)}
    assert [len(key) for key in keys] == [32, 32]


def test_the_broker_may_read_the_key_that_it_is_given() -> None:
    for values in ({}, {"key": {"name": "other"}}, {"key": {"create": False}}):
        found = charts.objects(values)
        name = values.get("key", {}).get("name", "streambroker-key")
        pod = charts.one(found, "Deployment")["spec"]["template"]["spec"]
        assert f"--secret-name={name}" in pod["containers"][0]["args"]
        role = charts.one(found, "Role", "streambroker")
        assert [r["resourceNames"] for r in role["rules"] if r["resources"] == ["secrets"]] == [
            [name]
        ]


# ---- TLS -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variant", "secret"),
    [
        ("by itself", None),
        ("TLS from a secret", "certificate"),
        ("TLS by cert-manager", "streambroker-tls"),
        ("TLS self-signed", "streambroker-tls"),
    ],
)
def test_pods_mount_the_certificate_of_their_tls_mode(variant: str, secret: str | None) -> None:
    found = charts.objects(charts.VARIANTS[variant])
    for name, pod in charts.pods(found):
        volumes = {x["name"]: x for x in pod["spec"].get("volumes", [])}
        mounted = volumes.get("tls", {}).get("secret", {})
        assert mounted.get("secretName") == secret, name
        if secret:
            assert mounted["defaultMode"] == 0o440
    scheme = "https" if secret else "http"
    port = charts.one(found, "Service", "streambroker")["spec"]["ports"][0]
    assert port["appProtocol"] == scheme
    url = f"{scheme}://streambroker.sb.svc:8470"
    assert url in charts.files(charts.VARIANTS[variant])["NOTES.txt"]
    assert any(
        arg.startswith(url) for arg in charts.one(found, "Pod")["spec"]["containers"][0]["args"]
    )


def test_the_test_pod_sees_no_private_key() -> None:
    pod = charts.one(charts.objects(charts.VARIANTS["TLS self-signed"]), "Pod")
    items = pod["spec"]["volumes"][0]["secret"]["items"]
    assert [each["key"] for each in items] == ["ca.crt"]


def test_cert_manager_is_asked_for_every_name_of_the_service() -> None:
    values = {
        "tls": {"mode": "cert-manager", "certManager": {"issuerName": "ca"}, "dnsNames": ["b"]}
    }
    certificate = charts.one(charts.objects(values), "Certificate")["spec"]
    assert certificate["dnsNames"] == [
        "streambroker",
        "streambroker.sb",
        "streambroker.sb.svc",
        "streambroker.sb.svc.cluster.local",
        "b",
    ]
    assert certificate["issuerRef"] == {"group": "cert-manager.io", "kind": "Issuer", "name": "ca"}
    assert certificate["secretName"] == "streambroker-tls"


@pytest.mark.parametrize(
    "host", ["streambroker", "streambroker.sb.svc", "broker.example.com"], ids=str
)
def test_the_self_signed_certificate_is_trusted_by_who_has_the_config_map(
    tmp_path: Path, host: str
) -> None:
    found = charts.objects(charts.VARIANTS["TLS self-signed"])
    client, server = sides(found, tmp_path)
    shake_hands(client, server, host)


def test_the_self_signed_certificate_is_good_for_no_other_name(tmp_path: Path) -> None:
    found = charts.objects(charts.VARIANTS["TLS self-signed"])
    client, server = sides(found, tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake_hands(client, server, "streambroker.other.svc")


def sides(found: list[charts.Object], home: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return a job's side, which trusts the ConfigMap, and the broker's, with the Secret."""
    secret = charts.one(found, "Secret", "streambroker-tls")
    for name in ("tls.crt", "tls.key"):
        (home / name).write_bytes(base64.b64decode(secret["data"][name], validate=True))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(home / "tls.crt", home / "tls.key")
    trusted = charts.one(found, "ConfigMap", "streambroker-ca")["data"]["ca.crt"]
    assert base64.b64decode(secret["data"]["ca.crt"]).decode().strip() == trusted.strip()
    return ssl.create_default_context(cadata=trusted), server


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> None:
    """Lead both sides through a handshake, in memory.

    Raises:
        ssl.SSLError: one of them refuses the other.
    """
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(back, there, server_hostname=host)
    theirs = server.wrap_bio(there, back, server_side=True)
    for _ in range(3):
        for side in (ours, theirs):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert ours.version() in ("TLSv1.2", "TLSv1.3")


def test_the_self_signed_certificate_is_kept_and_its_ca_is_where_jobs_are() -> None:
    found = charts.objects({"tls": {"mode": "self-signed"}, "watchNamespaces": ["jobs", "sb"]})
    secret = charts.one(found, "Secret", "streambroker-tls")
    assert secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    maps = charts.of_kind(found, "ConfigMap")
    assert {each["metadata"]["namespace"] for each in maps} == {"jobs", "sb"}
    assert len({each["data"]["ca.crt"] for each in maps}) == 1 < len(maps)


def test_agents_of_all_namespaces_are_given_one_certificate_that_they_can_show(
    tmp_path: Path,
) -> None:
    found = charts.objects(charts.VARIANTS["agents' TLS self-signed"])
    secrets = [
        x for x in charts.of_kind(found, "Secret") if x["metadata"]["name"].endswith("-agent-tls")
    ]
    assert [each["metadata"]["namespace"] for each in secrets] == ["jobs", "reports"]
    assert secrets[0]["data"] == secrets[1]["data"]
    for each in secrets:
        assert each["metadata"]["name"] == "streambroker-agent-tls"
        assert each["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    for name, text in secrets[0]["data"].items():
        (tmp_path / name).write_bytes(base64.b64decode(text, validate=True))
    files = AgentCertificate(chain=tmp_path / "tls.crt", key=tmp_path / "tls.key")

    assert listener.load_chain(files).chain == (tmp_path / "tls.crt").read_bytes()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.chain, files.key)
    client = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    shake_hands(client, server, AGENT_NAME)


def test_what_executors_show_is_taken_by_agents_and_makes_nobody_an_agent(tmp_path: Path) -> None:
    found = charts.objects(charts.VARIANTS["agents' TLS self-signed"])
    for secret in charts.of_kind(found, "Secret"):
        if secret["metadata"].get("namespace") == "jobs":
            for name, text in secret["data"].items():
                place = tmp_path / f"{secret['metadata']['name']}-{name}"
                place.write_bytes(base64.b64decode(text, validate=True))
    agent, executor = (tmp_path / f"streambroker-agent-{name}" for name in ("tls", "client"))
    ca = f"{agent}-ca.crt"
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca)
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_cert_chain(f"{agent}-tls.crt", f"{agent}-tls.key")
    client = ssl.create_default_context(cafile=ca)
    for shown in (executor, agent):
        client.load_cert_chain(f"{shown}-tls.crt", f"{shown}-tls.key")
        shake_hands(client, server, AGENT_NAME)

    with pytest.raises(TrustError, match=AGENT_NAME):
        listener.load_chain(
            AgentCertificate(chain=Path(f"{executor}-tls.crt"), key=Path(f"{executor}-tls.key"))
        )


@pytest.mark.parametrize(("watched", "made"), [("own", True), (["jobs"], True), ("*", False)])
def test_agents_have_certificates_by_default_where_the_namespaces_of_jobs_are_known(
    watched: Any, made: bool
) -> None:
    found = charts.objects({"watchNamespaces": watched})
    names = {each["metadata"]["name"] for each in charts.of_kind(found, "Secret")}
    assert {"streambroker-agent-tls", "streambroker-agent-client"} <= names or not made
    assert any("agent" in name for name in names) == made


def test_cert_manager_is_asked_for_a_certificate_of_agents_in_each_namespace() -> None:
    found = charts.of_kind(
        charts.objects(charts.VARIANTS["agents' TLS by cert-manager"]), "Certificate"
    )
    made = {
        (each["metadata"]["namespace"], each["spec"]["secretName"]): (
            each["spec"]["dnsNames"],
            each["spec"]["usages"],
        )
        for each in found
    }
    agents, clients = ([AGENT_NAME], ["server auth", "client auth"]), ([CLIENT], ["client auth"])
    assert made == {
        (namespace, f"streambroker-agent-{name}"): shown
        for namespace in ("jobs", "reports")
        for name, shown in (("tls", agents), ("client", clients))
    }
    for each in found:
        assert each["spec"]["issuerRef"] == {
            "group": "cert-manager.io",
            "kind": "ClusterIssuer",
            "name": "ca",
        }


@pytest.mark.parametrize("mode", ["off", "secret"])
def test_a_secret_of_agents_that_is_given_is_not_made(mode: str) -> None:
    values = {"agentTls": {"mode": mode, "secretName": "agents"}, "watchNamespaces": "*"}
    assert {charts.key_of(x) for x in charts.objects(values)} == {
        charts.key_of(x) for x in charts.objects({"watchNamespaces": "*"})
    }
    notes = charts.files(values)["NOTES.txt"]
    assert ("mounts the Secret agents" in notes) == (mode == "secret")
    assert ("mounts the Secret agents of" in notes and "agents-client into" in notes) == (
        mode == "secret"
    )
    assert ("Between agents TLS is not used" in notes) == (mode == "off")


# ---- names -----------------------------------------------------------------------------------


def test_two_releases_meet_in_no_object_but_the_crds() -> None:
    ones = {charts.key_of(x) for x in charts.objects(name="one", namespace="a")}
    for name, namespace in (("two", "a"), ("one", "b")):
        others = {charts.key_of(x) for x in charts.objects(name=name, namespace=namespace)}
        assert {kind for kind, _, _ in ones & others} == {"CustomResourceDefinition"}


def test_names_stay_short_enough_for_the_longest_release() -> None:
    for each in charts.objects({"nameOverride": "n" * 60}, name="r" * 53):
        name, labels = each["metadata"]["name"], each["metadata"].get("labels", {})
        if each["kind"] not in ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"):
            assert len(name) <= 63, name
        assert all(len(value) <= 63 for value in labels.values())


def test_a_release_that_is_called_a_number_is_still_valid() -> None:
    for each in charts.objects(name="7"):
        kubernetes_validate.validate(each, charts.VERSION, strict=True)


@pytest.mark.parametrize("values", charts.VARIANTS.values(), ids=charts.VARIANTS)
def test_notes_give_the_next_commands(values: charts.Values) -> None:
    notes = charts.files(values)["NOTES.txt"]
    assert "kubectl -n sb rollout status deployment/streambroker" in notes
    assert "helm -n sb test streambroker" in notes
    assert "kubectl get streams" in notes
    assert ("TLS is off" in notes) == ("tls" not in values)
    key = values.get("key", {})
    assert ("create secret generic streambroker-key" in notes) == (
        key.get("create") is False and not key.get("byBroker")
    )
    assert ("The brokers make the Secret" in notes) == bool(key.get("byBroker"))
