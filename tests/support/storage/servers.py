"""Object stores for tests, on loopback: versitygw speaks S3, and Azurite emulates Azure."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from email.utils import formatdate
from pathlib import Path

from support.processes.ports import free_port
from support.processes.waiting import until

STORAGE = Path(__file__).parents[3] / ".storage"
PROGRAM = Path(os.environ.get("STREAMBROKER_S3_SERVER") or STORAGE / "versitygw")
MISSING = "needs the S3 server of the tests: make storage-server"
KEY = "tests"
AZURITE = Path(os.environ.get("STREAMBROKER_AZURITE") or STORAGE / "azurite")
EMULATOR_MISSING = "needs the emulator of Azure: make storage-emulators"
AZURE_VERSION = "2021-08-06"


def is_built() -> bool:
    """Return whether the server's program is there."""
    return PROGRAM.exists()


def is_emulator_installed() -> bool:
    """Return whether Azurite is there."""
    return AZURITE.exists()


@contextlib.contextmanager
def s3_server(directory: Path, port: int = 0) -> Iterator[dict[str, str]]:
    """Run a server with the bucket ``rows``; yield what its clients need in their environment."""
    (directory / "root" / "rows").mkdir(parents=True, exist_ok=True)
    (directory / "meta").mkdir(exist_ok=True)
    at = f"127.0.0.1:{port or free_port()}"
    command = [str(PROGRAM), "--access", KEY, "--secret", KEY, "--port", at]
    command += ["posix", "--sidecar", str(directory / "meta"), str(directory / "root")]
    with _serving(command, directory / "log", f"http://{at}") as pid:
        yield {
            "AWS_ENDPOINT_URL": f"http://{at}",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": KEY,
            "AWS_REGION": "us-east-1",
            "PID": str(pid),
            "STREAMBROKER_STORAGE": "s3://rows/prefix",
        }


@contextlib.contextmanager
def azure_server(directory: Path) -> Iterator[dict[str, str]]:
    """Run Azurite with the container ``rows``; yield as `s3_server` does."""
    directory.mkdir()
    port, key = free_port(), base64.b64encode(KEY.encode()).decode()
    url = f"http://127.0.0.1:{port}/{KEY}"
    program = AZURITE / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    command = ["node", str(program), "--silent", "--skipApiVersionCheck", "--location"]
    command += [str(directory / "root"), "--blobPort", str(port)]
    accounts = {"AZURITE_ACCOUNTS": f"{KEY}:{key}"}
    with _serving(command, directory / "log", url, accounts):
        _create_container(f"{url}/rows")
        yield {
            "AZURE_ENDPOINT": url,
            "AZURE_STORAGE_ACCOUNT_NAME": KEY,
            "AZURE_STORAGE_ACCOUNT_KEY": key,
            "STREAMBROKER_STORAGE": "az://rows/prefix",
        }


def _create_container(url: str) -> None:
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": AZURE_VERSION}
    signed = [f"{name}:{value}" for name, value in headers.items()]
    text = "\n".join(["PUT", *[""] * 11, *signed, f"/{KEY}/{KEY}/rows", "restype:container"])
    signature = base64.b64encode(hmac.new(KEY.encode(), text.encode(), hashlib.sha256).digest())
    headers |= {"Authorization": f"SharedKey {KEY}:{signature.decode()}", "Content-Length": "0"}
    request = urllib.request.Request(f"{url}?restype=container", method="PUT", headers=headers)
    urllib.request.urlopen(request, timeout=30).close()


@contextlib.contextmanager
def _serving(
    command: Sequence[str], log: Path, url: str, environment: Mapping[str, str] = {}
) -> Iterator[int]:
    """Run a server until the end of the block; yield its process id once it answers."""
    with log.open("ab") as output:
        server = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, **environment}
        )
    try:
        until(lambda: _answers(url), 60.0, f"server at {url}")
        yield server.pid
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
