"""The programs of a Kubernetes control plane: where they are, and how one is run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.processes.waiting import until

_CLUSTER = Path(__file__).parents[2] / "cluster"
_NEEDED = ("etcd", "kube-apiserver", "kubectl")
_REQUIRE = "STREAMBROKER_REQUIRE_CLUSTER"
_LEASH = Path(__file__).parents[1] / "processes" / "leash.py"
_START_SECONDS = 60.0
_PAUSE_SECONDS = 0.05
_LOG_CHARACTERS = 2_000


def kubernetes_version() -> str:
    """Return the version that ``KUBERNETES`` names, else the one of ``go.mod``: ``v1.34.4``."""
    if named := os.environ.get("KUBERNETES"):
        return named
    found = re.search(r"k8s\.io/kubernetes (v\S+)", (_CLUSTER / "go.mod").read_text())
    assert found is not None
    return found[1]


def assets(needed: tuple[str, ...] = _NEEDED) -> Path:
    """Return the folder of the programs; skip the test, or fail it, if a program is missing."""
    given = os.environ.get("KUBEBUILDER_ASSETS")
    usual = Path(__file__).parents[3] / ".kube" / kubernetes_version()
    folder = Path(given) if given else usual
    missing = [name for name in needed if not os.access(folder / name, os.X_OK)]
    if missing:
        problem = (
            f"{folder} has no {', '.join(missing)}; `make kube-assets` builds them once "
            "if Go is installed, or set KUBEBUILDER_ASSETS to a folder that has them"
        )
        if os.environ.get(_REQUIRE) == "1":
            pytest.fail(f"{problem} ({_REQUIRE}=1)", pytrace=False)
        pytest.skip(problem)
    return folder


def spark_operator_crds() -> list[Path]:
    """Return the definitions of Kubeflow's Spark operator; skip the test if they are missing."""
    module = (_CLUSTER / "operators/go.mod").read_text()
    found = re.search(r"github\.com/kubeflow/spark-operator/v2 (v\S+)", module)
    assert found is not None
    folder = Path(__file__).parents[3] / ".kube/spark-operator" / found[1]
    if not folder.is_dir():
        pytest.skip(f"needs {folder}: make operator-crds")
    return sorted(folder.glob("*.yaml"))


class Program:
    """One program at a time, on a leash: it ends when this process does, however that ends."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._command = command
        self._log = log
        self._leash: subprocess.Popen[bytes] | None = None
        self.pid = 0

    def start(self, ready: Callable[[], bool], seconds: float = _START_SECONDS) -> None:
        """Run it and wait until it is ready."""
        assert self._leash is None, "it runs already"
        with self._log.open("ab") as log:
            self._leash = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_LEASH), *self._command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._leash.stdout is not None
        self.pid = int(self._leash.stdout.readline())
        name = Path(self._command[0]).name
        try:
            until(
                lambda: self._ended() or ready(),
                seconds,
                f"{name} is ready",
                pause_s=_PAUSE_SECONDS,
            )
            assert not self._ended(), f"{name} ended"
        except AssertionError as error:
            said = self._log.read_text(errors="replace")[-_LOG_CHARACTERS:]
            self.stop()
            raise AssertionError(f"{error}; {self._log}: {said}") from None

    def _ended(self) -> bool:
        return self._leash is None or self._leash.poll() is not None

    def stop(self) -> None:
        if self._leash is None:
            return
        self._leash.communicate()
        self._leash = None
