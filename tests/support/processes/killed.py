"""Run a program that is killed once, with its JVM, when a function that it called has returned.

``python -m support.processes.killed MARK OWNER NAME PROGRAM``: OWNER is a module or a class, as
``module:Class``. The file MARK says that the program was killed before.
"""

from __future__ import annotations

import os
import pkgutil
import runpy
import signal
import sys
from pathlib import Path
from typing import Any


def main(mark: str, owner: str, name: str, program: str) -> None:
    """Run the program; its process group is killed, as in a crash."""
    has, reached = pkgutil.resolve_name(owner), Path(mark)
    called = getattr(has, name)

    def killing(*arguments: Any, **more: Any) -> Any:
        result = called(*arguments, **more)
        if not reached.exists():
            reached.touch()
            os.killpg(0, signal.SIGKILL)
        return result

    setattr(has, name, killing)
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
