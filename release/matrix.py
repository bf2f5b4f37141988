"""Test the built packages on several Pythons: ``python matrix.py [VERSION…]``.

On each Python the newest dependencies that the packages allow are installed, with PySpark 4.3. On
the oldest Python the lowest ones are tested, too, with PySpark 4.2. The tests are a selection which
uses each dependency. A Python that this machine does not have is named and skipped.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from version import DIST, PACKAGES, ROOT

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
UV = ROOT / ".venv-release/bin/uv"
FOLDER = ROOT / ".venv-matrix"
TOOLS = ("hypothesis", "openapi-core", "pytest", "pytest-asyncio", "pytest-timeout")
TESTS = (
    "tests/unit/agent/test_arrow_types.py",
    "tests/unit/agent/test_filter_masks.py",
    "tests/unit/agent/test_flight_errors.py",
    "tests/unit/agent/test_notebook.py",
    "tests/unit/agent/test_storage.py",
    "tests/unit/core/control/test_declared_state.py",
    "tests/unit/core/control/test_payloads.py",
    "tests/unit/core/test_cases.py",
    "tests/unit/core/test_expression_errors.py",
    "tests/unit/kubernetes/test_metrics.py",
    "tests/component/program/test_control_plane.py",
    "tests/component/rest/test_resources.py",
    "tests/component/spark/test_aligned_streams.py",
    "tests/component/data_path/test_arrow_batches.py",
    "tests/component/data_path/test_readers.py",
)
"""PyArrow, obstore, msgspec, lark, prometheus-client, aiohttp, PySpark, pandas and protobuf."""


@dataclass(frozen=True)
class Case:
    """A Python, and which versions of dependencies it gets."""

    python: str
    newest: bool

    def __str__(self) -> str:
        return f"Python {self.python}, {'newest' if self.newest else 'lowest'} dependencies"

    @property
    def folder(self) -> Path:
        """Return the folder of its environment."""
        return FOLDER / f"{self.python}-{'newest' if self.newest else 'lowest'}"


def uv(*arguments: str | Path) -> None:
    """Run uv, without its output."""
    environment = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    subprocess.run([UV, *arguments, "--quiet"], cwd=ROOT, env=environment, check=True)


def find_python(version: str) -> str | None:
    """Return the program of a Python version, None if there is none."""
    folders = [Path(name) for name in os.environ["PATH"].split(os.pathsep)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    folders += sorted(pyenv.glob(f"{version}.*/bin"))
    for folder in folders:
        program = folder / f"python{version}"
        if program.exists():
            works = subprocess.run([program, "-c", ""], capture_output=True, check=False)
            if not works.returncode:
                return str(program)
    return None


def install(case: Case, program: str) -> None:
    """Make the environment of a case: the wheels of ``dist/``, their dependencies, and pytest."""
    uv("venv", "--clear", "--python", program, case.folder)
    wheels = [path.as_uri() for path in sorted(DIST.glob("*.whl"))]
    names = [re.sub(r"_", "-", Path(uri).name.split("-")[0]) for uri in wheels]
    own = case.folder / "own.in"
    own.write_text("".join(f"{n} @ {uri}\n" for n, uri in zip(names, wheels, strict=True)))
    lock = case.folder / "lock.txt"
    projects = [f"{package}/pyproject.toml" for package in PACKAGES]
    resolution = "highest" if case.newest else "lowest-direct"
    python = case.folder / "bin/python"
    options = ["--all-extras", "--resolution", resolution, "--python", str(python)]
    uv("pip", "compile", *options, "--output-file", lock, *projects, own)
    locked = (ROOT / "requirements/dev.txt").read_text()
    tools = re.findall(rf"^(?:{'|'.join(TOOLS)})==[^\s;]+", locked, re.MULTILINE)
    uv("pip", "install", "--python", python, "--requirement", lock, *tools)


def test(case: Case) -> bool:
    """Run the tests of a case; return whether they passed."""
    path = f"{case.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    python = str(case.folder / "bin/python")
    environment = {**os.environ, "PATH": path, "PYSPARK_PYTHON": python}
    environment.pop("JDK_JAVA_OPTIONS", None)
    command = [python, "-m", "pytest", "-q", "-m", "not long and not slow", *TESTS]
    return not subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def main(versions: list[str]) -> int:
    """Run all cases; return the exit code."""
    results, skipped = dict[Case, bool](), list[str]()
    for version in versions:
        program = find_python(version)
        if program is None:
            skipped.append(version)
            continue
        for newest in (False, True) if version == PYTHONS[0] else (True,):
            case, began = Case(version, newest), time.monotonic()
            print(f"--- {case}", flush=True)
            install(case, program)
            results[case] = test(case)
            print(f"--- {case}: {time.monotonic() - began:.0f} s", flush=True)
    for case, passed in results.items():
        print(f"{'passed' if passed else 'FAILED'}: {case}")
    for version in skipped:
        print(f"skipped: Python {version}, which this machine does not have")
    return 0 if results and all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(PYTHONS)))
