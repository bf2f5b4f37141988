"""A kubeconfig's program prints tokens: run when needed, and not for each request."""

from __future__ import annotations

import json
import stat
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from streambroker_operator.errors import ClusterError
from streambroker_operator.kubernetes.client.exec_login import ExecLogin, read_exec
from streambroker_operator.kubernetes.client.http_api import HttpApi
from streambroker_operator.kubernetes.client.kubeconfig import Credentials, from_kubeconfig
from streambroker_operator.kubernetes.watch.kopf_feeder import ChildConfig

V1 = "client.authentication.k8s.io/v1"
PROGRAM = """\
#!{python}
import json, os, pathlib
place = pathlib.Path(__file__).parent
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
count = len(list(place.glob("run-*")))
(place / f"run-{{count}}").write_text(json.dumps({{**info, "region": os.environ["REGION"]}}))
status = {{"token": f"token-{{count}}", "expirationTimestamp": {until!r}}}
status = {{name: value for name, value in status.items() if value}}
print(json.dumps({{"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": status}}))
"""


def program(folder: Path, until: str = "") -> dict[str, Any]:
    """Write a program that counts its tokens; return the entry of a user."""
    file = folder / "get-token"
    file.write_text(PROGRAM.format(python=sys.executable, until=until))
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    env = [{"name": "REGION", "value": "x"}]
    return {"apiVersion": V1, "command": "./get-token", "env": env, "provideClusterInfo": True}


def config(folder: Path, entry: dict[str, Any], server: str = "https://api:6443") -> Path:
    path = folder / "config"
    document = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"exec": entry}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


def runs(folder: Path) -> int:
    return len(list(folder.glob("run-*")))


def test_the_program_of_a_kubeconfig_gives_the_token_and_learns_the_cluster(
    tmp_path: Path,
) -> None:
    access = from_kubeconfig(config(tmp_path, program(tmp_path)))
    config_line = ChildConfig(access=access, namespaces=(), page=1, server_s=2, call_s=3.0).encode()
    found = Credentials(ChildConfig.decode(config_line).access)

    assert [found.token() for _ in range(3)] == ["token-0"] * 3
    reported = json.loads((tmp_path / "run-0").read_text())
    assert (reported["apiVersion"], reported["region"]) == (V1, "x")
    assert reported["spec"] == {"interactive": False, "cluster": {"server": "https://api:6443"}}


def test_a_token_is_replaced_before_it_ends(tmp_path: Path) -> None:
    now = 1_800_000_000.0
    until = datetime.fromtimestamp(now + 900, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    settings = read_exec(tmp_path / "config", {"exec": program(tmp_path, until)}, {})
    assert settings is not None
    login = ExecLogin(settings, clock=lambda: now)

    assert login.token() == login.token() == "token-0"
    now += 850
    assert not login.is_fresh
    assert login.token() == "token-1"


async def test_a_refused_token_is_replaced_by_the_next_request(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.Response:
        good = request.headers["Authorization"] == "Bearer token-1"
        return web.json_response({}, status=200 if good else 401)

    app = web.Application()
    app.router.add_get("/x", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = f"http://127.0.0.1:{runner.addresses[0][1]}"
    api = HttpApi(from_kubeconfig(config(tmp_path, program(tmp_path), server)))
    try:
        statuses = [(await api.call("GET", "/x")).status for _ in range(3)]
    finally:
        await api.close()
        await runner.cleanup()

    assert statuses == [401, 200, 200]
    assert runs(tmp_path) == 2


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("#!/bin/sh\necho no session >&2; exit 3\n", "exit status 3: no session"),
        ("#!/bin/sh\necho secret\n", "printed no ExecCredential with a token"),
        ("#!/bin/sh\necho '{\"status\": {}}'\n", "printed no ExecCredential with a token"),
        (None, "No such file"),
    ],
)
def test_a_program_that_gives_no_token_is_named_with_its_hint(
    tmp_path: Path, script: str | None, why: str
) -> None:
    file = tmp_path / "login"
    if script is not None:
        file.write_text(script)
        file.chmod(0o700)
    entry = {"apiVersion": V1, "command": str(file), "installHint": "Install it from somewhere."}
    found = Credentials(from_kubeconfig(config(tmp_path, entry)))

    with pytest.raises(OSError, match=why) as caught:
        found.token()
    assert str(file) in str(caught.value)
    assert "secret" not in str(caught.value)
    assert str(caught.value).endswith("Install it from somewhere.")


@pytest.mark.parametrize(
    "entry",
    [
        {"apiVersion": V1},
        {"command": "x"},
        {"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "x"},
        {"apiVersion": V1, "command": "x", "interactiveMode": "Always"},
    ],
)
def test_an_entry_that_cannot_be_used_is_refused_at_the_start(
    tmp_path: Path, entry: dict[str, Any]
) -> None:
    with pytest.raises(ClusterError):
        from_kubeconfig(config(tmp_path, entry))
