"""Processes that begin with everything imported: forked from one that has done nothing else yet.

``python -m support.processes.forks SOCKET`` listens there. A message ``(module, function,
arguments)`` is performed in a new process, which first answers with its process id, then with
``("done", result)`` or ``("failed", why)``. All end with the standard input of the first process.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from support.processes.waiting import first_line

VARIABLE = "STREAMBROKER_FORKS"
START_SECONDS = 60.0
PRELOADED = (
    "pandas",  # pyarrow imports it with the first columns it is given
    "support.cuts.queries",
    "pyspark.sql.pandas.types",
    "pe_agent.datasource.source",
)


class ForkFailedError(Exception):
    """What was performed in another process raised, or the process was killed."""


class Fork:
    """A call that is performed in a process of its own."""

    def __init__(self, module: str, function: str, *args: Any) -> None:
        self._connection = Client(os.environ[VARIABLE], family="AF_UNIX")
        self._connection.send((module, function, args))
        self.pid = int(self._connection.recv())

    def result(self) -> Any:
        """Wait for the end and return the result.

        Raises:
            ForkFailedError: it raised, or the process was killed.
        """
        try:
            how, what = self._connection.recv()
        except (EOFError, OSError):
            raise ForkFailedError(f"process {self.pid} was killed") from None
        finally:
            self._connection.close()
        if how == "failed":
            raise ForkFailedError(what)
        return what

    def ended(self) -> bool:
        """Whether there is a result, or will never be one."""
        return self._connection.poll(0)


class Forks:
    """The process that forks, from the side of the test."""

    def __init__(self, path: Path, environment: dict[str, str]) -> None:
        os.environ[VARIABLE] = str(path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.processes.forks", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environment, VARIABLE: str(path)},
            start_new_session=True,
        )
        assert self._process.stdout is not None
        try:
            said = first_line(
                self._process.stdout, START_SECONDS, "the process that forks is ready"
            )
            assert said == "ready\n"
        except AssertionError:
            self.end()
            raise

    def end(self) -> None:
        """Kill it and all that it forked."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def _serve(listener: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            os.killpg(0, signal.SIGKILL)
        accepted, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os._exit(_perform(Connection(accepted.detach())))
        accepted.close()


def _perform(connection: Connection) -> int:
    connection.send(os.getpid())
    module, function, args = connection.recv()
    try:
        result = getattr(importlib.import_module(module), function)(*args)
    except BaseException as error:
        traceback.print_exc()
        code = getattr(error, "code", "")
        answer = ("failed", f"{type(error).__name__} {code}: {error}")
    else:
        answer = ("done", result)
    with contextlib.suppress(BrokenPipeError):  # the process that waits may have been killed
        connection.send(answer)
    return 1 if answer[0] == "failed" else 0


def main() -> None:
    """Import, listen, fork."""
    for name in PRELOADED:
        importlib.import_module(name)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen(50)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    _serve(listener)


if __name__ == "__main__":
    main()
