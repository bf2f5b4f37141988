"""An S3 server for tests: versitygw over a directory, on loopback."""

from __future__ import annotations

import contextlib
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from support.processes.ports import free_port
from support.processes.waiting import until

PROGRAM = Path(
    os.environ.get("STREAMBROKER_S3_SERVER") or Path(__file__).parents[3] / ".storage" / "versitygw"
)
MISSING = "needs the S3 server of the tests: make storage-server"
KEY = "tests"


def is_built() -> bool:
    """Return whether the server's program is there."""
    return PROGRAM.exists()


@contextlib.contextmanager
def s3_server(directory: Path) -> Iterator[dict[str, str]]:
    """Run a server with the bucket ``rows``; yield what its clients need in their environment."""
    (directory / "root" / "rows").mkdir(parents=True)
    (directory / "meta").mkdir()
    port = free_port()
    command = [str(PROGRAM), "--access", KEY, "--secret", KEY, "--port", f"127.0.0.1:{port}"]
    with (directory / "log").open("ab") as output:
        server = subprocess.Popen(
            [*command, "posix", "--sidecar", str(directory / "meta"), str(directory / "root")],
            stdout=output,
            stderr=output,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: _answers(url), 30.0, "S3 server")
        yield {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": KEY,
            "AWS_REGION": "us-east-1",
            "PID": str(server.pid),
            "STREAMBROKER_STORAGE": "s3://rows/prefix",
        }
    finally:
        server.kill()
        server.wait()


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=2).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
