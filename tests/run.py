"""Run the tests in two processes, with pytest's own arguments.

Those on an API server and those with Spark mostly wait: for a server to start, for a Lease, for a
batch. All others run meanwhile.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile

WAITING = ["tests/component/kubernetes", "tests/component/spark", "tests/e2e"]
PYTEST = [sys.executable, "-m", "pytest"]


def main(arguments: list[str]) -> int:
    """Run all, and show what those that wait say at the end; return the worse code."""
    others = ["tests", *(f"--ignore={path}" for path in WAITING)]
    with tempfile.TemporaryFile("w+") as said:
        waiting = subprocess.Popen(
            [*PYTEST, *WAITING, *arguments], stdout=said, stderr=subprocess.STDOUT
        )
        try:
            code = subprocess.run([*PYTEST, *others, *arguments], check=False).returncode
            code = max(code, waiting.wait())
        finally:
            if waiting.poll() is None:
                waiting.terminate()
                waiting.wait()
            said.seek(0)
            shutil.copyfileobj(said, sys.stdout)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
