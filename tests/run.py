"""Run the tests in three lanes, with pytest's own arguments.

Those on an API server and those with Spark mostly wait: for a server to start, for a Lease, for a
batch. No two groups with Spark run at once. What a group says is shown when it has ended.
"""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

LANES = 3
SPARK = ["tests/component/spark", "tests/e2e"]
CLUSTER = ["tests/component/kubernetes"]
AGENT = ["tests/component/agent"]
GROUPS = [
    CLUSTER,
    SPARK,
    AGENT,
    ["tests/component", *(f"--ignore={path}" for path in SPARK + CLUSTER + AGENT)],
    ["tests", "--ignore=tests/component", "--ignore=tests/e2e"],
]
"""The longest first; whatever is in none of the others is in the last."""


def say(text: str) -> None:
    """Show at once what there is to say."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run(group: list[str], arguments: list[str]) -> tuple[int, str]:
    """Return the code of one pytest and what it said."""
    began = time.monotonic()
    say(f"--- {group[0]}: begun")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *group, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    title = f"--- {group[0]}: code {done.returncode} after {time.monotonic() - began:.0f} s"
    return done.returncode, f"{title}\n{done.stdout}"


def main(arguments: list[str]) -> int:
    """Run all; return the worst code."""
    worst = 0
    with ThreadPoolExecutor(LANES) as lanes:
        for ended in as_completed([lanes.submit(run, group, arguments) for group in GROUPS]):
            code, said = ended.result()
            say(said)
            worst = max(worst, abs(code))  # a signal's is negative
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
