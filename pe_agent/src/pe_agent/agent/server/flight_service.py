"""Agent's Flight service: decodes requests, calls the agent, encodes responses.

Actions of other agents (``peer.*``) need a capability or a plan, and reads need a grant. All other
actions need the agent's own token, which is in its data directory.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from pe_agent.agent.actions import job_actions
from pe_agent.agent.agent import Agent
from pe_agent.agent.exports.stream.block_reader import (
    BlockReader,
    LatestTimeRequest,
    NotPlannedError,
    ReadRequest,
    SentBlock,
)
from pe_agent.agent.reports.log_limiter import RateLimitedLog
from pe_agent.agent.server.caller_checks import (
    CALLER,
    MAX_BODY,
    BodyInvalidError,
    CallerFactory,
    TokenWrongError,
    equal_in_constant_time,
    max_body_for,
    perform,
)
from pe_agent.agent.server.listener import CertificateChain
from pe_agent.agent.server.long_poll import WatchService
from pe_agent.agent.server.peer_access import PeerAccess
from pe_agent.agent.server.peer_plans import PlanService
from pe_agent.transport.flight_errors import to_flight
from streambroker_core.control.runtime.control_rows import schema as control_schema
from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.offset import column_names
from streambroker_core.wire.agent_rpc.peer import (
    ObjectRanges,
    PeerLeave,
    PeerObjects,
    PeerPlan,
    PeerPlans,
    PeerReplan,
    PeerSnapshot,
    PeerWatch,
)

log = logging.getLogger("pe_agent")


class AgentService(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Flight service of one agent. Handlers run in Flight's own threads."""

    def __init__(
        self,
        location: str,
        agent: Agent,
        token: str,
        chain: CertificateChain | None = None,
    ) -> None:
        self._agent = agent
        self._token = token
        self._reader = BlockReader()
        self._bad_request_log = RateLimitedLog()
        self._actions = job_actions(agent)
        access = PeerAccess(agent)
        watching, plans = WatchService(agent, access), PlanService(agent, access)
        self._actions.on(PeerPlan, plans.plan)
        self._actions.on(PeerPlans, plans.plan_all)
        self._actions.on(PeerReplan, plans.register)
        self._actions.on(PeerSnapshot, plans.snapshot)
        self._actions.on(PeerWatch, watching.watch)
        self._actions.on(PeerLeave, watching.leave)
        self._actions.on(PeerObjects, self._find_objects)
        settings = {} if chain is None else chain.server_options()
        # At the end: this listens, and a restarted agent has callers that wait for it.
        super().__init__(location, middleware={CALLER: CallerFactory(token)}, **settings)

    # -- actions -----------------------------------------------------------------------------

    def do_action(
        self, context: flight.ServerCallContext, action: flight.Action
    ) -> Iterator[flight.Result]:
        """Perform one action; its response is one JSON object."""
        has_token = False
        try:
            if action.type not in self._actions:
                raise BodyInvalidError(f"there is no action {action.type!r}")
            body = self._parse_body(context.get_middleware(CALLER).has_token, action)
            has_token = not action.type.startswith("peer.")
            response = json.dumps(perform(self._actions, action.type, body)).encode()
        except Exception as error:
            raise self._to_flight_error(error, action.type, has_token=has_token) from None
        return iter([flight.Result(pa.py_buffer(response))])

    def _to_flight_error(
        self, error: Exception, request_name: str, *, has_token: bool = False
    ) -> flight.FlightError:
        """Translate an error; only callers with the token cause tracebacks: others could flood."""
        if self._agent.notifier.closed:
            # A consequence of closed files; the caller should ask the next agent of the directory.
            log.info("request ends with the agent", extra={"request": request_name}, exc_info=error)
            return flight.FlightUnavailableError("the agent is stopping")
        if isinstance(error, StreambrokerError):
            return to_flight(error)
        if has_token:
            log.error("request %r failed", request_name, exc_info=error)
        else:
            self._bad_request_log.warning(
                f"request {request_name[:64]!r} failed: {error!r:.200} at {_error_location(error)}"
            )
        if isinstance(error, (KeyError, TypeError, ValueError, AttributeError, IndexError)):
            error = BodyInvalidError(
                f"request {request_name!r} lacks a field or has a wrong one:"
                f" {type(error).__name__}: {error}"
            )
        return to_flight(error)

    def _parse_body(self, has_token: bool, action: flight.Action) -> dict[str, Any]:
        """Return the request of an action; its size is checked before it is copied and parsed.

        Callers of the previous release send the token in the request instead of the header.

        Raises:
            BodyInvalidError: the request is too large, or no JSON.
            TokenWrongError: only the own job may call the action, and the token is missing.
        """
        size, limit = action.body.size, max_body_for(action.type, has_token=has_token)
        peer = action.type.startswith("peer.")
        if size > limit and not (has_token or peer):
            raise TokenWrongError
        if size > limit:
            raise BodyInvalidError(f"the request has {size} bytes; at most {limit} are read")
        body = _parse_json(action.body.to_pybytes())
        if not (
            has_token or peer or equal_in_constant_time(str(body.get("token", "")), self._token)
        ):
            raise TokenWrongError
        return body

    # -- rows in -----------------------------------------------------------------------------

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        """Stage one task's rows; respond when they are durable."""
        parsed = False
        try:
            command = _parse_json(_check_size(descriptor.command or b""))
            parsed = True
            summary = self._stage(command, reader)
        except Exception as error:
            raise self._to_flight_error(error, "put", has_token=parsed) from None
        writer.write(pa.py_buffer(json.dumps(summary).encode()))

    def _stage(
        self, command: dict[str, Any], reader: flight.MetadataRecordBatchReader
    ) -> dict[str, Any]:
        return self._agent.exports.get(str(command["export"])).publisher.stage(
            query=command["query"],
            run=command["run"],
            batch=command["batch"],
            ddl=command["ddl"],
            schema=reader.schema,
            batches=_iterate_batches(reader),
        )

    # -- rows out ----------------------------------------------------------------------------

    def do_get(
        self, context: flight.ServerCallContext, ticket: flight.Ticket
    ) -> flight.FlightDataStream:
        """Send the blocks of one slice, one batch per block, even if no row passes."""
        try:
            request = _parse_json(_check_size(ticket.ticket))
            read = _parse_ticket(request)
            export = self._agent.resolve_ticket(request, read)
            stream = export.streams.get(read.stream)
            if stream is None:
                raise NotPlannedError(f"stream {read.stream} is not in the log of this agent")
            visible = export.policies.show(stream, read.reader)
            later = replace(read, pieces=_skip_blocks(read.pieces, int(request.get("skip", 0))))
            if request.get("control"):
                tuples = self._trace(request, self._reader.read_control(export, later))
                return flight.GeneratorStream(control_schema(), self._send(tuples))
            schema = self._reader.schema_for(visible, read)
        except Exception as error:
            raise self._to_flight_error(error, "get") from None
        blocks = self._reader.read_batches(export, later, schema, visible)
        import_ = self._agent.import_of(request, read.reader)
        sent = self._agent.throttle.delay(self._trace(request, blocks), read.reader, import_)
        return flight.GeneratorStream(
            self._reader.sent_schema(schema, read, visible), self._send(sent)
        )

    def _trace(self, ticket: Mapping[str, Any], blocks: Iterable[SentBlock]) -> Iterable[SentBlock]:
        tracing = self._agent.tracing
        return blocks if tracing is None else tracing.read(ticket, blocks)

    def _find_objects(self, request: PeerObjects) -> ObjectRanges:
        """Return where a task reads its blocks itself; nowhere if this agent has to keep rates."""
        read = _parse_ticket(request.ticket)
        export = self._agent.resolve_ticket(request.ticket, read)
        if self._agent.throttle.is_on:
            return ObjectRanges()
        later = replace(read, pieces=_skip_blocks(read.pieces, request.skip))
        found = self._reader.find_objects(export, later)
        if found is None:
            return ObjectRanges()
        list(self._trace(request.ticket, ()))  # the task reads itself: the span shows when it began
        ranges, schema = found
        return ObjectRanges(ranges=ranges, arrow=base64.b64encode(schema.serialize()).decode())

    def _send(self, blocks: Iterable[SentBlock]) -> Iterator[tuple[pa.RecordBatch, pa.Buffer]]:
        try:
            for batch, metadata in blocks:
                yield batch, pa.py_buffer(json.dumps(metadata).encode())
        except Exception as error:
            raise self._to_flight_error(error, "get") from None


