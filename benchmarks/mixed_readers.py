"""Readers of an export without Spark, good and bad ones, in a process of their own.

``python -m mixed_readers {"location": …, "token": …, "ports": […], "kind": …, "pace": rows/s}``
writes ``ready`` once each reader has its place in the stream. For a line with a number it reads for
so many seconds, answers with the rows that came, and ends.

* ``good`` reads all as fast as it can;
* ``slow`` takes no more than its pace of each slice, the rest of which is under way meanwhile;
* ``sparse`` is a good one of that pace: it reads an epoch at once and passes those behind it;
* ``silent`` has its rows sent and takes none of them;
* ``fleeting`` reads as a good one does, and breaks off its connection each second;
* ``nobody`` is a good one of the rate of ``silent``: it leaves.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow.flight as flight
from processes import ANSWER, Reader

from pe_agent.transport.agent_client import OPTIONS, AgentClient

READY = "ready"
ONE_EPOCH = 1
ALL = 1 << 50
EACH = 1.0
"""Seconds after which the fleeting one breaks off."""


class Mixed:
    """One reader of one import."""

    def __init__(self, plan: dict[str, Any], port: str) -> None:
        self._plan, self._port, self._kind = plan, port, plan["kind"]
        self._rows = 0
        self._breaks = self._began = 0.0
        self._connection: flight.FlightClient | None = None
        self._reader = Reader(AgentClient(plan["location"], plan["token"]))
        self._offset = self._reader.plan(port, None, ONE_EPOCH)

    def run(self, seconds: float) -> int:
        """Read for so long; return the rows that came."""
        self._began = time.monotonic()
        deadline, self._breaks = self._began + seconds, self._began + EACH
        if self._kind != "nobody":
            while time.monotonic() < deadline:
                self._turn(deadline)
        self._reader.leave(self._offset)
        return self._rows

    def _turn(self, deadline: float) -> None:
        """Read an epoch, in the way of the kind."""
        end = self._reader.next(self._port, self._offset, ONE_EPOCH)
        if end is None:
            return
        for ticket in self._reader.tickets(self._port, self._offset, end):
            done: int | None = 0
            while done is not None:
                done = self._slice(ticket, done, deadline)
        self._offset = end
        while self._kind == "sparse" and time.monotonic() < min(self._due(), deadline):
            self._offset = self._reader.next(self._port, self._offset, ALL) or self._offset

    def _due(self) -> float:
        """Return when it has been so long that its rows are those of its pace."""
        return self._began + self._rows / float(self._plan["pace"])

    def _slice(self, ticket: dict[str, Any], skip: int, deadline: float) -> int | None:
        """Read a slice from a block on; return where to go on, None where it is done."""
        if self._connection is None:
            self._connection = flight.FlightClient(ticket["location"], generic_options=OPTIONS)
        asked = flight.Ticket(json.dumps({**ticket, "skip": skip}).encode())
        reader = self._connection.do_get(asked)
        if self._kind == "silent":
            time.sleep(max(0.0, deadline - time.monotonic()))
            reader.cancel()
            return None
        for chunk in reader:
            skip += 1
            self._rows += chunk.data.num_rows
            now = time.monotonic()
            if now > deadline:
                reader.cancel()
                return None
            if self._kind == "slow":
                time.sleep(max(0.0, min(self._due(), deadline) - now))
            if self._kind == "fleeting" and now > self._breaks:
                self._breaks = now + EACH
                reader.cancel()
                self._connection.close()
                self._connection = None
                return skip
        return None


def main() -> None:
    """Read once."""
    plan = json.loads(sys.argv[1])
    with ThreadPoolExecutor(len(plan["ports"])) as pool:
        readers = list(pool.map(lambda port: Mixed(plan, port), plan["ports"]))
        sys.stdout.write(f"{READY}\n")
        sys.stdout.flush()
        seconds = float(sys.stdin.readline())
        came = list(pool.map(lambda reader: reader.run(seconds), readers))
    sys.stdout.write(f"{ANSWER}{json.dumps(came)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
