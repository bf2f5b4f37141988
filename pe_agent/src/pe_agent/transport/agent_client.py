"""Calls to an agent over Flight: small JSON actions, rows in, rows out.

Used by the driver, by Spark's Python workers and by other agents. A client is kept per process
and address while it is used, because workers are reused and opening a connection costs a
millisecond.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.flight as flight

from pe_agent.transport import agent_tls
from pe_agent.transport import broker_trust as tls
from pe_agent.transport.agent_tls import AgentTrust
from pe_agent.transport.flight_errors import METADATA_BYTES, AgentUnreachableError, from_flight

OPTIONS: list[tuple[str, int]] = [
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_reconnect_backoff_ms", 500),
    # A frozen agent or a lost node answers no ping: rows that are being sent come to an end, too.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 30_000),
    # The reason of a refusal comes as metadata; of 400 columns it is larger than what gRPC takes.
    ("grpc.max_metadata_size", METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", METADATA_BYTES),
]

AUTHORIZATION = "authorization"

STALL_SECONDS = 60.0

_TlsMaterial: TypeAlias = "tuple[bytes | None, tuple[bytes, bytes] | None]"
"""What a connection is made with: the certificates to trust, and the own chain and key."""

IDLE_SECONDS = 600.0
"""For how long a connection that nobody uses is kept: agents move, and come to other addresses."""


@dataclass(slots=True)
class _CachedClient:
    """A client that is kept: what it was made with, and when it was used last."""

    tls_material: _TlsMaterial
    client: flight.FlightClient
    last_used: float


_clients: dict[tuple[int, str], _CachedClient] = {}
_trust: AgentTrust | None = None


def bearer(token: str) -> str:
    """Return the value of the header that has an agent's token."""
    return f"Bearer {token}"


def trust_in_process(trust: AgentTrust) -> None:
    """Say whom all clients of this process trust that are not told otherwise."""
    global _trust
    _trust = trust


def _process_trust() -> AgentTrust:
    global _trust
    if _trust is None:
        _trust = agent_tls.resolve_agent_trust(None)
    return _trust


def _client(location: str, trust: AgentTrust) -> flight.FlightClient:
    anchors = trust.anchors_for(location)
    with_ = (anchors, None if anchors is None else trust.pair())
    key, now = (os.getpid(), location), time.monotonic()
    found = _clients.get(key)
    if found is None or found.tls_material != with_:
        _drop_idle(now)
        found = _clients[key] = _CachedClient(with_, _connect(location, *with_), now)
    found.last_used = now
    return found.client


def _drop_idle(now: float) -> None:
    """Forget the connections of this process that nobody has used for long.

    A call that is under way has its own hold on one. Those of a parent process are left alone:
    they cannot be ended here.
    """
    for key, kept in _clients.copy().items():
        if key[0] == os.getpid() and now > kept.last_used + IDLE_SECONDS:
            _clients.pop(key, None)


def _connect(
    location: str, anchors: bytes | None, certificate: tuple[bytes, bytes] | None
) -> flight.FlightClient:
    if anchors is None:
        return flight.FlightClient(location, generic_options=OPTIONS)
    chain, key = certificate or (None, None)
    return flight.FlightClient(
        location,
        tls_root_certs=anchors,
        cert_chain=chain,
        private_key=key,
        override_hostname=tls.AGENT_NAME,
        generic_options=OPTIONS,
    )


class _StallWatchdog:
    """Ends reads that bring nothing for too long: gRPC itself never gives up on a frozen peer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_progress: dict[int, tuple[float, float, Callable[[], None]]] = {}
        self._running = False

    def watch(self, read: int, seconds: float, cancel: Callable[[], None]) -> None:
        """Note that a read has moved on; ``cancel`` ends it after ``seconds`` of silence."""
        with self._lock:
            self._last_progress[read] = (time.monotonic(), seconds, cancel)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, daemon=True, name="stalled reads").start()

    def forget(self, read: int) -> None:
        """The read has ended."""
        with self._lock:
            self._last_progress.pop(read, None)

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(0.5):
            with self._lock:
                if not self._last_progress:
                    self._running = False
                    return
                now = time.monotonic()
                late = [
                    (r, c) for r, (at, most, c) in self._last_progress.items() if now - at > most
                ]
                for read, _ in late:
                    del self._last_progress[read]
            for _, cancel in late:
                cancel()


_stalls = _StallWatchdog()


class AgentClient:
    """One agent, by its address.

    Args:
        location: ``grpc+tcp://host:port``, or ``grpc+tls://host:port``.
        token: the agent's own token; needed for everything but what other agents may ask.
        trust: whose certificates hold; default what holds in this process.
    """

    def __init__(self, location: str, token: str = "", trust: AgentTrust | None = None) -> None:
        self.location = location
        self.token = token
        self.trust = trust

    def _client(self) -> flight.FlightClient:
        return _client(self.location, self.trust or _process_trust())

    def _options(self, timeout: float | None = None) -> flight.FlightCallOptions:
        headers = [(AUTHORIZATION.encode(), bearer(self.token).encode())] if self.token else []
        return flight.FlightCallOptions(timeout=timeout, headers=headers)

    def call(self, action: str, *, timeout: float = 10.0, **body: Any) -> dict[str, Any]:
        """Perform an action and return its answer.

        Raises:
            AgentUnreachableError: nobody answers in ``timeout`` seconds.
            AgentRefusedError: the agent says no, and why.
        """
        if self.token:
            body["token"] = self.token  # for an agent of the release before
        try:
            results = self._client().do_action(
                flight.Action(action, json.dumps(body).encode()), self._options(timeout)
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
            writer, reader = self._client().do_put(descriptor, schema, self._options())
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

    def get(
        self, ticket: dict[str, Any], *, stall: float = STALL_SECONDS
    ) -> Iterator[tuple[pa.RecordBatch, dict[str, Any]]]:
        """Yield ``(batch, metadata)`` of a read.

        Args:
            ticket: what to read.
            stall: seconds without any batch after which the agent counts as unreachable.

        Raises:
            AgentUnreachableError, AgentRefusedError: as :meth:`call`; also in the middle.
        """
        try:
            reader = self._client().do_get(flight.Ticket(json.dumps(ticket).encode()))
            try:
                while True:
                    _stalls.watch(id(reader), stall, reader.cancel)
                    chunk = next(reader, None)
                    _stalls.forget(id(reader))
                    if chunk is None:
                        break
                    meta = chunk.app_metadata
                    yield chunk.data, {} if meta is None else json.loads(meta.to_pybytes())
            finally:
                _stalls.forget(id(reader))
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise from_flight(error, self.location) from None
