"""The API server of the tests is a real one, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.clusters.api_server import GROUP, ApiServer
from support.clusters.programs import Program, assets
from support.processes.waiting import until

# What the tests stand on; the tests themselves show most of it every time.
pytestmark = pytest.mark.long

EXPORTS = f"{GROUP}/namespaces/default/exports"
TESTS = Path(__file__).parents[2]


def export(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "streambroker.io/v1alpha1",
        "kind": "Export",
        "metadata": {"name": name},
        "spec": {"job": "feed", "port": name, "streamId": name},
    }


def names(server: ApiServer) -> list[str]:
    return [item["metadata"]["name"] for item in server.request("GET", EXPORTS).body["items"]]


def version(server: ApiServer) -> int:
    return int(server.request("GET", EXPORTS).body["metadata"]["resourceVersion"])


def alive(pid: int) -> bool:
    """Say whether a process runs; one that waits for its parent to notice its end does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_program_ends_when_the_process_that_started_it_is_killed(tmp_path: Path) -> None:
    code = f"""
import signal, sys
sys.path.insert(0, {str(TESTS)!r})
from pathlib import Path
from support.clusters.programs import Program
program = Program(["sleep", "600"], Path({str(tmp_path / "log")!r}))
program.start(lambda: True)
print(program.pid, flush=True)
signal.pause()
"""
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    pid = int(holder.stdout.readline())
    assert alive(pid)

    holder.kill()
    holder.communicate()

    until(lambda: not alive(pid), 10.0, "the program has ended")


def test_a_program_that_ends_at_once_is_reported_with_what_it_said(tmp_path: Path) -> None:
    program = Program(["sh", "-c", "echo no room; exit 3"], tmp_path / "log")

    with pytest.raises(AssertionError, match=r"(?s)sh ended.*no room"):
        program.start(lambda: False)


def test_missing_programs_are_named_with_the_way_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    monkeypatch.delenv("STREAMBROKER_REQUIRE_CLUSTER", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"has no etcd.*make kube-assets"):
        assets()

    monkeypatch.setenv("STREAMBROKER_REQUIRE_CLUSTER", "1")
    with pytest.raises(pytest.fail.Exception, match=r"has no etcd.*make kube-assets"):
        assets()


def test_objects_and_address_outlive_the_api_server_and_etcd(own_api: ApiServer) -> None:
    own_api.request("POST", EXPORTS, export("a"))
    own_api.stop()
    with pytest.raises(OSError, match="refused"):
        own_api.request("GET", EXPORTS)
    own_api.etcd.stop()
    own_api.etcd.start()
    own_api.start()
    own_api.await_kinds()

    assert names(own_api) == ["a"]


def test_two_api_servers_over_one_etcd_have_the_same_objects(own_api: ApiServer) -> None:
    own_api.request("POST", EXPORTS, export("a"))
    with own_api.second() as other:
        other.await_kinds()
        assert names(other) == ["a"]
        own_api.stop()
        assert other.request("DELETE", f"{EXPORTS}/a").status == 200
        pid = other.program.pid

    assert not alive(pid)
    own_api.start()
    own_api.await_kinds()
    assert names(own_api) == []


def test_what_etcd_has_compacted_is_gone(own_api: ApiServer) -> None:
    own_api.request("POST", EXPORTS, export("a"))
    old = f"{EXPORTS}?resourceVersion={version(own_api)}&resourceVersionMatch=Exact&limit=1"
    own_api.request("POST", EXPORTS, export("b"))
    assert own_api.request("GET", old).status == 200
    own_api.stop()
    own_api.etcd.compact()
    own_api.start()
    own_api.await_kinds()

    assert own_api.request("GET", old).status == 410


def test_a_restored_etcd_goes_back_in_its_versions(own_api: ApiServer, tmp_path: Path) -> None:
    own_api.request("POST", EXPORTS, export("a"))
    own_api.etcd.save(tmp_path / "copy")
    for name in "bcdefghi":
        assert own_api.request("POST", EXPORTS, export(name)).status == 201
    late = version(own_api)
    own_api.stop()
    own_api.etcd.restore(tmp_path / "copy")
    own_api.start()
    own_api.await_kinds()

    assert names(own_api) == ["a"]
    assert version(own_api) < late


def test_only_those_with_a_role_may_do_something(api: ApiServer, namespace: str) -> None:
    path = f"{GROUP}/namespaces/{namespace}/exports"
    assert api.request("GET", path, user="viewer").status == 403
    bound = api.kubectl(
        "-n", namespace, "create", "role", "look", "--verb=list", "--resource=exports"
    )
    assert bound.returncode == 0, bound.stderr
    bound = api.kubectl(
        "-n", namespace, "create", "rolebinding", "look", "--role=look", "--user=viewer"
    )
    assert bound.returncode == 0, bound.stderr

    until(lambda: api.request("GET", path, user="viewer").status == 200, 10.0, "the role holds")
    assert api.request("POST", path, export("a"), user="viewer").status == 403
    assert api.request("GET", path, token="nobody's").status == 401


def test_a_token_for_an_audience_is_reviewed(api: ApiServer, namespace: str) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "spark"}}
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    assert api.request("POST", accounts, account).status == 201
    asked = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": ["streambroker"]},
    }
    answer = api.request("POST", f"{accounts}/spark/token", asked)
    assert answer.status == 201, answer.message
    review = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": answer.body["status"]["token"], "audiences": ["streambroker"]},
    }
    found = api.request("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review).body

    assert found["status"]["user"]["username"] == f"system:serviceaccount:{namespace}:spark"


def test_the_audit_log_has_every_write_and_no_read(own_api: ApiServer) -> None:
    assert own_api.writes(plural="exports") == []
    own_api.request("GET", EXPORTS)
    own_api.request("POST", EXPORTS, export("a"))
    own_api.request("DELETE", f"{EXPORTS}/a", user="viewer")

    until(lambda: len(own_api.writes(plural="exports")) >= 2, 10.0, "both writes are in the log")
    found = own_api.writes(plural="exports")
    assert [(w["verb"], w["responseStatus"]["code"]) for w in found] == [
        ("create", 201),
        ("delete", 403),
    ]
