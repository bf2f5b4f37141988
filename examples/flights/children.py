"""The processes of the demonstration: started, spoken to, ended, and looked for afterwards."""

from __future__ import annotations

import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flights.orders import MARK

MARKER = "STREAMBROKER_DEMO"
EXAMPLES = Path(__file__).resolve().parent.parent


class Failure(Exception):  # noqa: N818 - what the demonstration ends with, not an accident
    """Something is not as it has to be; the message says what."""


class Family:
    """All processes of one run; each inherits a mark in its environment.

    Args:
        work: the demonstration's directory; each process has a file in ``logs``.
    """

    def __init__(self, work: Path) -> None:
        self.logs = work / "logs"
        self.logs.mkdir()
        self._mark = secrets.token_hex(8)
        self.started: list[subprocess.Popen[str]] = []

    def start(self, name: str, command: Sequence[str], **pipes: Any) -> subprocess.Popen[str]:
        """Start a process in a session of its own, so that Ctrl-C reaches only the parent."""
        path = os.pathsep.join(filter(None, [str(EXAMPLES), os.environ.get("PYTHONPATH")]))
        with (self.logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *command],
                **{"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, **pipes},
                text=True,
                start_new_session=True,
                env={**os.environ, MARKER: self._mark, "PYTHONPATH": path},
            )
        self.started.append(process)
        return process

    def alive(self) -> dict[int, str]:
        """Return what still runs: command line by process id.

        Where there is no ``/proc``, only the processes that were started directly are seen.
        """
        for process in self.started:
            process.poll()
        found = {p.pid: str(p.args) for p in self.started if p.returncode is None}
        for directory in Path("/proc").glob("[0-9]*"):
            try:
                environment = (directory / "environ").read_bytes()
                command = (directory / "cmdline").read_bytes()
            except OSError:
                continue
            if f"{MARKER}={self._mark}".encode() in environment and command:
                found[int(directory.name)] = command.replace(b"\0", b" ").decode().strip()
        found.pop(os.getpid(), None)
        return found

    def gone(self, seconds: float) -> dict[int, str]:
        """Wait until no process is left; return those that are."""
        deadline = time.monotonic() + seconds
        while True:
            left = self.alive()
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.1)

    def kill(self) -> None:
        """End at once whatever is left, and what that has started meanwhile."""
        deadline = time.monotonic() + 10.0
        while (left := self.alive()) and time.monotonic() < deadline:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)


class Broker:
    """A broker over a SQLite file, on a free port."""

    def __init__(self, family: Family, work: Path) -> None:
        command = ["-m", "streambroker_operator.cli", "up", "--db", str(work / "broker.sqlite")]
        self._log = family.logs / "broker.log"
        self._process = family.start("broker", [*command, "--port", "0"])
        self.url = self._address()

    def _address(self) -> str:
        deadline = time.monotonic() + 30.0
        while time.monotonic() < deadline and self._process.poll() is None:
            for line in self._log.read_text().splitlines():
                if "http://" in line:
                    return "http://" + line.partition("http://")[2].split()[0]
            time.sleep(0.05)
        raise Failure(f"the broker did not start; see {self._log}")

    def stop(self) -> None:
        """End it in order."""
        self._process.terminate()
        self._process.wait(15.0)


class Job:
    """A Spark job in a process of its own, that takes orders.

    Args:
        family: the processes of this run.
        name: the job's name.
        program: module to run.
        arguments: its command line.
    """

    def __init__(self, family: Family, name: str, program: str, arguments: Sequence[str]) -> None:
        self.name = name
        self._log = family.logs / f"{name}.log"
        self._told_to_stop = False
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self.phases: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._process = family.start(
            name, ["-m", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        threading.Thread(target=self._listen, daemon=True, name=f"answers of {name}").start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                answer = json.loads(line[len(MARK) :])
                if "phase" in answer:
                    self.phases.put(answer["phase"])
                else:
                    self._answers.put(answer)
                continue
            with self._log.open("a") as log:
                log.write(line)

    def answered(self) -> dict[str, Any] | None:
        """Return the next answer if there is one.

        Raises:
            Failure: the job has ended.
        """
        try:
            return self._answers.get(timeout=0.05)
        except queue.Empty:
            if self._process.poll() is None:
                return None
        raise Failure(f"job {self.name} ended with {self._process.returncode}; see {self._log}")

    def ask(self, order: str, *, seconds: float = 40.0, **more: Any) -> Any:
        """Give an order and return what it answers.

        Raises:
            Failure: it answers with an error, not in time, or has ended.
        """
        self._say({"do": order, **more})
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            answer = self.answered()
            if answer is not None and "error" in answer:
                raise Failure(f"job {self.name}, {order}: {answer['error']}; see {self._log}")
            if answer is not None:
                return answer["done"]
        raise Failure(f"job {self.name} did not answer {order} in {seconds:g} s; see {self._log}")

    def _say(self, order: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise Failure(f"job {self.name} is gone; see {self._log}") from error

    def tell_stop(self) -> None:
        """Tell it to end its queries and its agent."""
        if not self._told_to_stop:
            self._told_to_stop = True
            self._say({"do": "stop"})

    def stop(self, seconds: float = 40.0) -> None:
        """End it and wait until it has ended.

        Raises:
            Failure: it did not end in time, or with an error.
        """
        self.tell_stop()
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failure(f"job {self.name} did not end; see {self._log}") from None
        if code != 0:
            raise Failure(f"job {self.name} ended with {code}; see {self._log}")