def _parse_ticket(request: Mapping[str, Any]) -> ReadRequest:
    latest = request.get("latest")
    if latest is not None:
        latest = LatestTimeRequest(column=latest["column"], filter=latest["filter"])
    return ReadRequest(
        reader=str(request["reader"]),
        stream=str(request["stream"]),
        pieces=tuple((int(p[0]), int(p[1]), int(p[2])) for p in request["pieces"]),
        filter=request["filter"],
        columns=column_names(request["columns"]),
        query=None if request.get("query") is None else str(request["query"]),
        numbered=bool(request.get("numbered")),
        latest=latest,
    )


def _error_location(error: Exception) -> str:
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return "?" if at is None else f"{Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}"


def _check_size(data: bytes) -> bytes:
    if len(data) > MAX_BODY:
        raise BodyInvalidError(f"the request has {len(data)} bytes; at most {MAX_BODY} are read")
    return data


def _parse_json(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BodyInvalidError(f"the request is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise BodyInvalidError("the request is not a JSON object")
    return body


def _iterate_batches(reader: flight.MetadataRecordBatchReader) -> Iterator[pa.RecordBatch]:
    for chunk in reader:
        yield chunk.data


def _skip_blocks(
    pieces: tuple[tuple[int, int, int], ...], skip: int
) -> tuple[tuple[int, int, int], ...]:
    remaining: list[tuple[int, int, int]] = []
    for epoch, first, last in pieces:
        skipped = min(skip, last - first)
        skip -= skipped
        if first + skipped < last:
            remaining.append((epoch, first + skipped, last))
    return tuple(remaining)
