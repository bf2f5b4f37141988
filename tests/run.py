"""Run all checks and tests in four lanes, with pytest's own arguments.

Four lanes keep two cores busy: tests of an API server and of agents mostly wait. Long groups start
first. The output of a group is shown when it has ended.

With ``--some`` as first argument the others select a part of the tests: a group may be left without
any, but not all of them, and the checks do not run.
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
SPARK = ["tests/component/spark"]
E2E = ["tests/e2e"]
OPERATORS = ("aligned", "pattern")
SIDES = ("side",)
CHART = ("chart",)
"""Files of a folder whose names start with ``test_`` and one of these are a group of their own."""
CLUSTER = ["tests/component/kubernetes"]
AGENT = ["tests/component/agent"]
DATA_PATH = ["tests/component/data_path", "tests/component/connect"]
COMPONENTS = [
    "tests/component",
    *(f"--ignore={path}" for path in SPARK + CLUSTER + AGENT + DATA_PATH),
]
CHECKS = "format, lint, types, layers"
CONTRACT = ["tests/contract"]
UNIT_AGENT = ["tests/unit/agent"]
OTHERS = ["tests/component", "tests/console", "tests/e2e", *CONTRACT, *UNIT_AGENT]
UNIT = ["tests", *(f"--ignore={path}" for path in OTHERS)]
NOTHING_SELECTED = 5
"""Exit code of pytest when it ran no test."""
_NO_API_SERVER = re.compile(r"^SKIPPED \[(\d+)\].*make kube-assets", re.MULTILINE)
_FAILURE = re.compile(r"^(?:E  |FAILED |ERROR ).*", re.MULTILINE)
"""What pytest prints of a failure: its messages, and the name of the test."""


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

    operators, sides = files(SPARK[0], OPERATORS), files(SPARK[0], SIDES)
    chart = files(CLUSTER[0], CHART)
    return [
        Group(name="Spark, operators", commands=[[*make, "spark-classes"], pytest(operators)]),
        Group(name="data path", commands=[pytest(DATA_PATH)]),
        Group(name="Spark", commands=[pytest([*SPARK, *others(OPERATORS + SIDES)])]),
        Group(name="whole jobs", commands=[pytest(E2E)]),
        Group(name="unit tests", commands=[pytest(UNIT)]),
        Group(name="API server", commands=[pytest([*CLUSTER, *others(CHART)])]),
        Group(name="Spark, side inputs", commands=[pytest(sides)]),
        Group(name="other components", commands=[pytest(COMPONENTS)]),
        Group(name="agents", commands=[pytest(AGENT)]),
        Group(name="unit tests of agents", commands=[pytest(UNIT_AGENT)]),
        Group(name="API server, chart", commands=[pytest(chart)]),
        Group(name="contract tests", commands=[pytest(CONTRACT)]),
        Group(name=CHECKS, commands=[[*make, "check"]]),
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
        if code:
            break
    return code, f"--- {group.name}: code {code} after {time.monotonic() - began:.0f} s\n{output}"


def main(arguments: list[str], *, some: bool = False) -> int:
    """Run all, or with ``some`` a part of the tests; return the highest exit code."""
    codes, skipped, failed = list[int](), 0, list[str]()
    chosen = [group for group in groups(arguments) if not (some and group.name == CHECKS)]
    with ThreadPoolExecutor(LANES) as lanes:
        for ended in as_completed([lanes.submit(run, group) for group in chosen]):
            code, output = ended.result()
            show(output)
            codes.append(code)
            failed += _FAILURE.findall(output)
            skipped += sum(map(int, _NO_API_SERVER.findall(output)))
    if skipped:
        show(
            f"{skipped} tests need a Kubernetes API server and did not run."
            " `make test-all` builds one first, once, in about 6 minutes."
        )
    if failed:
        show("\n".join(["--- what failed, of all groups:", *failed]))
    if some:
        codes = [code for code in codes if code != NOTHING_SELECTED] or [NOTHING_SELECTED]
    return max(codes)


if __name__ == "__main__":
    only_some = sys.argv[1:2] == ["--some"]
    sys.exit(main(sys.argv[1 + only_some :], some=only_some))
