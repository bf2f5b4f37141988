"""Spark's own cluster of two workers, each under an address of its own.

Spark starts a second attempt of a task only at another host, and ``local-cluster`` has one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark

from support.cuts.points import search_path
from support.processes.ports import free_port
from support.processes.waiting import until

HOSTS = ("127.0.0.1", "127.0.0.2")
CLASS = "org.apache.spark.deploy"
MASTER = "master.Master"
START_SECONDS = 120.0


class Standalone:
    """A master and a worker for each of :data:`HOSTS`, with one core each."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.url = f"spark://{HOSTS[0]}:{free_port()}"
        host, _, port = self.url.removeprefix("spark://").partition(":")
        self._folder = folder
        self._processes = [self._start(MASTER, "--host", host, "--port", port)]
        for host in HOSTS:
            more = ("--host", host, "--cores", "1", "--memory", "1g", "--work-dir", str(folder))
            self._processes.append(self._start("worker.Worker", *more, self.url))
        until(lambda: self._workers() == len(HOSTS), START_SECONDS, "all workers are registered")

    def _workers(self) -> int:
        """Return how many workers the master has heard of."""
        return (self._folder / f"{MASTER}.out").read_text().count("Registering worker")

    def _start(self, name: str, *args: str) -> subprocess.Popen[bytes]:
        home = Path(pyspark.__file__).parent
        environment = {
            "SPARK_HOME": str(home),
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": search_path(held=False),
        }
        command = [str(home / "bin" / "spark-class"), f"{CLASS}.{name}", "--webui-port", "0"]
        with (self._folder / f"{name}.out").open("ab") as output:
            return subprocess.Popen(
                [*command, *args],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
            )

    def end(self) -> None:
        for process in self._processes[::-1]:
            process.terminate()
        for process in self._processes:
            process.wait()
