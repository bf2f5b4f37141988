"""A Spark Connect server in a process of its own, and sessions of its clients."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_agent.spark.local_session import CONF, SMALL, ensure_spark_home
from support.cuts.points import search_path
from support.processes.ports import free_port
from support.processes.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
START_SECONDS = 120.0
EACH_BATCH = {"spark.sql.streaming.fileSink.log.compactInterval": "1000000"}
"""File sinks keep the log of each batch."""
SERVER = {"spark.connect.grpc.binding.address": "127.0.0.1"}


class ConnectServer:
    """A server with cores; ``url`` stays the same when it is started again."""

    def __init__(self, folder: Path, *, cores: int = 2) -> None:
        folder.mkdir()
        self._folder, self._port, self._cores = folder, free_port(), cores
        self.url = f"sc://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._sessions: list[Any] = []
        self.start()

    @property
    def log(self) -> Path:
        """What it has printed, and what queries print with the format ``console``."""
        return self._folder / "server.out"

    def start(self) -> None:
        home = ensure_spark_home()
        options = {
            **CONF,
            **SMALL,
            **SERVER,
            **EACH_BATCH,
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.sql.warehouse.dir": str(self._folder / "warehouse"),
        }
        command = [str(home / "bin" / "spark-submit"), "--master", f"local[{self._cores}]"]
        command += ["--class", CLASS]
        for key, value in options.items():
            command += ["--conf", f"{key}={value}"]
        environment = {
            "SPARK_HOME": str(home),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": search_path(held=False),
        }
        log = self.log
        started = log.read_text().count("server started at") if log.exists() else 0
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*command, "spark-internal"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        until(
            lambda: log.read_text().count("server started at") > started,
            START_SECONDS,
            "the Spark Connect server has started",
        )

    def kill(self) -> None:
        """End the server and its Python workers by SIGKILL, if it runs."""
        assert self._process is not None
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def session(self, id_: str | None = None) -> SparkSession:
        """Return a new session, or that of an id."""
        from pyspark.sql.connect.session import SparkSession as ConnectSession

        url = self.url if id_ is None else f"{self.url}/;session_id={id_}"
        made: Any = ConnectSession.builder.remote(url).create()
        # PySpark asks the active session for settings, and an older one may be of a killed server.
        ConnectSession._default_session = made
        ConnectSession._active_session.session = made
        self._sessions.append(made)
        return made  # type: ignore[no-any-return]

    def end(self) -> None:
        """Close the clients, which would call for minutes a server that is gone; end the server."""
        for session in self._sessions:
            session.client.close()
        self.kill()
