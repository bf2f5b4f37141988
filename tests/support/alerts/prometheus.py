"""A real Prometheus on loopback with the chart's alerts as they are, for the length of a run."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.clusters.programs import Program
from support.kubernetes import boards, charts
from support.processes.ports import free_port

SCRAPE_SECONDS, STEP_SECONDS = 10, 5
"""Between two scrapes, which is also their limit, and between two evaluations of the alerts."""
PROGRAM = charts.ROOT / ".promtool/usr/bin"
_OPEN = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_OWN = {"__name__", "alertname", "alertstate", "severity"}


@dataclass(frozen=True, order=True)
class Firing:
    """One time without a pause in which an alert fired; times in seconds since 1970."""

    alert: str
    labels: tuple[tuple[str, str], ...]
    begin: float
    end: float


class Prometheus:
    """The server; `running` starts it.

    Targets may come, go and return under another pod's name while it runs.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._lock = folder, threading.Lock()
        self._targets: dict[int, dict[str, str]] = {}
        self._url = f"http://127.0.0.1:{free_port()}"
        self.began = time.time()
        program = shutil.which("prometheus", path=f"{PROGRAM}{os.pathsep}{os.environ['PATH']}")
        assert program, "prometheus is missing: make .promtool/usr/bin/promtool"
        (folder / "prometheus.json").write_text(json.dumps(self._settings()))
        command = [
            program,
            f"--config.file={folder / 'prometheus.json'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self._url.removeprefix('http://')}",
            "--log.level=warn",
        ]
        self._program = Program(command, folder / "prometheus.log")

    def _settings(self) -> dict[str, Any]:
        every = f"{SCRAPE_SECONDS}s"
        intervals = {"scrape_interval": every, "scrape_timeout": every}
        (self._folder / "targets.json").write_text("[]")
        found = {"files": [str(self._folder / "targets.json")], "refresh_interval": "5s"}
        return {
            "global": {**intervals, "evaluation_interval": f"{STEP_SECONDS}s"},
            "rule_files": [str(boards.ALERTS)],
            "scrape_configs": [{"job_name": "streambroker", "file_sd_configs": [found]}],
        }

    def follow(self, namespace: str, pod: str, port: int) -> None:
        """Scrape a port with the labels that a ServiceMonitor or PodMonitor sets."""
        with self._lock:
            self._targets[port] = {"namespace": namespace, "pod": pod}
            self._write()

    def _write(self) -> None:
        groups = [
            {"targets": [f"127.0.0.1:{port}"], "labels": labels}
            for port, labels in self._targets.items()
        ]
        new = self._folder / "targets.new"
        new.write_text(json.dumps(groups))
        new.replace(self._folder / "targets.json")

    def ask(self, path: str, **query: str) -> Any:
        """Return what a query of its API finds."""
        with _OPEN.open(f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(query)}") as answer:
            return json.load(answer)["data"]

    def scraped(self) -> set[str]:
        """Return the pods whose metrics were read at least once."""
        found = self.ask("query", query="max_over_time(up[3h]) == 1")["result"]
        return {one["metric"]["pod"] for one in found}

    def interrupted(self, firing: Firing) -> bool:
        """Return whether an alert ended because a scrape failed, as on a machine that stands still.

        Alerts with ``for`` begin again then.
        """
        namespace = dict(firing.labels).get("namespace", "")
        query = f'min_over_time(up{{namespace="{namespace}"}}[1m]) == 0'
        return bool(self.ask("query", query=query, time=f"{firing.end + 20.0}")["result"])

    def fired(self, state: str = "firing") -> list[Firing]:
        """Return when each alert fired, or was ``pending``, since the start."""
        query = f'ALERTS{{alertstate="{state}"}}'
        span = {"start": f"{self.began}", "end": f"{time.time()}", "step": str(STEP_SECONDS)}
        found = []
        for series in self.ask("query_range", query=query, **span)["result"]:
            labels = _labels(series["metric"])
            for begin, end in _runs([float(at) for at, _ in series["values"]]):
                found.append(Firing(series["metric"]["alertname"], labels, begin, end))
        return sorted(found)

    @contextmanager
    def running(self) -> Iterator[Prometheus]:
        """Run it until the end of the block."""
        try:
            self._program.start(self._ready, 300.0)
            self.began = time.time()
            yield self
        finally:
            self._program.stop()

    def _ready(self) -> bool:
        try:
            with _OPEN.open(f"{self._url}/-/ready", timeout=5.0) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def _labels(metric: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((k, v) for k, v in metric.items() if k not in _OWN))


def _runs(times: list[float]) -> Iterator[tuple[float, float]]:
    """Yield begin and end of each run of times that follow each other step by step."""
    begin = last = times[0]
    for at in times[1:]:
        if at - last > 3 * STEP_SECONDS:
            yield begin, last
            begin = at
        last = at
    yield begin, last
