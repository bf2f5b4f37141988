"""``python -m benchmarks [names] [--rounds N] [--rows N] [--quick] [--json FILE]``."""

from __future__ import annotations

import sys
from pathlib import Path


def door() -> int:
    """Find the modules beside this file, in every process that is started too, and run."""
    sys.path.insert(0, str(Path(__file__).parent))
    from commandline import main

    return main()


if __name__ == "__main__":
    sys.exit(door())
