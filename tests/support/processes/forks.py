"""Processes that begin with everything imported: forked from one that has done nothing else yet.

``python -m support.processes.forks SOCKET MODULE...`` imports the modules and listens. A message
``(module, function, arguments)`` is a call in a new process, which answers with its process id,
then with ``("done", result)`` or ``("failed", why)``. A message ``(command, environment, own group,
number of outputs)`` runs a module as ``python -m`` does; its outputs follow as file descriptors.
``("ended", exit code)`` comes at the end of every process. All end with the standard input of the
first one.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import io
import math
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Client, Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import IO, Any

from support.cuts.points import VARIABLE, search_path
from support.processes.waiting import first_line

FORKS = "STREAMBROKER_FORKS"
"""The variable that names the socket of the calls of this process."""
START_SECONDS = 60.0
QUERIES = (
    "pandas",  # pyarrow imports it with the first columns it is given
    "support.cuts.queries",
    "pyspark.sql.pandas.types",
    "pe_agent.datasource.source",
)
"""What the queries without Spark need."""
PROGRAMS = (
    "pe_agent.agent.process",
    "streambroker_operator.cli.app",
    "streambroker_operator.cli.commands.up",
    "streambroker_operator.broker",
)
"""What agents and brokers need."""
AGENT, CLI = ("-m", "pe_agent.agent"), ("-m", "streambroker_operator.cli")
READ_AT_START = ("PYTHONHASHSEED", "LD_", "MALLOC_", "ARROW_", "OMP_")
"""Variables that a process reads before its program begins."""


class ForkFailedError(Exception):
    """What was performed in another process raised, or the process was killed."""


class Fork:
    """A call that is performed in a process of its own."""

    def __init__(self, module: str, function: str, *args: Any) -> None:
        self._connection = Client(os.environ[FORKS], family="AF_UNIX")
        self._connection.send((module, function, args))
        self.pid = int(self._connection.recv())

    def result(self) -> Any:
        """Wait for the end and return the result."""
        with self._connection:
            how, what = self._connection.recv()
        if how == "ended":
            raise ForkFailedError(f"process {self.pid} was killed")
        if how == "failed":
            raise ForkFailedError(what)
        return what

    def ended(self) -> bool:
        """Whether there is a result, or will never be one."""
        return self._connection.poll(0)


class ForkedProgram:
    """A module that runs as a program in a forked process, used like `subprocess.Popen`."""

    def __init__(
        self,
        socket_path: Path,
        command: Sequence[str],
        environment: Mapping[str, str],
        outputs: Sequence[int],
        *,
        own_group: bool,
    ) -> None:
        self._lock = threading.Lock()
        self._connection = Client(str(socket_path), family="AF_UNIX")
        self._connection.send(([*command], {**environment}, own_group, len(outputs)))
        for output in outputs:
            send_handle(self._connection, output, None)
        self.pid = int(self._connection.recv())
        self.returncode: int | None = None
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        with self._lock:
            if self.returncode is None and self._connection.poll(0):
                self.returncode = int(self._connection.recv()[1])
                self._connection.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, as long as it takes without a timeout; return the exit code."""
        if self.poll() is None:
            with contextlib.suppress(OSError):  # another thread has taken the answer
                self._connection.poll(None if timeout == math.inf else timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end; return the rest of its outputs, and close them."""
        self.wait(timeout)
        texts = []
        for output in (self.stdout, self.stderr):
            with output or contextlib.nullcontext():
                texts.append("" if output is None or output.closed else output.read())
        return texts[0], texts[1]


Process = ForkedProgram | subprocess.Popen[str]
"""A program that runs, forked or not."""


def program(
    command: Sequence[str],
    *,
    stdout: IO[Any] | int,
    stderr: IO[Any] | int,
    environment: Mapping[str, str] | None = None,
    own_group: bool = False,
    fresh: bool = False,
) -> Process:
    """Run a Python program in a process of its own.

    Agents and brokers are forked where that makes no difference: that takes a tenth of a start. A
    ``fresh`` process has imported nothing yet.
    """
    environ = {**os.environ} if environment is None else {**environment}
    held = environ.get("PYTHONPATH") == search_path(held=True) and VARIABLE in environ
    if fresh or tuple(command[:2]) not in (AGENT, CLI) or _begins_otherwise(environ, held):
        return subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            text=True,
            env=environ,
            start_new_session=own_group,
        )
    with contextlib.ExitStack() as ours:
        pipes: list[IO[str] | None] = []
        outputs = []
        for where in (stdout, stderr):
            if where == subprocess.PIPE:
                read, write = os.pipe()
                ours.callback(os.close, write)
                pipes.append(io.TextIOWrapper(io.BufferedReader(io.FileIO(read)), "utf-8"))
                outputs.append(write)
            else:
                pipes.append(None)
                outputs.append(where if isinstance(where, int) else where.fileno())
        found = ForkedProgram(
            _programs(held=held).path, command[1:], environ, outputs, own_group=own_group
        )
    found.stdout, found.stderr = pipes
    return found


def _begins_otherwise(environ: Mapping[str, str], held: bool) -> bool:
    """Whether a process with this environment differs from one that is forked."""
    path = set(filter(None, environ.get("PYTHONPATH", "").split(os.pathsep)))
    return not (held or path <= set(sys.path)) or any(
        environ.get(name) != os.environ.get(name)
        for name in {*environ, *os.environ}
        if name.startswith(READ_AT_START)
    )


@functools.cache
def _programs(*, held: bool) -> Forks:
    """Return the process that agents and brokers are forked from; ``held``: at armed steps."""
    folder = tempfile.mkdtemp(prefix="forks-")
    atexit.register(shutil.rmtree, folder)
    environment = {**os.environ, "PYTHONPATH": search_path(held=held)}
    environment |= {VARIABLE: "to be set by each process"} if held else {}
    forks = Forks(Path(folder) / "socket", environment, PROGRAMS)
    atexit.register(forks.end)
    return forks


class Forks:
    """The process that forks, from the side of the test."""

    def __init__(self, path: Path, environment: dict[str, str], modules: Sequence[str]) -> None:
        self.path = path
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.processes.forks", str(path), *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environment, FORKS: str(path)},
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
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class _Server:
    """Forks a process for each connection, and reports its end there."""

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(50)
        self._woken, self._wakes = socket.socketpair()
        self._wakes.setblocking(False)
        self._children: dict[int, Connection] = {}

    def serve(self) -> Connection:
        """Fork until the standard input ends; return in each new process, with its connection."""
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            ready, _, _ = select.select([self._listener, self._woken, sys.stdin], [], [])
            if sys.stdin in ready:
                os.killpg(0, signal.SIGKILL)
            if self._woken in ready:
                self._woken.recv(1000)
                self._report_ended()
            if self._listener in ready:
                accepted, _ = self._listener.accept()
                connection = Connection(accepted.detach())
                if (pid := os.fork()) == 0:
                    self._leave()
                    return connection
                self._children[pid] = connection

    def _report_ended(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            with self._children.pop(pid) as connection, contextlib.suppress(OSError):
                connection.send(("ended", os.waitstatus_to_exitcode(status)))

    def _leave(self) -> None:
        """Close in the new process what belongs to the one that forks."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in (self._listener, self._woken, self._wakes):
            end.close()
        for connection in self._children.values():
            connection.close()


def _perform(connection: Connection) -> None:
    try:
        connection.send(os.getpid())
        message = connection.recv()
    except (BrokenPipeError, EOFError):  # the other process was killed meanwhile
        return
    if isinstance(message[0], str):
        os._exit(_call(connection, *message))
    _run(connection, *message)


def _call(connection: Connection, module: str, function: str, args: Sequence[Any]) -> int:
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


def _run(
    connection: Connection,
    command: list[str],
    environment: dict[str, str],
    own_group: bool,
    outputs: int,
) -> None:
    """Become a program; what it raises ends this process as it would end that."""
    with connection:
        for number in range(1, 1 + outputs):
            received = recv_handle(connection)
            os.dup2(received, number)
            os.close(received)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if own_group:
        os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    sys.stdout.reconfigure(line_buffering="PYTHONUNBUFFERED" in environment)  # type: ignore[union-attr]
    sys.argv = command
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)


def main() -> None:
    path, *modules = sys.argv[1:]
    if "pandas" not in modules:
        hidden = runpy.run_module("pe_agent.agent", run_name="forks")["WithoutPandas"]
        sys.meta_path.insert(0, hidden())
    for name in modules:
        importlib.import_module(name)
    server = _Server(path)
    gc.freeze()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    _perform(server.serve())


if __name__ == "__main__":
    main()
