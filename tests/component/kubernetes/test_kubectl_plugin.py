"""``kubectl streambroker`` on a real API server: what it needs, and what is missing.

That it reaches a broker is shown on a node: only there a port can be forwarded.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.clusters.api_server import ApiServer

LABELS = {
    "app.kubernetes.io/name": "streambroker",
    "app.kubernetes.io/component": "broker",
}


class Plugin:
    """The installed plugin, run by kubectl."""

    def __init__(self, api: ApiServer, assets: Path) -> None:
        programs = [str(Path(sys.executable).parent), str(assets), os.environ["PATH"]]
        self._environment = {"PATH": ":".join(programs), "KUBECONFIG": str(api.kubeconfig())}

    def __call__(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        """Return exit code, standard output and standard error."""
        done = subprocess.run(
            ["kubectl", "streambroker", *arguments],
            capture_output=True,
            text=True,
            timeout=60.0,
            check=False,
            env={**self._environment, **environment},
        )
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def plugin(api: ApiServer, kube_assets: Path) -> Plugin:
    return Plugin(api, kube_assets)


def make_service(api: ApiServer, namespace: str) -> None:
    """Make the Service of a broker whose pods do not run."""
    made = api.request(
        "POST",
        f"/api/v1/namespaces/{namespace}/services",
        {
            "metadata": {"name": "broker", "labels": LABELS},
            "spec": {"ports": [{"name": "rest", "port": 8470}], "selector": LABELS},
        },
    )
    assert made.status == 201, made.body


def test_a_command_that_needs_no_broker_runs_without_a_cluster(plugin: Plugin) -> None:
    code, out, _ = plugin("version", "--client", KUBECONFIG="/nowhere")

    assert (code, out.split()[0]) == (0, "client")


@pytest.mark.parametrize("words", [("up",), ("-n", "jobs", "operator")])
def test_it_runs_no_broker(plugin: Plugin, words: tuple[str, ...]) -> None:
    code, _, err = plugin(*words)

    assert (code, f"run `streambroker {words[-1]}`" in err) == (2, True)


def test_its_help_names_its_own_options_and_all_commands(plugin: Plugin) -> None:
    code, out, _ = plugin("--help")

    assert code == 0
    assert "--broker-namespace" in out
    assert "set-filter" in out


def test_a_service_account_that_is_missing_is_named_with_the_remedy(
    plugin: Plugin, namespace: str
) -> None:
    code, _, err = plugin("-n", namespace, "--service-account", "ann", "get")

    assert code == 4
    assert 'serviceaccounts "ann" not found' in err
    assert "Name an account with --service-account, or set STREAMBROKER_TOKEN." in err


def test_without_a_broker_the_place_is_named(plugin: Plugin, namespace: str) -> None:
    code, _, err = plugin("--broker-namespace", namespace, "get", STREAMBROKER_TOKEN="token")

    assert (code, f"There is no broker in namespace {namespace}" in err) == (4, True)


def test_of_several_brokers_one_has_to_be_chosen(
    plugin: Plugin, api: ApiServer, namespace: str
) -> None:
    other = f"{namespace}-b"
    api.create_namespace(other)
    try:
        make_service(api, namespace)
        make_service(api, other)
        code, _, err = plugin("get", STREAMBROKER_TOKEN="token")
    finally:
        api.remove_namespace(other)

    assert code == 2
    assert f"{namespace}/broker" in err
    assert "Name its namespace with --broker-namespace." in err


def test_a_broker_without_pods_is_reported(plugin: Plugin, api: ApiServer, namespace: str) -> None:
    make_service(api, namespace)
    code, _, err = plugin("--broker-namespace", namespace, "get", STREAMBROKER_TOKEN="token")

    assert (code, "port-forward" in err) == (4, True)
