"""Ports for programs that are to come back at the address they had."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from pathlib import Path

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST, _AT_LEAST = 12_000, 2_000


def free_port() -> int:
    """Return a port of this machine that stays free while the program that has it is away.

    It lies below those that the system gives to outgoing connections, and no other process of the
    tests is given it until all others have had their turn: all count in one file.
    """
    last = int(_EPHEMERAL.read_text().split()[0]) if _EPHEMERAL.exists() else 32_768
    assert last >= _FIRST + _AT_LEAST, f"outgoing connections have all ports from {last} on"
    for _ in range(last - _FIRST):
        port = _FIRST + _turn() % (last - _FIRST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no free port from {_FIRST} to {last - 1}")


def _turn() -> int:
    """Count one up over all processes of this user."""
    path = Path(tempfile.gettempdir()) / f"streambroker-test-ports-{os.getuid()}"
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        turn = int(file.read() or 0)
        file.truncate(0)
        file.write(str(turn + 1))
    return turn
