"""A command starts fast: it does not load what only a broker needs."""

from __future__ import annotations

import subprocess
import sys

BROKER_ONLY = {"aiohttp", "lark", "kopf", "streambroker_core.board", "streambroker_core.matching"}


def test_the_command_line_loads_no_board_and_no_server() -> None:
    script = (
        "import sys, streambroker_operator.cli.app\n"
        f"print(sorted({BROKER_ONLY!r} & set(sys.modules)), 'yaml' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "[] True\n"
