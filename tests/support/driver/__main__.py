"""Run a driver for a test that kills it: ``python -m support.driver NAME FOLDER ARGUMENTS…``.

NAME is a module of this package. Only the standard library is imported here, so that a driver may
run with the code of another release.
"""

import faulthandler
import importlib
import os
import signal
import sys
from pathlib import Path

if __name__ == "__main__":
    faulthandler.register(signal.SIGQUIT)
    name, folder, *arguments = sys.argv[1:]
    Path(folder, "driver").write_text(str(os.getpid()))
    importlib.import_module(f"support.driver.{name}").main(Path(folder), *arguments)
