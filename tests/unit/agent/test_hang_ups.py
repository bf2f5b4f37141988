"""A Python worker of Spark ends without a traceback if the JVM has closed its connection."""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

SECRET = b"secret"
WORKER = """
from contextlib import suppress
{imports}

def main(infile, outfile):
    outfile.write(b"more than the JVM reads")
    with suppress(ConnectionError):
        infile.read()
    {then}
"""


def printed(folder: Path, imports: str, then: str = "pass") -> str:
    """Run PySpark's daemon, hang up on a worker of it; return what they print."""
    (folder / "pyspark_worker_of_a_test.py").write_text(WORKER.format(imports=imports, then=then))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
        "PYTHON_WORKER_FACTORY_SECRET": SECRET.decode(),
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "pyspark.daemon", "pyspark_worker_of_a_test"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as daemon:
        assert daemon.stdout is not None
        (port,) = struct.unpack("!i", daemon.stdout.read(4))
        with socket.create_connection(("127.0.0.1", port), timeout=30) as jvm:
            (pid,) = struct.unpack("!i", jvm.recv(4, socket.MSG_WAITALL))
            jvm.sendall(struct.pack("!i", len(SECRET)) + SECRET)
            assert jvm.recv(6, socket.MSG_WAITALL)[4:] == b"ok"
            # With unread bytes an end is a reset: what the worker sends next fails.
            jvm.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with os.fdopen(os.pidfd_open(pid), "rb", closefd=True) as worker:
            assert select.select([worker], [], [], 30)[0]
        _, errors = daemon.communicate(timeout=30)
    return errors.decode()


def test_a_worker_that_the_jvm_hangs_up_on_prints_no_traceback(tmp_path: Path) -> None:
    assert "Error" in printed(tmp_path, "")  # what PySpark prints by itself
    for imports in (
        "from pyspark_streambroker import DefaultSource",
        "import pe_agent.aligned.runtime.processor",
    ):
        assert "Error" not in printed(tmp_path, imports)


@pytest.mark.parametrize("error", ["ValueError", "SystemError"])
def test_another_error_of_a_worker_keeps_its_traceback(tmp_path: Path, error: str) -> None:
    then = f"outfile.flush = lambda: None; raise {error}('a mistake')"

    assert f"{error}: a mistake" in printed(
        tmp_path, "from pyspark_streambroker import DefaultSource", then
    )
