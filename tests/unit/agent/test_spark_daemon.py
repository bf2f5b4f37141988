"""Workers whose connection the JVM has closed end without a traceback."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import socket, sys
from pyspark import daemon, worker
from pe_agent import spark_daemon

def work(infile, outfile):
    outfile.write(b"result")
    {then}

worker.main = work
mine, other = socket.socketpair()
other.close()
sys.exit(10 + {module}.worker(mine, True))
"""


def ended(module: str, then: str = "pass") -> subprocess.CompletedProcess[str]:
    """Run a worker whose results cannot be sent, as the daemon's process for it does."""
    return subprocess.run(
        [sys.executable, "-c", SCRIPT.format(module=module, then=then)],
        env={**os.environ, "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_worker_ends_with_a_code_and_no_traceback_if_the_connection_is_closed() -> None:
    assert "BrokenPipeError" in ended("daemon").stderr  # what users saw
    ours = ended("spark_daemon")
    assert ours.returncode == 11
    assert "Traceback" not in ours.stderr


@pytest.mark.parametrize("then", ["raise ValueError('wrong')", "raise KeyError('missing')"])
def test_an_error_of_the_worker_itself_keeps_its_traceback(then: str) -> None:
    script = ended("spark_daemon", f"outfile.flush = lambda: None; {then}")
    assert then[6:11] in script.stderr
    assert script.returncode == 1
