"""Run all checks and tests in four lanes, with pytest's own arguments.

Four lanes keep two cores busy: tests of an API server and of agents mostly wait. Long groups start
first. The output of a group is shown when it has ended.

A selection may leave a group without tests; such a group passes if a test of another one ran.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

LANES = 4
SPARK = ["tests/component/spark", "tests/e2e"]
OPERATORS = ("aligned", "pattern")
CHART = ("chart",)
"""Files of a folder whose names start with ``test_`` and one of these are a group of their own."""
CLUSTER = ["tests/component/kubernetes"]
AGENT = ["tests/component/agent"]
COMPONENTS = ["tests/component", *(f"--ignore={path}" for path in SPARK + CLUSTER + AGENT)]
UNIT = ["tests", "--ignore=tests/component", "--ignore=tests/e2e"]
NOTHING_SELECTED = 5
"""Exit code of pytest when it ran no test."""
_RAN = re.compile(r"\b\d+ (passed|failed)\b")
_NO_API_SERVER = re.compile(r"^SKIPPED \[(\d+)\].*make kube-assets", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Commands that run one after the other until one fails."""

    name: str
    commands: list[list[str]]


def groups(arguments: list[str]) -> list[Group]:
    """Return what runs, in the order in which it begins: long groups first."""
    make = ["make", "--no-print-directory"]

    def pytest(paths: list[str]) -> list[str]:
        return [sys.executable, "-m", "pytest", *paths, *arguments]

    def files(folder: str, names: tuple[str, ...]) -> list[str]:
        return [
            str(path) for one in names for path in sorted(Path(folder).glob(f"test_{one}_*.py"))
        ]

    def others(names: tuple[str, ...]) -> list[str]:
        return [f"--ignore-glob=*/test_{one}_*.py" for one in names]

    operators, chart = files(SPARK[0], OPERATORS), files(CLUSTER[0], CHART)
    return [
        Group(name="unit and contract tests", commands=[pytest(UNIT)]),
        Group(name="Spark", commands=[pytest([*SPARK, *others(OPERATORS)])]),
        Group(name="Spark, operators", commands=[[*make, "spark-classes"], pytest(operators)]),
        Group(name="API server", commands=[pytest([*CLUSTER, *others(CHART)])]),
        Group(name="agents", commands=[pytest(AGENT)]),
        Group(name="API server, chart", commands=[pytest(chart)]),
        Group(name="other components", commands=[pytest(COMPONENTS)]),
        Group(name="format, lint, types, layers", commands=[[*make, "check"]]),
    ]


def show(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run(group: Group) -> tuple[int, str]:
    """Run a group; return its exit code and its output."""
    began, output, code = time.monotonic(), "", 0
    show(f"--- {group.name}: started")
    for command in group.commands:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        output, code = output + done.stdout, abs(done.returncode)  # a signal's is negative
        if code and code != NOTHING_SELECTED:
            break
    return code, f"--- {group.name}: code {code} after {time.monotonic() - began:.0f} s\n{output}"


def main(arguments: list[str]) -> int:
    """Run all; return the highest exit code, or that of an empty selection if no test ran."""
    worst, skipped, ran = 0, 0, False
    with ThreadPoolExecutor(LANES) as lanes:
        for ended in as_completed([lanes.submit(run, group) for group in groups(arguments)]):
            code, output = ended.result()
            show(output)
            worst = max(worst, 0 if code == NOTHING_SELECTED else code)
            ran = ran or _RAN.search(output) is not None
            skipped += sum(map(int, _NO_API_SERVER.findall(output)))
    if skipped:
        show(
            f"{skipped} tests need a Kubernetes API server and did not run."
            " `make test-all` builds one first, once, in about 6 minutes."
        )
    return worst if ran or worst else NOTHING_SELECTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
