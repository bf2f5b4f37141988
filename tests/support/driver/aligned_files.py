"""The example of ends of files, run to its end.

``python -m support.driver aligned_files FOLDER before|behind FILE`` kills itself once, before or
behind the moment in which a file gets its name. What came out is in ``FOLDER/found``.
"""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import file_ends

from pe_agent.spark.local_session import SMALL, session
from support.driver.process import kill_once

RENAME = Path.rename


def main(folder: Path, when: str, name: str) -> None:
    def rename(path: Path, to: Path) -> Path:
        if path.name != f".{name}":
            return RENAME(path, to)
        if when == "before":
            kill_once(folder, when)
        renamed = RENAME(path, to)
        kill_once(folder, when)
        return renamed

    with mock.patch.object(Path, "rename", rename):
        found = file_ends.run(session("files", conf=SMALL), folder)
    (folder / "found").write_text(json.dumps(found))
