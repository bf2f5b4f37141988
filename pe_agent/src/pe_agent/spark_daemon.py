"""Spark's Python daemon without a traceback for each worker whose connection the JVM has closed.

The JVM closes the connections of a query's workers when the query ends. A worker that still has
bytes to send then fails with a broken pipe, and the daemon of PySpark prints a traceback, although
nothing is wrong. Set ``spark.python.daemon.module`` to this module's name to use it.
"""

from __future__ import annotations

import socket

from pyspark import daemon

_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Run one worker; return 1, without a traceback, if the JVM has closed the connection."""
    try:
        return _worker(sock, authenticated)
    except ConnectionError:
        return 1


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
