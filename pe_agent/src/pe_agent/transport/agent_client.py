"""Flight client of an agent: JSON actions, rows in, rows out.

The driver, Spark's Python workers and other agents use it. Connections are cached per process and
address, because workers are reused and opening one costs a millisecond.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.flight as flight

from pe_agent.transport import agent_tls
from pe_agent.transport import broker_trust as tls
from pe_agent.transport.agent_tls import AgentTrust
from pe_agent.transport.exit_guard import guard
from pe_agent.transport.flight_errors import METADATA_BYTES, AgentUnreachableError, from_flight
from pe_agent.transport.messages import BlockMetadata
from streambroker_core.wire.agent_rpc.codec import R, Request, decode_response, to_json

OPTIONS: list[tuple[str, int]] = [
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_reconnect_backoff_ms", 500),
    # A frozen agent or lost node answers no ping; this ends sends in progress, too.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 30_000),
    # A refusal is sent as metadata; for 400 columns it exceeds gRPC's default limit.
    ("grpc.max_metadata_size", METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", METADATA_BYTES),
]

AUTHORIZATION = "authorization"
TOKEN_VARIABLE = "STREAMBROKER_AGENT_TOKEN"  # noqa: S105 - a name
FORMER_TOKEN_VARIABLE = "STREAMBROKER_FORMER_AGENT_TOKEN"  # noqa: S105 - a name
"""For an agent that is started again: the token that its queries have."""

STALL_SECONDS = 60.0

_TlsMaterial: TypeAlias = "tuple[bytes | None, tuple[bytes, bytes] | None]"
"""Trusted certificates, and own chain and key of a connection."""

IDLE_SECONDS = 600.0
"""Time after which an unused connection is dropped: agents move to other addresses."""


@dataclass(slots=True)
class _CachedClient:
    tls_material: _TlsMaterial
    client: flight.FlightClient
    last_used: float


_clients: dict[tuple[int, str], _CachedClient] = {}
_trust: AgentTrust | None = None


def bearer(token: str) -> str:
    """Return the ``Authorization`` value for an agent's token."""
    return f"Bearer {token}"


def trust_in_process(trust: AgentTrust) -> None:
    """Set the default trust settings of all clients in this process."""
    global _trust
    _trust = trust


def _process_trust() -> AgentTrust:
    global _trust
    if _trust is None:
        _trust = agent_tls.resolve_agent_trust(None)
    return _trust


def _client(location: str, trust: AgentTrust) -> flight.FlightClient:
    anchors = trust.anchors_for(location)
    tls_material = (anchors, None if anchors is None else trust.pair())
    key, now = (os.getpid(), location), time.monotonic()
    cached = _clients.get(key)
    if cached is None or cached.tls_material != tls_material:
        _drop_idle(now)
        cached = _clients[key] = _CachedClient(tls_material, _connect(location, *tls_material), now)
    cached.last_used = now
    return cached.client


def _drop_idle(now: float) -> None:
    """Drop the idle connections of this process.

    A call in progress keeps its connection open. Connections of a parent process are left alone:
    they cannot be closed here.
    """
    for key, cached in _clients.copy().items():
        if key[0] == os.getpid() and now > cached.last_used + IDLE_SECONDS:
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
    """Cancels stalled reads: gRPC itself never gives up on a frozen peer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_progress: dict[int, tuple[float, float, Callable[[], None]]] = {}
        self._running = False

    def watch(self, read: int, seconds: float, cancel: Callable[[], None]) -> None:
        """Record progress of a read; call ``cancel`` after ``seconds`` without progress."""
        with self._lock:
            self._last_progress[read] = (time.monotonic(), seconds, cancel)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, daemon=True, name="stalled reads").start()

    def forget(self, read: int) -> None:
        """Stop watching a read that has ended."""
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
                    (r, c) for r, (at, limit, c) in self._last_progress.items() if now - at > limit
                ]
                for read, _ in late:
                    del self._last_progress[read]
            for _, cancel in late:
                cancel()


_stalls = _StallWatchdog()


class AgentClient:
    """One agent, by its address ``grpc+tcp://host:port`` or ``grpc+tls://host:port``.

    ``token`` is the agent's own; it is required for all but other agents' requests. ``trust``
    defaults to that of this process.
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
        """Perform an action and return its response.

        Raises:
            AgentUnreachableError: no response within ``timeout`` seconds.
            AgentRefusedError: the agent refuses, with its reason.
        """
        if self.token:
            body["token"] = self.token  # for an agent of the previous release
        try:
            with guard.call():
                results = self._client().do_action(
                    flight.Action(action, json.dumps(body).encode()), self._options(timeout)
                )
                response: dict[str, Any] = json.loads(next(iter(results)).body.to_pybytes())
        except (flight.FlightError, pa.ArrowException, OSError, StopIteration) as error:
            raise from_flight(error, self.location) from None
        return response

    def put(
        self, command: dict[str, Any], schema: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> dict[str, Any]:
        """Send rows; return the agent's response once they are durable.

        Raises:
            AgentUnreachableError, AgentRefusedError: see :meth:`call`.
        """
        descriptor = flight.FlightDescriptor.for_command(
            json.dumps({**command, "token": self.token}).encode()
        )
        try:
            with guard.call():
                writer, reader = self._client().do_put(descriptor, schema, self._options())
                try:
                    for batch in batches:
                        writer.write_batch(batch)
                    writer.done_writing()
                    response = reader.read()
                finally:
                    writer.close()
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise from_flight(error, self.location) from None
        if response is None:
            raise AgentUnreachableError(f"the agent at {self.location} aborted the stage")
        result: dict[str, Any] = json.loads(response.to_pybytes())
        return result

    def get(
        self, ticket: Mapping[str, Any], *, stall: float = STALL_SECONDS
    ) -> Iterator[tuple[pa.RecordBatch, BlockMetadata]]:
        """Yield ``(batch, metadata)`` of a read.

        After ``stall`` seconds without a batch the agent counts as unreachable.

        Raises:
            AgentUnreachableError, AgentRefusedError: see :meth:`call`; also in the middle.
        """
        try:
            with guard.call():
                reader = self._client().do_get(flight.Ticket(json.dumps(ticket).encode()))
            try:
                while True:
                    _stalls.watch(id(reader), stall, reader.cancel)
                    with guard.call():
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


class Caller(Protocol):
    """Performs actions of an agent, as `AgentClient` does."""

    def call(self, action: str, *, timeout: float = ..., **body: Any) -> dict[str, Any]:
        """Perform an action and return its response."""


def send(caller: Caller, request: Request[R], *, timeout: float | None = None) -> R:
    """Send a request and return its response; raise as :meth:`AgentClient.call` does."""
    limit: dict[str, float] = {} if timeout is None else {"timeout": timeout}
    return decode_response(type(request), caller.call(request.action, **limit, **to_json(request)))
