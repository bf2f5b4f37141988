"""Resources of a real API server, declared and changed as kubectl would."""

from __future__ import annotations

import http.client
import itertools
import json
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from measure import Figures, Settings

JSON = "application/json"
PATCH = "application/merge-patch+json"
Place: TypeAlias = "tuple[str, str]"
"""A job and its port."""


@contextmanager
def api_server(settings: Settings, figures: Figures, name: str) -> Iterator[Any]:
    """Run an API server and its etcd; yields None, and says why, where there are no programs."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from support.clusters.api_server import running_api_server
    from support.clusters.programs import assets

    try:
        programs = assets()
    except pytest.skip.Exception as missing:
        figures.note(f"not measured: {missing}")
        yield None
        return
    with running_api_server(programs, settings.place / name) as api:
        yield api


def but_leases(api: Any) -> list[dict[str, Any]]:
    """Return all writes of brokers and others, but those of Leases."""
    return [one for one in api.writes() if one.get("objectRef", {}).get("resource") != "leases"]


def child_of(pid: int, word: str) -> int | None:
    """Return the process that another one started with a word in its command; None for none."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_text()
        except OSError:
            continue
        if int(fields[1]) == pid and word in command:
            return int(stat.parent.name)
    return None


def memory(pid: int) -> float:
    """Return the most resident memory that a process has had, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


class Cluster:
    """Declares and changes resources as kubectl would.

    Args:
        api: the API server.
    """

    def __init__(self, api: Any) -> None:
        self._api = api
        self._numbers = itertools.count(1)
        self._own = threading.local()
        self._tls = ssl.create_default_context(cafile=str(api.ca))

    def declare(self, kind: str, name: str, **spec: Any) -> None:
        """Make a resource."""
        body = {"apiVersion": "streambroker.io/v1alpha1", "kind": kind, "spec": spec}
        self._send("POST", f"{kind.lower()}s", {**body, "metadata": {"name": name}})

    def _send(self, method: str, rest: str, body: Any, content_type: str = JSON) -> Any:
        path = f"/apis/streambroker.io/v1alpha1/namespaces/default/{rest}"
        headers = {
            "Authorization": f"Bearer {self._api.tokens['admin']}",
            "Content-Type": content_type,
        }
        connection = self._connection()
        connection.request(method, path, json.dumps(body), headers)
        answer = connection.getresponse()
        found = json.loads(answer.read())
        if answer.status not in (200, 201):
            raise RuntimeError(found)
        return found

    def _connection(self) -> http.client.HTTPSConnection:
        """Return this thread's connection, which it keeps: programs do so, too."""
        known: http.client.HTTPSConnection | None = getattr(self._own, "connection", None)
        if known is None:
            known = http.client.HTTPSConnection(
                "127.0.0.1", self._api.port, timeout=60.0, context=self._tls
            )
            self._own.connection = known
        return known

    def changed(
        self, places: list[Place], rate: int, seconds: float
    ) -> list[tuple[Place, float, int, float]]:
        """Change filters in turn, at a rate, or of each as fast as it goes if that is 0.

        Returns:
            of each its place, when it was sent, its generation, and seconds until the answer.
        """
        count = int(rate * seconds) if rate else len(places)
        due = time.perf_counter()
        sent: list[tuple[Place, float, int, float]] = []

        def change(number: int) -> None:
            if rate:
                time.sleep(max(0.0, due + number / rate - time.perf_counter()))
            place = places[number % len(places)]
            began = time.perf_counter()
            spec = {"filter": f"a > {next(self._numbers)}"}
            body = self._send("PATCH", f"imports/{place[0]}-{place[1]}", {"spec": spec}, PATCH)
            answered = time.perf_counter() - began
            sent.append((place, began, int(body["metadata"]["generation"]), answered))

        with ThreadPoolExecutor(8) as pool:
            for order in [pool.submit(change, number) for number in range(count)]:
                order.result()
        return sent

    def status_writes(self) -> Counter[str]:
        """Return how often the status of each Import was written."""
        entries = (entry["objectRef"] for entry in self._api.writes(plural="imports"))
        return Counter(ref["name"] for ref in entries if ref.get("subresource") == "status")
