"""Processes before a real API server: one leads, another takes over."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streambroker_operator.kubernetes.replicas.election import LeaseTiming
from support.clusters import lease as lease_process
from support.clusters.api_server import ApiServer
from support.processes.frozen import freeze, thaw
from support.processes.waiting import until

UNCHANGED_S = LeaseTiming().duration_s - LeaseTiming().retry_s
"""A Lease expires this long after its holder died, at the earliest.

How soon another follows is held in virtual time by the unit tests of the election.
"""
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases/streambroker"


class Candidate:
    """A process, and when it said what."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self.reported: list[tuple[float, str]] = []
        self.process = subprocess.Popen(
            [
                sys.executable,
                str(Path(lease_process.__file__)),
                server.url,
                str(server.ca),
                server.tokens["admin"],
                namespace,
                "streambroker",
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.reported.append((time.monotonic(), line.strip()))

    @property
    def leads(self) -> bool:
        return bool(self.reported) and self.reported[-1][1] == "leads"

    def leading(self, seconds: float) -> float:
        """Wait until it leads; return when it said so."""
        until(lambda: self.leads, seconds, "it leads")
        return self.reported[-1][0]

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def two(server: ApiServer, namespace: str) -> Iterator[tuple[Candidate, Candidate]]:
    """Run two candidates, the first of which leads."""
    first = Candidate(server, namespace)
    try:
        first.leading(30)
        second = Candidate(server, namespace)
        try:
            identity = holder(server, namespace)
            until(lambda: seen_by(second), 20, "the second runs")
            yield first, second
            assert holder(server, namespace) != identity
        finally:
            second.end()
    finally:
        first.end()


def seen_by(candidate: Candidate) -> bool:
    return candidate.process.poll() is None


def holder(server: ApiServer, namespace: str) -> str:
    return str(server.request("GET", LEASES.format(namespace)).body["spec"]["holderIdentity"])


def test_who_is_terminated_gives_its_lease_up_and_the_other_leads_before_it_could_expire(
    api: ApiServer, namespace: str
) -> None:
    with two(api, namespace) as (first, second):
        terminated = time.monotonic()
        first.process.terminate()
        assert second.leading(25) - terminated < UNCHANGED_S
        assert first.process.wait(20) == 0


@pytest.mark.slow
def test_who_is_killed_is_followed_when_its_lease_has_run_out(
    api: ApiServer, namespace: str
) -> None:
    with two(api, namespace) as (first, second):
        killed = time.monotonic()
        first.process.kill()
        assert second.leading(60) - killed >= UNCHANGED_S


@pytest.mark.long
def test_an_api_server_that_hangs_ends_leading_and_it_goes_on_afterwards(
    own_api: ApiServer,
) -> None:
    own_api.create_namespace("streams")
    candidate = Candidate(own_api, "streams")
    try:
        candidate.leading(10)
        freeze(own_api.program.pid)
        paused = time.monotonic()
        until(lambda: not candidate.leads, 30, "it does not lead")
        assert candidate.reported[-1][0] - paused <= LeaseTiming().duration_s

        thaw(own_api.program.pid)
        candidate.leading(20)
    finally:
        candidate.end()


def test_one_who_waits_writes_nothing(api: ApiServer, namespace: str) -> None:
    with two(api, namespace) as (first, second):
        assert not second.leads
        before = len(writes_of(api, namespace))
        until(lambda: len(writes_of(api, namespace)) >= before + 2, 10, "it is renewed")
        assert not second.leads
        assert first.leads
        first.process.terminate()
        second.leading(10)


def writes_of(server: ApiServer, namespace: str) -> list[object]:
    return [
        entry
        for entry in server.writes(plural="leases")
        if entry["objectRef"].get("namespace") == namespace
    ]
