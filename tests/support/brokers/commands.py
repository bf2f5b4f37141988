"""The command line for tests: in this process beside the broker's loop, or in one of its own."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from streambroker_operator.cli import main
from support.brokers.brokers import Rest
from support.processes.forks import CLI, program

DOCUMENTS = """
apiVersion: streambroker.io/v1alpha1
kind: Export
metadata: {name: feed-trades, creationTimestamp: 2026-01-02T03:04:05Z}
spec:
  job: feed
  port: trades
  properties: {kind: trade, tickers: [IBM, GOOG]}
  schema: [{name: price, type: double}]
---
---
apiVersion: streambroker.io/v1alpha1
kind: Import
metadata: {name: alerts-trades}
spec: {job: alerts, port: trades, subscription: 'kind == "trade"', filter: price > 10.0}
"""
"""One Export, one Import, and the route between them."""
_UNKNOWN = """
rowsPerSecond bytesPerSecond lagEpochs lagRows lagBytes lagSeconds stalledSeconds congestion
waitingSince ended readToEnd filteredRows droppedRows lostRows duplicateRows blockedSeconds
releasedPlans throttledSeconds storage exportProblem importProblem age
"""
ROUTE = {
    "export": "default/feed/0/trades",
    "import": "default/alerts/0/trades",
    "policy": "wait",
    "waiting": False,
    "alive": False,
    **dict.fromkeys(_UNKNOWN.split()),
}
"""That route in `top`, of which nobody has reported."""


class Cli:
    def __init__(self, rest: Rest, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self.rest = rest
        self._capsys = capsys
        self.file = folder / "streams.yaml"
        self.file.write_text(DOCUMENTS)

    async def __call__(self, *arguments: str, url: str | None = None) -> tuple[int, str, str]:
        self._capsys.readouterr()
        full = ["--url", url or self.rest.url, *arguments]
        code = await asyncio.to_thread(main, full)
        out, err = self._capsys.readouterr()
        return code, out, err


class CliProcess:
    """One command in a process of its own, for what goes on until it is interrupted."""

    def __init__(self, url: str, *arguments: str, **environment: str) -> None:
        self._process = program(
            [*CLI, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            environment={**os.environ, "STREAMBROKER_URL": url, **environment},
        )

    async def line(self) -> str:
        """Return the next line of its output; the test's timeout bounds the wait."""
        assert self._process.stdout is not None
        return await asyncio.to_thread(self._process.stdout.readline)

    async def line_with(self, text: str) -> str:
        """Return the next line that holds a text, or fail when the output ends."""
        seen = []
        while line := await self.line():
            if text in line:
                return line
            seen.append(line)
        raise AssertionError(f"no line with {text!r} in {seen}: {await self.end()}")

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def close_output(self) -> None:
        """Stop reading what it writes, as ``head`` does."""
        assert self._process.stdout is not None
        self._process.stdout.close()

    async def end(self) -> tuple[int, str]:
        assert self._process.stderr is not None
        errors = await asyncio.to_thread(self._process.stderr.read)
        return await asyncio.to_thread(self._process.wait, 10.0), errors

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


class CliTerminal:
    def __init__(self, url: str, *arguments: str, **environment: str) -> None:
        inherited = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
        self._terminal, output = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "streambroker_operator.cli", *arguments],
            stdout=output,
            env={**inherited, "STREAMBROKER_URL": url, "TERM": "xterm", **environment},
        )
        os.close(output)

    async def drawn(self, word: str) -> str:
        """Return what the terminal shows from now on, up to and with a word."""
        seen = b""
        while word.encode() not in seen:
            seen += await asyncio.to_thread(os.read, self._terminal, 65_536)
        return seen.decode()

    async def interrupted(self) -> int:
        self._process.send_signal(signal.SIGINT)
        return await asyncio.to_thread(self._process.wait, 10.0)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._terminal)
