"""Brokers of the tests of the page: ``streambroker up`` with tokens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from support.processes.waiting import first_line, until

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/02-control-plane/streams.yaml"
TOKENS = {
    "ops": "ops-0123456789abcdef",
    "reader": "reader-0123456789abcdef",
    "stranger": "stranger-0123456789abcdef",
}
RIGHTS: Mapping[str, Mapping[str, Any]] = {
    "ops": {"role": "admin"},
    "reader": {"role": "reader"},
    "stranger": {"jobs": ["elsewhere/guest"]},
}
START_S = 60.0
AT_ONCE = 190
"""Changes of one request; a caller may make 200 in a second."""


class RunningBroker:
    """A broker process. Started again it takes its old port and file."""

    def __init__(self, folder: Path, *, tokens: bool = True) -> None:
        self.folder = folder
        entries = [{"name": who, "token": TOKENS[who], **RIGHTS[who]} for who in TOKENS]
        path = folder / "tokens.yaml"
        path.write_text(yaml.safe_dump({"tokens": entries}))
        path.chmod(0o600)
        self._arguments = ["--tokens", str(path)] if tokens else []
        self.url = ""
        self.start(0)

    def start(self, port: int | None = None) -> None:
        """Run the broker; without a port, at the one from before."""
        number = int(self.url.rpartition(":")[2]) if port is None else port
        database = self.folder / "broker.sqlite"
        options = ["--db", str(database), "--port", str(number), *self._arguments]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "streambroker_operator.cli", "up", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert self._process.stdout is not None
        self.url = first_line(self._process.stdout, START_S, "the broker's address").split()[-1]
        until(lambda: self.ask("GET", "/ui")[0] == 200, START_S, "an answer of the broker")

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def ask(self, method: str, path: str, body: Any = None, who: str = "ops") -> tuple[int, Any]:
        """Send a request below ``/api/subscriptions``; return status and body."""
        request = urllib.request.Request(
            f"{self.url}/api/subscriptions{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {TOKENS[who]}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read() or b"null")
        except OSError:
            return 0, None

    def change(self, method: str, path: str, body: Any = None) -> Any:
        """Make a change, which has to succeed."""
        status, answer = self.ask(method, path, body)
        assert status in (200, 201, 204), answer
        return answer

    def apply_example(self) -> None:
        self.apply(list(yaml.safe_load_all(EXAMPLE.read_text())))

    def apply(self, resources: list[Any]) -> None:
        for first in range(0, len(resources), AT_ONCE):
            part = {"resources": resources[first : first + AT_ONCE]}

            def accepted(body: Any = part) -> bool:
                status, answer = self.ask("POST", "/apply", body)
                assert status in (200, 429), answer
                return bool(status == 200)

            until(accepted, START_S, "room for more changes", pause_s=0.1)


def export_of(job: str, port: str = "out", **spec: Any) -> dict[str, Any]:
    return _resource("Export", job, port, {"properties": {"kind": "trade"}, **spec})


def import_of(job: str, port: str = "in", **spec: Any) -> dict[str, Any]:
    return _resource("Import", job, port, {"subscription": 'kind == "trade"', **spec})


def _resource(kind: str, job: str, port: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "streambroker.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": f"{job}-{port}"},
        "spec": {"job": job, "port": port, **spec},
    }
