"""Call a function on paths, in a process that kills itself at its n-th step.

``python -m support.brokers.killed_at N MODULE:FUNCTION PATH…``. Steps are the calls of the
operating system that Python audits: each file opened, made, renamed or removed, and each directory.
"""

from __future__ import annotations

import os
import pkgutil
import signal
import sys
from pathlib import Path

STEPS = ("open", "sqlite3.connect", "shutil.")


def main(number: str, function: str, *paths: str) -> None:
    """Call the function; the process is gone before step ``number`` has its effect."""
    call, left = pkgutil.resolve_name(function), int(number)

    def step(event: str, _: object) -> None:
        nonlocal left
        if event.startswith(STEPS) or event.startswith("os."):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    arguments = [Path(path) for path in paths]
    sys.addaudithook(step)
    call(*arguments)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
