"""``kubectl streambroker``: the command line, connected to a broker in the cluster.

kubectl runs the program ``kubectl-streambroker`` as its plugin. It finds the broker's Service,
forwards a local port to it, creates a token for a service account, and runs the command.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

from streambroker_core.errors import StreambrokerError
from streambroker_core.model import DEFAULT_NAMESPACE
from streambroker_operator.cli.app import BROKERS, calls_broker, find_command, main
from streambroker_operator.cli.io.errors import UsageError, exit_code, print_error
from streambroker_operator.cli.io.options import Parser

AUDIENCE = "streambroker"
SELECTOR = "app.kubernetes.io/name=streambroker,app.kubernetes.io/component=broker"
_FORWARDED = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ")
_POD_SECONDS = 10


class KubectlError(StreambrokerError):
    """kubectl cannot do what the command needs; nothing was sent to a broker."""

    code = "KubectlFailed"


def run_plugin(arguments: Sequence[str] | None = None) -> int:
    """Run one command against the broker of a cluster; return its exit code as `main` does."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        parser = _parser()
        options, rest = parser.parse_known_args(words)
        command = find_command(rest)
        if command in BROKERS:
            raise UsageError(f"The plugin runs no broker; run `streambroker {command}`.")
        if not calls_broker(rest):
            if command is None:
                parser.print_help()
                sys.stdout.write("\n")
            return main(words)
        cluster = [
            f"--{name}={value}"
            for name in ("context", "kubeconfig")
            if (value := getattr(options, name))
        ]
        namespace = options.namespace or _current_namespace(cluster)
        if options.token_file is not None:
            rest = ["--token-file", options.token_file, *rest]
        elif not os.environ.get("STREAMBROKER_TOKEN"):
            os.environ["STREAMBROKER_TOKEN"] = _create_token(
                cluster, namespace, options.service_account
            )
        service = _find_service(cluster, options.broker_namespace)
        with _forwarded(cluster, service) as address:
            return main([*address, "--namespace", namespace, *rest])
    except StreambrokerError as error:
        print_error(error)
        return exit_code(error)


def _parser() -> Parser:
    parser = Parser(
        prog="kubectl streambroker",
        description="Run a command of `streambroker` against the broker in a cluster.",
        usage="kubectl streambroker [OPTIONS] COMMAND …",
        allow_abbrev=False,
        add_help=False,
    )
    parser.add_argument("--context", help="the context of kubeconfig")
    parser.add_argument("--kubeconfig", help="the kubeconfig file")
    parser.add_argument("--broker-namespace", metavar="NS", help="where the broker runs")
    parser.add_argument(
        "--service-account",
        metavar="NAME",
        default="default",
        help="whose rights the command has; default `default` of the namespace",
    )
    parser.add_argument("-n", "--namespace", help="default that of the context")
    parser.add_argument("--token-file", help="holds the token; then none is created")
    return parser


def _kubectl(cluster: Sequence[str], *arguments: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - no shell
            [shutil.which("kubectl") or "kubectl", *cluster, *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise KubectlError(f"kubectl cannot be run: {error}. Install it.") from error
    if done.returncode:
        raise KubectlError(f"`kubectl {' '.join(arguments)}` failed: {done.stderr.strip()}")
    return done.stdout


def _current_namespace(cluster: Sequence[str]) -> str:
    context = json.loads(_kubectl(cluster, "config", "view", "--minify", "--output=json"))
    found: Any = context["contexts"][0]["context"].get("namespace")
    return str(found or DEFAULT_NAMESPACE)


def _create_token(cluster: Sequence[str], namespace: str, account: str) -> str:
    where = f"--namespace={namespace}"
    try:
        return _kubectl(
            cluster, "create", "token", account, where, f"--audience={AUDIENCE}"
        ).strip()
    except KubectlError as error:
        raise KubectlError(
            f"{error} Name an account with --service-account, or set STREAMBROKER_TOKEN."
        ) from error


def _find_service(cluster: Sequence[str], namespace: str | None) -> dict[str, Any]:
    where = f"--namespace={namespace}" if namespace else "--all-namespaces"
    remedy = "Name its namespace with --broker-namespace."
    try:
        listed = _kubectl(
            cluster, "get", "services", where, f"--selector={SELECTOR}", "--output=json"
        )
    except KubectlError as error:
        raise KubectlError(f"{error}. {'' if namespace else remedy}".rstrip()) from error
    found: list[dict[str, Any]] = json.loads(listed)["items"]
    if not found:
        place = f"namespace {namespace}" if namespace else "the cluster"
        raise KubectlError(f"There is no broker in {place}: no Service has labels {SELECTOR}.")
    if len(found) > 1:
        names = ", ".join(f"{s['metadata']['namespace']}/{s['metadata']['name']}" for s in found)
        raise UsageError(f"The cluster has several brokers: {names}. {remedy}")
    return found[0]


@contextlib.contextmanager
def _forwarded(cluster: Sequence[str], service: dict[str, Any]) -> Iterator[list[str]]:
    """Forward a free local port to the broker; yield the options that address it."""
    name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    port = next(p for p in service["spec"]["ports"] if p["name"] == "rest")
    where = f"--namespace={namespace}"
    command = ["port-forward", where, f"service/{name}", f":{port['port']}"]
    command.append(f"--pod-running-timeout={_POD_SECONDS}s")
    with contextlib.ExitStack() as stack:
        forward = stack.enter_context(
            subprocess.Popen(  # noqa: S603 - no shell
                [shutil.which("kubectl") or "kubectl", *cluster, *command, "--address=127.0.0.1"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,  # Ctrl-C ends the command first
            )
        )
        stack.callback(forward.terminate)
        lines, shown = cast("IO[str]", forward.stdout), ""
        for line in lines:
            shown += line
            if forwarded := _FORWARDED.match(line):
                break
        else:
            raise KubectlError(f"`kubectl {' '.join(command)}` failed: {shown.strip()}")
        # It writes a line for each connection, and stops when nothing reads them.
        threading.Thread(target=deque, args=(lines, 0), daemon=True).start()
        scheme = port.get("appProtocol", "http")
        address = ["--url", f"{scheme}://127.0.0.1:{forwarded[1]}"]
        if scheme == "https":
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            address += ["--tls-server-name", f"{name}.{namespace}.svc"]
            address += _trust(cluster, where, name, Path(folder))
        yield address


def _trust(cluster: Sequence[str], where: str, name: str, folder: Path) -> list[str]:
    """Return options that trust the CA that the chart published; none if it published none."""
    listed = _kubectl(
        cluster, "get", "configmap", f"{name}-ca", where, "--ignore-not-found", "--output=json"
    )
    if not listed.strip():
        return []
    file = folder / "ca.crt"
    file.write_text(json.loads(listed)["data"]["ca.crt"])
    return ["--ca", str(file)]
