"""The driver of the example of ends of files, in a process of its own, for tests that kill it.

``python -m support.driver.aligned_files FOLDER before|behind FILE``: runs it, and kills itself
once, before or behind the moment in which a file gets its name. What came out is in
``FOLDER/found``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from unittest import mock

import file_ends

from pe_agent.spark.local_session import SMALL, session
from support.processes.waiting import until

RENAME = Path.rename


def main(folder: Path, when: str, name: str) -> None:
    """Run to the end."""
    until((folder / "begin").exists, 30.0, "the driver's id is written down")
    mark = folder / "killed"

    def rename(path: Path, to: Path) -> Path:
        if path.name != f".{name}" or mark.exists():
            return RENAME(path, to)
        mark.touch()
        if when == "behind":
            RENAME(path, to)
        os.killpg(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")

    with mock.patch.object(Path, "rename", rename):
        found = file_ends.run(session("files", conf=SMALL), folder)
    (folder / "found").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
