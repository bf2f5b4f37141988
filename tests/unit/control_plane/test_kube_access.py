"""How the API server is found, and that credentials are read again when their files change."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from streambroker_operator.errors import ClusterError
from streambroker_operator.kubernetes.client.kubeconfig import (
    Access,
    Credentials,
    find_access,
    from_kubeconfig,
    in_pod,
    parse_namespaces,
)
from streambroker_operator.kubernetes.watch.kopf_feeder import ChildConfig


def kubeconfig(
    folder: Path, *, user: dict[str, Any], cluster: dict[str, Any] | None = None
) -> Path:
    path = folder / "config"
    document = {
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "jobs"}}
        ],
        "clusters": [{"name": "c", "cluster": {"server": "https://api:6443/", **(cluster or {})}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


def test_a_kubeconfig_gives_server_namespace_and_token(tmp_path: Path) -> None:
    access = from_kubeconfig(kubeconfig(tmp_path, user={"token": "secret"}))

    assert (access.server, access.namespace) == ("https://api:6443", "jobs")
    assert Credentials(access).token() == "secret"


def test_files_of_a_kubeconfig_lie_beside_it(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from a file\n")
    (tmp_path / "client.pem").write_text("certificate")
    path = kubeconfig(
        tmp_path,
        user={
            "tokenFile": "token",
            "client-certificate": "client.pem",
            "client-key-data": base64.b64encode(b"key").decode(),
        },
        cluster={"certificate-authority": "ca.pem"},
    )
    access = from_kubeconfig(path)

    assert Credentials(access).token() == "from a file"
    assert (access.certificate, access.key) == ("certificate", "key")
    assert access.ca_file == str(tmp_path / "ca.pem")


@pytest.mark.parametrize("way", ["auth-provider", "username"])
def test_a_way_in_that_is_not_supported_is_named(tmp_path: Path, way: str) -> None:
    with pytest.raises(ClusterError, match=way):
        from_kubeconfig(kubeconfig(tmp_path, user={way: {}}))


@pytest.mark.parametrize("text", ["[]", "{", "contexts: []\ncurrent-context: nowhere"])
def test_what_is_no_kubeconfig_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ClusterError, match=str(path)):
        from_kubeconfig(path)


def test_an_authority_that_is_not_base64_is_refused(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, user={}, cluster={"certificate-authority-data": "***"})
    with pytest.raises(ClusterError, match="certificate-authority-data"):
        from_kubeconfig(path)


def test_a_pod_finds_its_own_server(tmp_path: Path) -> None:
    for name, text in {"token": "t", "ca.crt": "pem", "namespace": "jobs\n"}.items():
        (tmp_path / name).write_text(text)
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    access = in_pod(environ, tmp_path)

    assert (access.server, access.namespace) == ("https://[fd00::1]:6443", "jobs")
    assert Credentials(access).token() == "t"


def test_a_pod_without_credentials_learns_why(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="automountServiceAccountToken"):
        in_pod({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path)


def test_a_token_is_read_again_when_its_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    credentials = Credentials(Access(server="https://api", token_file=str(file)))
    assert credentials.token() == "first"
    file.write_text("second")
    os.utime(file, ns=(1, 1))

    assert credentials.token() == "second"


def test_a_named_kubeconfig_comes_before_the_pod(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, user={"token": "secret"})
    environ = {"KUBECONFIG": str(path), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}

    assert find_access(environ).token == "secret"


def test_no_secret_is_shown() -> None:
    assert "secret" not in repr(Access(server="https://api", token="secret", key="secret"))


def test_access_goes_through_a_pipe_as_one_line() -> None:
    access = Access(server="https://api", ca="-----BEGIN\nCERTIFICATE", verify=False)

    line = ChildConfig(access=access, namespaces=("a",), page=1, server_s=2, call_s=3.0).encode()
    assert b"\n" not in line
    assert ChildConfig.decode(line).access == access


@pytest.mark.parametrize(
    ("words", "names"),
    [("own", ("jobs",)), ("*", ()), ("a, b", ("a", "b")), ("own,a,jobs", ("jobs", "a"))],
)
def test_namespaces_are_own_or_named_or_all(words: str, names: tuple[str, ...]) -> None:
    assert parse_namespaces(words, "jobs") == names


@pytest.mark.parametrize("words", ["", "a,", "*,a", "Jobs", "a/b"])
def test_what_is_no_namespace_is_refused(words: str) -> None:
    """An empty setting is not taken for all namespaces."""
    with pytest.raises(ClusterError, match="does not list namespaces"):
        parse_namespaces(words, "jobs")
