"""Run a command that ends when whoever started it does, however that ends.

    python leash.py command argument...

The standard input is the leash. When it closes, because its holder let go, ended or was
killed, the command is killed. The first line of the standard output is the command's
process id; what the command says goes to the standard error.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading


def main() -> None:
    """Run the command of the arguments until it ends or the standard input does."""
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=sys.stderr)
    sys.stdout.write(f"{child.pid}\n")
    sys.stdout.flush()
    threading.Thread(target=_hold, args=(child,), daemon=True).start()
    os._exit(abs(child.wait()))


def _hold(child: subprocess.Popen[bytes]) -> None:
    while os.read(0, 4096):
        pass
    child.kill()


if __name__ == "__main__":
    main()
