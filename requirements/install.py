"""Install a locked list of packages with pip, and show how far it is: ``python install.py FILE``.

It runs before anything is installed, so it uses the standard library only. If pip fails, its
whole output is shown.
"""

from __future__ import annotations

import queue
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

EVERY_SECONDS = 5.0
_LOCKED = re.compile(r"^[A-Za-z0-9][^=;\s]*==", re.MULTILINE)
_COLLECTING = re.compile(r"^Collecting ([A-Za-z0-9._-]+)")


class Progress:
    """Prints a line each time something has changed, but not more often than every 5 s."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._begun = self._shown = time.monotonic()
        self._collected = 0
        self._doing = "asking for packages"

    def take(self, line: str) -> None:
        """Follow one line of pip's output."""
        if found := _COLLECTING.match(line):
            self._collected += 1
            self._doing = f"{self._collected} of {self._total} packages fetched, now {found[1]}"
        elif line.startswith("Installing collected packages"):
            self._doing = f"installing {self._collected} packages"

    def show(self) -> None:
        """Print where it is, if the last line is old enough."""
        now = time.monotonic()
        if now - self._shown >= EVERY_SECONDS:
            self._shown = now
            sys.stdout.write(f"setup: {now - self._begun:3.0f} s, {self._doing}\n")
            sys.stdout.flush()


def main(lock: Path) -> int:
    """Run pip; return its exit code."""
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    command += ["--progress-bar", "off", "--require-hashes", "-r", str(lock)]
    pip = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    assert pip.stdout is not None
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert pip.stdout is not None
        for line in pip.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    progress, output = Progress(len(_LOCKED.findall(lock.read_text()))), []
    while True:
        try:
            line = lines.get(timeout=1.0)
        except queue.Empty:
            progress.show()
            continue
        if line is None:
            break
        output.append(line)
        progress.take(line)
        progress.show()
    code = pip.wait()
    if code:
        sys.stdout.write("".join(output))
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
