"""Run the tests in two processes, with pytest's own arguments.

Those on an API server mostly wait: for it, for a Lease, for a time to pass. All others run
meanwhile.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile

CLUSTER = "tests/component/kubernetes"
PYTEST = [sys.executable, "-m", "pytest"]


def main(arguments: list[str]) -> int:
    """Run all, and show what those on an API server say at the end; return the worse code."""
    with tempfile.TemporaryFile("w+") as said:
        cluster = subprocess.Popen(
            [*PYTEST, CLUSTER, *arguments], stdout=said, stderr=subprocess.STDOUT
        )
        try:
            others = subprocess.run(
                [*PYTEST, "tests", f"--ignore={CLUSTER}", *arguments], check=False
            ).returncode
            code = cluster.wait()
        finally:
            if cluster.poll() is None:
                cluster.terminate()
                cluster.wait()
            said.seek(0)
            shutil.copyfileobj(said, sys.stdout)
    return max(others, code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
