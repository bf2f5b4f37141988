"""A PostgreSQL server for tests, of the programs that `make .postgresql/.ready` unpacks."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from support.processes.ports import free_port
from support.processes.waiting import until

UNPACKED = Path(__file__).parents[3] / ".postgresql"
USER = 65534
"""Whom the server runs as where the tests run as root, which it refuses."""
SECONDS = 60.0
INITDB = ("--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-sync")
SETTINGS = {"wal_level": "logical", "fsync": "off", "jit": "off", "unix_socket_directories": ""}


class PostgresServer:
    """A database on loopback, in a folder outside of ``tmp_path``, which only root can read."""

    def __init__(self) -> None:
        found = sorted(UNPACKED.glob("usr/lib/postgresql/*/bin"))
        if not found or not (UNPACKED / ".ready").exists():
            pytest.skip("PostgreSQL is missing; make test-postgresql unpacks it")
        self.folder = Path(tempfile.mkdtemp(prefix="streambroker-postgresql-"))
        self.port = free_port()
        self.dsn = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self._log = (self.folder / "log.txt").open("ab")
        self._process: subprocess.Popen[bytes] | None = None
        # Copied: another user may not be able to read this checkout.
        for part in ("usr/lib", "usr/share/postgresql", "lib"):
            if (UNPACKED / part).exists():
                shutil.copytree(
                    UNPACKED / part,
                    self.folder / part,
                    symlinks=True,
                    ignore=shutil.ignore_patterns("bitcode"),
                )
        self._bin = self.folder / found[-1].relative_to(UNPACKED)
        self._new, self._data = self.folder / "new", self.folder / "data"
        self._new.mkdir(mode=0o700)
        if os.getuid() == 0:
            os.chown(self.folder, USER, USER)
            os.chown(self._new, USER, USER)
        subprocess.run(
            self._command("initdb", self._new, "--no-locale", *INITDB),
            env=self._environment(),
            cwd=self.folder,
            check=True,
            capture_output=True,
        )

    def _command(self, program: str, data: Path, *options: str) -> list[str]:
        other = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
        run_as = other if os.getuid() == 0 else []
        return [*run_as, str(self._bin / program), "-D", str(data), *options]

    def _environment(self) -> dict[str, str]:
        libraries = [str(one) for one in sorted(self.folder.glob("**/*-linux-gnu"))]
        return {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": os.pathsep.join(libraries)}

    def start_empty(self) -> None:
        """Start with new data, whatever was there before."""
        if self._data.exists():
            shutil.rmtree(self._data)
        subprocess.run(["cp", "-a", self._new, self._data], check=True)
        self.start()

    def start(self) -> None:
        settings = [f"--{name}={value}" for name, value in SETTINGS.items()]
        self._process = subprocess.Popen(
            self._command(
                "postgres", self._data, "-h", "127.0.0.1", "-p", str(self.port), *settings
            ),
            env=self._environment(),
            cwd=self.folder,
            stderr=self._log,
        )
        until(self._answers, SECONDS, "PostgreSQL answers")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log.txt").read_text()
        try:
            psycopg2.connect(self.dsn).close()
        except psycopg2.OperationalError:
            return False
        return True

    def crash(self) -> None:
        """End the server without a checkpoint; what it has not written to its log is lost."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(SECONDS)
            self._process = None

    def sql(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run statements, several as one transaction; return the rows of the last one."""
        with closing(psycopg2.connect(self.dsn, dbname=database)) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        self._log.close()
        shutil.rmtree(self.folder)
