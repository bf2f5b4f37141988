"""A cluster that runs pods: a node of this machine's own, or the one that ``KUBECONFIG`` names."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from support.clusters.programs import Program, assets
from support.processes.waiting import until

_CLUSTER = Path(__file__).parents[2] / "cluster"
_KUBE = ("apiserver", "controller-manager", "scheduler", "proxy")
_PROGRAMS = ("etcd", *(f"kube-{name}" for name in _KUBE), "kubelet", "coredns", "kubectl")
_NODES = 60
_BUILD_SECONDS = 1_200.0
_START_SECONDS = 240.0
_IMPORT_SECONDS = 240.0
_KUBECTL_SECONDS = 120.0
_PAUSE_SECONDS = 0.5
SPARK_USER = 185


@dataclass(frozen=True)
class Cluster:
    """A cluster that runs pods; where there is no folder ``volumes``, it makes volumes itself."""

    kubeconfig: Path
    kubectl_path: Path
    volumes: Path | None = None

    @property
    def own(self) -> bool:
        """Whether its node is this machine, and is gone with the test."""
        return self.volumes is not None

    @property
    def environment(self) -> dict[str, str]:
        """What programs need that ask this cluster: kubectl first on the path, after Python."""
        path = [str(Path(sys.executable).parent), str(self.kubectl_path.parent), os.environ["PATH"]]
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "PATH": ":".join(path)}

    @cached_property
    def url(self) -> str:
        config = json.loads(self.kubectl("config", "view", "--minify", "--output=json"))
        return str(config["clusters"][0]["cluster"]["server"])

    def run(
        self, *arguments: str, stdin: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl and return what it said, whether or not it went well."""
        return subprocess.run(
            [str(self.kubectl_path), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=_KUBECTL_SECONDS,
            check=False,
            env={**self.environment, **environment},
        )

    def kubectl(self, *arguments: str, stdin: str = "", **environment: str) -> str:
        """Run kubectl and return its output."""
        done = self.run(*arguments, stdin=stdin, **environment)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def get(self, *arguments: str) -> Any:
        """Return an object, or a list of objects under ``items``."""
        return json.loads(self.kubectl("get", *arguments, "--output=json"))

    def kill(self, pod: str, namespace: str) -> None:
        """Kill all processes of a pod, without a word to them, if its node is this machine."""
        if not self.own:
            return
        status = self.get("pod", pod, f"--namespace={namespace}")["status"]
        for container in status["containerStatuses"]:
            name = container["containerID"].removeprefix("containerd://")
            for folder, _, _ in os.walk("/sys/fs/cgroup"):
                # The kernel tells ids as this process sees them, and may be faster than it.
                with suppress(OSError):
                    if folder.endswith(f"/{name}"):
                        for pid in Path(folder, "cgroup.procs").read_text().split():
                            os.kill(int(pid), signal.SIGKILL)

    def make_volumes(self, claims: Sequence[str], namespace: str) -> None:
        """Make a volume for each claim, if the cluster does not: a folder of the node."""
        if self.volumes is None:
            return
        for claim in claims:
            folder = self.volumes / claim
            folder.mkdir()
            # A node does not change the owner of its own folders for a pod.
            os.chown(folder, SPARK_USER, SPARK_USER)
            volume = {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": claim},
                "spec": {
                    "capacity": {"storage": "10Gi"},
                    "accessModes": ["ReadWriteOncePod"],
                    "claimRef": {"namespace": namespace, "name": claim},
                    "hostPath": {"path": str(folder)},
                },
            }
            self.kubectl("apply", "--filename=-", stdin=json.dumps(volume))


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Yield the cluster of ``KUBECONFIG``, or run a node with the images as they are now."""
    given = os.environ.get("KUBECONFIG")
    if given:
        found = shutil.which("kubectl")
        kubectl = Path(found) if found else assets(("kubectl",)) / "kubectl"
        yield Cluster(Path(given), kubectl)
        return
    said = subprocess.run(
        [str(_CLUSTER / "node.sh"), "check"], capture_output=True, text=True, check=False
    )
    if said.returncode:
        pytest.fail(said.stderr.strip(), pytrace=False)
    programs = assets(_PROGRAMS)
    images = folder / "images"
    subprocess.run([str(_CLUSTER / "images.sh"), str(images)], check=True, timeout=_BUILD_SECONDS)
    with _running_node(folder / "node", programs, images) as cluster:
        yield cluster


@contextmanager
def _running_node(folder: Path, programs: Path, images: Path) -> Iterator[Cluster]:
    folder.mkdir()
    name, address = _free_address()
    archives = [str(images / f"{image}.tar") for image in ("pause", "broker", "spark")]
    own = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    script = [str(_CLUSTER / "node.sh"), str(folder), str(programs), address, name]
    node = Program([*own, *script, *archives], folder / "node.log")
    cluster = Cluster(folder / "kubeconfig", programs / "kubectl", folder / "volumes")

    def ready() -> bool:
        return "True" in cluster.run("get", "nodes", f"--output=jsonpath={_READY}").stdout

    try:
        node.start(ready, _START_SECONDS)
        until(
            (folder / "imported").exists,
            _IMPORT_SECONDS,
            "images are there",
            pause_s=_PAUSE_SECONDS,
        )
        yield cluster
    finally:
        node.stop()
        _clean(name)


_READY = '{.items[*].status.conditions[?(@.type=="Ready")].status}'


def _free_address() -> tuple[str, str]:
    for number in range(_NODES):
        name = f"sbnode{number}"
        if not Path("/sys/class/net", name).exists():
            return name, f"172.30.77.{4 * number + 2}"
    raise AssertionError(f"{_NODES} nodes run already")


def _clean(name: str) -> None:
    """Remove what belongs to the machine: the interface to the node, and the pods' cgroups."""
    # The kernel would do it, but keeps a network for a minute or two if connections were cut.
    subprocess.run(["ip", "link", "delete", name], capture_output=True, check=False)
    until(lambda: _no_cgroups(name), 60.0, f"cgroups {name} are gone", pause_s=_PAUSE_SECONDS)


def _no_cgroups(name: str) -> bool:
    """Remove what is empty, from below, and return whether nothing is left."""
    root = Path("/sys/fs/cgroup")
    for top in (root / name, *root.glob(f"*/{name}")):
        for folder, _, _ in os.walk(top, topdown=False):
            try:
                os.rmdir(folder)  # noqa: PTH106 - its files are the kernel's and go with it
            except OSError:
                return False
    return True
