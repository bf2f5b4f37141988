"""Check of a Spark Connect server: whether its Python has this package and reaches this machine."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from pe_agent.job.arguments import ArgumentError
from pe_agent.spark.query_failure import cause

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMEOUT_SECONDS = 5.0


def check_server(spark: SparkSession, *, loopback: bool) -> None:
    """Check that tasks of a Spark Connect server can reach an agent of this machine.

    Args:
        spark: a session of Spark Connect.
        loopback: whether the agent will listen on this machine's loopback address alone.

    Raises:
        ArgumentError: the server's Python lacks pe_agent, or the server is another machine.
    """
    if not loopback:
        _run(spark, 0)
        return
    word = secrets.token_hex(16)
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_answer, args=(server, word), daemon=True).start()
        try:
            found = _run(spark, server.getsockname()[1])
        finally:
            server.shutdown(socket.SHUT_RDWR)  # ends the thread
    if found != word or not str(spark.conf.get("spark.master", "")).startswith("local"):
        raise ArgumentError(
            "the Spark Connect server or its executors are on other machines, where nothing"
            " reaches an agent that listens on 127.0.0.1 here. Give the agent an address that they"
            " reach, with certificates: agent=AgentOptions(host=…, tls=AgentTls(…))."
        )


def _answer(server: socket.socket, word: str) -> None:
    try:
        while True:
            caller, _ = server.accept()
            with caller:
                caller.sendall(word.encode())
    except OSError:  # the check has ended
        return


def _run(spark: SparkSession, port: int) -> str:
    """Return what a task of the server reads from a port of its own loopback address."""
    from pyspark.errors import PySparkException

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from read_word(batches, port)

    try:
        (row,) = spark.range(0, 1, 1, 1).mapInArrow(read, "word string").collect()
    except PySparkException as error:
        if "No module named" not in str(error):
            raise
        raise ArgumentError(
            "the Python of the Spark Connect server lacks a package. Install it there and on its"
            f" executors: pip install 'streambroker[spark]'. ({cause(error)})"
        ) from error
    return str(row["word"])


def read_word(batches: Iterator[pa.RecordBatch], port: int) -> Iterator[pa.RecordBatch]:
    """Read what a port of this machine's loopback address sends; nothing for port 0."""
    for _ in batches:
        word = b""
        if port:
            try:
                with socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS) as connection:
                    word = connection.makefile("rb").read()
            except OSError:
                pass
        yield pa.RecordBatch.from_pydict({"word": [word.decode(errors="replace")]})
