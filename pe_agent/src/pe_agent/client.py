"""Calls to an agent over Flight: small JSON actions, rows in, rows out.

Used by the driver, by Spark's Python workers and by other agents. A client is kept per process
and address, because workers are reused and opening a connection costs a millisecond.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from pe_agent.flight_errors import AgentUnreachableError, from_flight

OPTIONS: list[tuple[str, int]] = [
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_reconnect_backoff_ms", 500),
]

_clients: dict[tuple[int, str], flight.FlightClient] = {}


def _client(location: str) -> flight.FlightClient:
    key = (os.getpid(), location)
    if key not in _clients:
        _clients[key] = flight.FlightClient(location, generic_options=OPTIONS)
    return _clients[key]


class AgentClient:
    """One agent, by its address.

    Args:
        location: ``grpc+tcp://host:port``.
        token: the agent's own token; needed for everything but what other agents may ask.
    """

    def __init__(self, location: str, token: str = "") -> None:
        self.location = location
        self.token = token

    def call(self, action: str, *, timeout: float = 10.0, **body: Any) -> dict[str, Any]:
        """Perform an action and return its answer.

        Raises:
            AgentUnreachableError: nobody answers in ``timeout`` seconds.
            AgentRefusedError: the agent says no, and why.
        """
        body["token"] = self.token
        try:
            results = _client(self.location).do_action(
                flight.Action(action, json.dumps(body).encode()),
                flight.FlightCallOptions(timeout=timeout),
            )
            answer: dict[str, Any] = json.loads(next(iter(results)).body.to_pybytes())
        except (flight.FlightError, pa.ArrowException, OSError, StopIteration) as error:
            raise from_flight(error, self.location) from None
        return answer

    def put(
        self, command: dict[str, Any], schema: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> dict[str, Any]:
        """Send rows; returns what the agent answers once they are durable.

        Raises:
            AgentUnreachableError, AgentRefusedError: as :meth:`call`.
        """
        descriptor = flight.FlightDescriptor.for_command(
            json.dumps({**command, "token": self.token}).encode()
        )
        try:
            writer, reader = _client(self.location).do_put(descriptor, schema)
            try:
                for batch in batches:
                    writer.write_batch(batch)
                writer.done_writing()
                answer = reader.read()
            finally:
                writer.close()
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise from_flight(error, self.location) from None
        if answer is None:
            raise AgentUnreachableError(f"the agent at {self.location} broke off the stage")
        result: dict[str, Any] = json.loads(answer.to_pybytes())
        return result

    def get(self, ticket: dict[str, Any]) -> Iterator[tuple[pa.RecordBatch, dict[str, Any]]]:
        """Yield ``(batch, metadata)`` of a read.

        Raises:
            AgentUnreachableError, AgentRefusedError: as :meth:`call`; also in the middle.
        """
        try:
            reader = _client(self.location).do_get(flight.Ticket(json.dumps(ticket).encode()))
            for chunk in reader:
                meta = (
                    {}
                    if chunk.app_metadata is None
                    else json.loads(chunk.app_metadata.to_pybytes())
                )
                yield chunk.data, meta
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise from_flight(error, self.location) from None
