"""Manifests for Kubeflow's Spark operator, against its own definitions on a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.clusters.api_server import ApiServer, running_api_server
from support.clusters.programs import spark_operator_crds
from support.kubernetes import charts
from support.processes.waiting import until

HOME = charts.ROOT / "examples/kubernetes/operators"
GROUP = "sparkoperator.k8s.io"
MANIFESTS = [path for path in sorted(HOME.glob("*.yaml")) if f"{GROUP}/" in path.read_text()]


@pytest.fixture(scope="module")
def kubeflow(kube_assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Run an API server that has the definitions of the operator, too."""
    crds = spark_operator_crds()
    with running_api_server(kube_assets, tmp_path_factory.mktemp("operators")) as api:
        api.create_namespace("jobs")
        for path in crds:
            applied = api.kubectl("apply", "--server-side", "-f", str(path))
            assert applied.returncode == 0, applied.stderr
        for kind in {collection(document(path)) for path in MANIFESTS}:
            until(lambda: api.request("GET", kind).status == 200, 60.0, f"{kind} is served")  # noqa: B023
        yield api


def collection(document: dict[str, Any]) -> str:
    """Return the path of the objects of a manifest's kind."""
    version, kind = document["apiVersion"], document["kind"].lower()
    return f"/apis/{version}/namespaces/jobs/{kind}s"


def created(api: ApiServer, document: dict[str, Any]) -> tuple[int, str]:
    """Create an object, strictly, and return status and message of the API server."""
    path = f"{collection(document)}?fieldValidation=Strict"
    answer = api.request("POST", path, json.dumps(document))
    return answer.status, answer.message


def document(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.load(path.read_text(), charts.Strict)
    return found


def test_there_is_a_manifest_of_each_kind() -> None:
    kinds = {document(path)["kind"] for path in MANIFESTS}
    assert kinds == {"SparkApplication", "SparkConnect"}


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_the_definitions_of_the_operator_know_each_field(kubeflow: ApiServer, path: Path) -> None:
    assert created(kubeflow, document(path)) == (201, "")


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
@pytest.mark.parametrize("place", ["spec", "spec.executor", "metadata"])
def test_a_field_that_the_operator_does_not_have_is_refused(
    kubeflow: ApiServer, path: Path, place: str
) -> None:
    wrong = document(path)
    part = wrong
    for key in place.split("."):
        part = part[key]
    part["volumeMount"] = []
    status, message = created(kubeflow, wrong)
    assert (status, f'unknown field "{place}.volumeMount"' in message) == (400, True), message
