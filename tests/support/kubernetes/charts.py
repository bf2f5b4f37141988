"""The chart as Helm renders it, and the objects that come out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts/streambroker"
RELEASE = "streambroker"
NAMESPACE = "sb"
VERSION = "1.34"
"""The release of Kubernetes whose schemas are taken."""

REGISTRY = "registry.invalid"
"""What `deploy/base` has, too: a chart without a registry is refused."""

Object = dict[str, Any]
Values = Mapping[str, Any]

VARIANTS: dict[str, Values] = {
    "by itself": {},
    "a list of namespaces": {"watchNamespaces": ["jobs", "reports"]},
    "all namespaces": {"watchNamespaces": "*"},
    "one replica": {"replicas": 1},
    "TLS from a secret": {"tls": {"mode": "secret", "secretName": "certificate"}},
    "TLS by cert-manager": {"tls": {"mode": "cert-manager", "certManager": {"issuerName": "ca"}}},
    "TLS self-signed": {"tls": {"mode": "self-signed", "dnsNames": ["broker.example.com"]}},
    "agents' TLS from a secret": {"agentTls": {"mode": "secret", "secretName": "agents"}},
    "agents' TLS by cert-manager": {
        "watchNamespaces": ["jobs", "reports"],
        "agentTls": {"mode": "cert-manager", "certManager": {"issuerName": "ca"}},
    },
    "agents' TLS self-signed": {
        "watchNamespaces": ["jobs", "reports"],
        "agentTls": {"mode": "self-signed"},
    },
    "monitoring": {
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
        "dashboard": {"enabled": True},
    },
    "admission policy": {"admissionPolicy": {"enabled": True}},
    "webhook": {"watchNamespaces": ["jobs", "reports"], "webhook": {"enabled": True}},
    "nothing that can be left out": {
        "key": {"create": False},
        "crds": {"create": False},
        "rbac": {"create": False},
        "networkPolicy": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
        "serviceAccount": {"create": False},
    },
    "a key that the broker makes": {"key": {"create": False, "byBroker": True}},
    "everything else": {
        "commonLabels": {"team": "streams"},
        "image": {
            "registry": "images.example.com",
            "repository": "broker",
            "digest": "sha256:" + "a" * 64,
        },
        "imagePullSecrets": ["images"],
        "feeder": "reflector",
        "logLevel": "DEBUG",
        "extraArgs": ["--limits=reads=100"],
        "extraEnv": [{"name": "TZ", "value": "UTC"}],
        "lease": {"name": "leader"},
        "key": {"name": "the-key"},
        "service": {
            "type": "NodePort",
            "port": 80,
            "sessionAffinity": "None",
            "annotations": {"a": "b"},
        },
        "serviceAccount": {"name": "broker", "annotations": {"a": "b"}},
        "rbac": {"aggregate": False},
        "networkPolicy": {
            "jobLabels": {"spark-role": "driver"},
            "clientNamespaces": ["ops"],
            "metricsNamespaces": [],
            "apiServerCidrs": ["10.0.0.1/32"],
            "apiServerPorts": [6443],
        },
        "probes": {"startup": {"failureThreshold": 300}, "liveness": {"timeoutSeconds": 9}},
        "deploymentAnnotations": {"a": "b"},
        "podAnnotations": {"a": "b"},
        "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca", "readOnly": True}],
        "affinity": {
            "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 1,
                        "preference": {"matchExpressions": [{"key": "tier", "operator": "Exists"}]},
                    }
                ]
            }
        },
        "podLabels": {"tier": "control"},
        "runAsUser": 20000,
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}],
        "topologySpread": "hard",
        "priorityClassName": "high",
        "podDisruptionBudget": {"maxUnavailable": "50%"},
    },
}
"""Values that switch on, and off, each part of the chart."""


@cache
def chart() -> helm_python.Chart:
    return helm_python.Chart.load(CHART)


class Strict(yaml.CSafeLoader):
    """Reads YAML and refuses a key that stands twice in one map, as API servers do."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a map, all keys of which are different."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if len(keys) != len(set(keys)):
            raise ValueError(f"a key stands twice in {keys}")
        return super().construct_mapping(node, deep)


def with_registry(values: Values | None = None) -> dict[str, Any]:
    """Return values with a registry, if they have none."""
    given = dict(values or {})
    return {**given, "image": {"registry": REGISTRY, **given.get("image", {})}}


def files(
    values: Values | None = None, *, name: str = RELEASE, namespace: str = NAMESPACE
) -> dict[str, str]:
    """Return what each template makes, by its path in the chart."""
    complete = with_registry(values)
    chart().validate_schema(complete)
    found = chart().render(complete, name=name, namespace=namespace)
    return {path.removeprefix("streambroker/templates/"): text for path, text in found.items()}


def objects(
    values: Values | None = None, *, name: str = RELEASE, namespace: str = NAMESPACE
) -> list[Object]:
    """Return the objects of an install, that of the test among them."""
    return [
        document
        for path, text in files(values, name=name, namespace=namespace).items()
        if path.endswith(".yaml")
        for document in yaml.load_all(text, Strict)
        if document is not None
    ]


def of_kind(found: Sequence[Object], kind: str) -> list[Object]:
    return [each for each in found if each["kind"] == kind]


def one(found: Sequence[Object], kind: str, name: str | None = None) -> Object:
    """Return the only object of a kind, or the one of that name."""
    fitting = [x for x in of_kind(found, kind) if name in (None, x["metadata"]["name"])]
    assert len(fitting) == 1, f"{len(fitting)} of kind {kind}, name {name}"
    return fitting[0]


def pods(found: Sequence[Object]) -> Iterator[tuple[str, Object]]:
    """Yield name and pod of everything that runs."""
    for each in found:
        if each["kind"] == "Pod":
            yield each["metadata"].get("name", "template"), each
        elif each["kind"] == "Deployment":
            yield each["metadata"]["name"], each["spec"]["template"]


def key_of(each: Object) -> tuple[str, str, str]:
    metadata = each["metadata"]
    return each["kind"], metadata.get("namespace", ""), metadata["name"]


def table(page: str, *head: str) -> list[list[str]]:
    """Return the rows of the table of a document that begins with these columns."""
    rows: list[list[str]] = []
    inside = False
    for line in (ROOT / page).read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if not cells:
            inside = False
        elif inside:
            rows.append(cells)
        elif cells[: len(head)] == list(head):
            inside = True
    assert rows, f"{page} has no table that begins with {head}"
    return [row for row in rows if not set("".join(row)) <= {"-", ":", " "}]


def words(cell: str) -> list[str]:
    """Return what stands in code spans."""
    return re.findall(r"`([^`]+)`", cell)


def restricted(spec: Mapping[str, Any]) -> None:
    """Hold a pod against the restricted Pod Security Standard."""
    assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC", "hostUsers"}
    whole = spec["securityContext"]
    assert whole["runAsNonRoot"] is True
    assert whole["runAsUser"] > 0
    assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
    allowed = {"configMap", "emptyDir", "projected", "secret", "persistentVolumeClaim"}
    for volume in spec.get("volumes", []):
        assert volume.keys() - {"name"} <= allowed
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        own = container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert not own.keys() & {"privileged", "procMount", "runAsUser", "seccompProfile"}
        assert all("hostPort" not in port for port in container.get("ports", []))
