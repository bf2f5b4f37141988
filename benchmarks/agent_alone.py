"""The agent without Spark: rows in and published, planned and out, against a bare Flight server."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import flight_peer
import pyarrow as pa
import pyarrow.flight as flight
import rows
from measure import Figures, Settings, turns
from processes import Agent, Broker, Child

from pe_agent.transport.agent_client import OPTIONS

PURPOSE = "agent alone (DoPut + publish, plan + DoGet) against a bare Flight server"
IN = ("agent in", "file in", "memory in")
OUT = ("agent out", "memory out")


class Bare(Child):
    """A Flight server without an agent, and its client with the agent client's options."""

    def __init__(self, settings: Settings) -> None:
        place = settings.place
        command = [sys.executable, "-m", "flight_peer", str(place / "peer")]
        (place / "peer").mkdir()
        super().__init__(command, place / "flight_peer.log")
        self._client = flight.FlightClient(self.line(flight_peer.LISTENS), generic_options=OPTIONS)

    def put(self, where: str, batches: Iterable[pa.RecordBatch]) -> None:
        """Send rows and wait for the answer."""
        writer, reader = self._client.do_put(
            flight.FlightDescriptor.for_command(where), rows.SCHEMA
        )
        for batch in batches:
            writer.write_batch(batch)
        writer.done_writing()
        reader.read()
        writer.close()

    def get(self) -> Iterable[pa.RecordBatch]:
        """Receive the rows that are in memory."""
        for chunk in self._client.do_get(flight.Ticket(b"")):
            yield chunk.data


class Bench:
    """Two agents with a route, a bare server, and rows to send."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.broker = Broker(settings.place)
        self.feed = Agent(settings.place, "feed", self.broker.url)
        self.taker = Agent(settings.place, "taker", self.broker.url)
        self.bare = Bare(settings)
        self.feed.export("out", max_bytes=rows.BUFFER)
        self.taker.import_("in", subscription='kind == "out"', filter=None)
        self.taker.await_route("in")
        self.batches = rows.batches(settings.rows)
        self.published = 0
        self.offset: dict[str, Any] | None = None

    def end(self) -> None:
        """End all processes."""
        for process in (self.bare, self.taker, self.feed, self.broker):
            process.end()

    def warm_up(self) -> None:
        """Open the route and fill the logs to what they keep."""
        self.agent_in()
        self.offset = self.taker.plan("in", None, 1)
        for _ in range(2 * rows.KEPT):
            self.agent_in()
            self.agent_out()
            self.bare.put("file", self.batches)
            self.bare.put("memory", self.batches)

    def agent_in(self) -> None:
        """Publish an epoch."""
        self.feed.publish("out", self.published, [self.batches])
        self.published += 1

    def agent_out(self) -> None:
        """Plan the next epoch and read it."""
        end = self.taker.plan("in", self.offset, 1)
        _count(self.taker.read("in", self.offset, end), self.settings.rows)
        self.offset = end

    def bare_out(self) -> None:
        """Read as many rows from memory."""
        _count(self.bare.get(), self.settings.rows)


def _count(batches: Iterable[pa.RecordBatch], wanted: int) -> None:
    found = sum(batch.num_rows for batch in batches)
    if found != wanted:
        raise RuntimeError(f"{found} rows came, not {wanted}")


def run(settings: Settings) -> Figures:
    """Measure."""
    bench, figures = Bench(settings), Figures()
    ways: dict[str, Callable[[], None]] = {
        "agent in": bench.agent_in,
        "file in": lambda: bench.bare.put("file", bench.batches),
        "memory in": lambda: bench.bare.put("memory", bench.batches),
        "agent out": bench.agent_out,
        "memory out": bench.bare_out,
    }
    try:
        bench.warm_up()
        for round_ in range(1, settings.rounds + 1):
            figures.yardstick()
            for name in (*turns(IN, round_), *turns(OUT, round_)):
                _add(figures, name, settings.rows / _timed(ways[name]))
    finally:
        bench.end()
    figures.ratio("in: agent / Flight into a file", "agent in rows", "file in rows")
    figures.ratio("in: agent / Flight into memory", "agent in rows", "memory in rows")
    figures.ratio("out: agent / Flight from memory", "agent out rows", "memory out rows")
    figures.note(
        "one client, one stream; batches of 10,000 rows; agent in: admission, DoPut into"
        " the log with checksums and fdatasync, publish; agent out: plan at the"
        " importer's and the exporter's agent, then DoGet slice by slice."
    )
    figures.note(
        "file in: bare Flight, each batch's IPC bytes into a file, fdatasync in the"
        " background per 16 MiB and at the end; memory in and out: bare Flight."
    )
    return figures


def _timed(way: Callable[[], None]) -> float:
    began = time.perf_counter()
    way()
    return time.perf_counter() - began


def _add(figures: Figures, name: str, rate: float) -> None:
    figures.add(f"{name} rows", rate / 1e6, "M rows/s")
    figures.add(f"{name} MB", rows.megabytes(rate), "MB/s")
