"""What a Spark Connect server that cannot reach the agent is refused with; no Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pe_agent.job.agent.server_check import check_server
from pe_agent.job.arguments import ArgumentError

Function = Callable[[Iterable[Any]], Iterable[pa.RecordBatch]]


class Server:
    """A session whose task runs here, ``elsewhere`` without this machine's ports, or fails."""

    def __init__(
        self, master: str = "local[2]", *, elsewhere: bool = False, error: str = ""
    ) -> None:
        self._master, self._elsewhere, self._error = master, elsewhere, error
        self.conf = {"spark.master": master}
        self._rows: list[dict[str, Any]] = []

    def range(self, *_: int) -> Server:
        return self

    def mapInArrow(self, function: Function, _: str) -> Server:  # noqa: N802 - Spark's name
        if self._error:
            raise PySparkException(self._error)
        (batch,) = function([None])
        self._rows = [{"word": ""}] if self._elsewhere else batch.to_pylist()
        return self

    def collect(self) -> list[dict[str, Any]]:
        return self._rows


def check(server: Server, *, loopback: bool = True) -> None:
    check_server(cast(SparkSession, server), loopback=loopback)


def test_a_server_on_this_machine_is_accepted_and_the_check_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    check(Server())
    started = set(threading.enumerate()) - before
    for thread in started:
        thread.join(10)
    assert not [thread for thread in started if thread.is_alive()]


@pytest.mark.parametrize("server", [Server(elsewhere=True), Server("spark://127.0.0.1:7077")])
def test_other_machines_need_an_agent_that_they_reach(server: Server) -> None:
    with pytest.raises(ArgumentError, match="agent=AgentOptions"):
        check(server)
    check(server, loopback=False)


def test_a_server_without_the_package_is_named_with_the_remedy() -> None:
    with pytest.raises(ArgumentError, match="pip install 'streambroker"):
        check(Server(error="ModuleNotFoundError: No module named 'pe_agent'"))


def test_another_error_of_the_server_stays_what_it_is() -> None:
    with pytest.raises(PySparkException, match="no core is free"):
        check(Server(error="no core is free"), loopback=False)
