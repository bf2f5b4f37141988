"""The agent's Flight service: requests in, one call to a host each, answers out.

Actions of other agents (``peer.*``) need a capability or a plan, and reads a grant of their plan;
all others need the agent's own token, which is in its data directory.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from pe_agent.agent.agent import Hosts
from pe_agent.agent.exports.stream.block_reader import (
    BlockReader,
    Latest,
    NotPlannedError,
    Read,
    Sent,
)
from pe_agent.agent.imports.peer_agents import plan_body
from pe_agent.agent.reports.log_limiter import Sparse
from pe_agent.agent.server.caller_checks import (
    CALLER,
    MAX_BODY,
    Callers,
    TokenWrongError,
    most_of,
    same,
)
from pe_agent.agent.server.listener import Shown
from pe_agent.agent.server.long_poll import Watching
from pe_agent.agent.server.plan_request import BodyInvalidError, read_ask, read_ranges, under
from pe_agent.agent.shards import read_grant as grants
from pe_agent.agent.shards.read_grant import Grant
from pe_agent.transport.flight_errors import to_flight
from streambroker_core.control.runtime.control_rows import schema as control_schema
from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.offset import names_of

log = logging.getLogger("pe_agent")


class AgentService(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Serves one agent. Handlers run in Flight's own threads."""

    def __init__(
        self,
        location: str,
        hosts: Hosts,
        token: str,
        shown: Shown | None = None,
    ) -> None:
        settings = {} if shown is None else shown.settings()
        super().__init__(location, middleware={CALLER: Callers(token)}, **settings)
        self._hosts = hosts
        self._token = token
        watching = Watching(hosts)
        self._reader = BlockReader()
        self._junk = Sparse()
        self._actions: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "peer.plan": self._plan,
            "peer.replan": self._replan,
            "peer.watch": watching.watch,
            "peer.leave": watching.leave,
            "peer.where": self._where,
            **hosts.actions,
        }

    # -- actions -----------------------------------------------------------------------------

    def do_action(
        self, context: flight.ServerCallContext, action: flight.Action
    ) -> Iterator[flight.Result]:
        """Perform one action; its answer is one JSON object."""
        own = False
        try:
            perform = self._actions.get(action.type)
            if perform is None:
                raise BodyInvalidError(f"there is no action {action.type!r}")
            body = self._body(context.get_middleware(CALLER).known, action)
            own = not action.type.startswith("peer.")
            answer = json.dumps(perform(body)).encode()
        except Exception as error:
            raise self._told(error, action.type, own=own) from None
        return iter([flight.Result(pa.py_buffer(answer))])

    def _told(self, error: Exception, what: str, *, own: bool = False) -> flight.FlightError:
        """Return what a caller is told of an error.

        Only for callers with the agent's token a trace is written: all others may send whatever
        they like, and as often.
        """
        if self._hosts.news.closed:
            # What it met is that files are closed; the next agent of this directory knows better.
            log.info("request ends with the agent", extra={"request": what}, exc_info=error)
            return flight.FlightUnavailableError("the agent ends")
        if isinstance(error, StreambrokerError):
            return to_flight(error)
        if own:
            log.error("request %r failed", what, exc_info=error)
        else:
            self._junk.warning(f"request {what[:64]!r} failed: {error!r:.200} at {_place(error)}")
        if isinstance(error, (KeyError, TypeError, ValueError, AttributeError, IndexError)):
            error = BodyInvalidError(
                f"request {what!r} lacks a field or has a wrong one: {type(error).__name__}:"
                f" {error}"
            )
        return to_flight(error)

    def _body(self, known: bool, action: flight.Action) -> dict[str, Any]:
        """Return the request of an action; it is copied and parsed only as far as its size may be.

        Args:
            known: the caller's header has the agent's token. A caller of the release before has it
                in the request.
            action: the action.

        Raises:
            BodyInvalidError: it is too large, or no JSON.
            TokenWrongError: it is not for other agents, and the caller does not show the token.
        """
        size, most = action.body.size, most_of(action.type, known=known)
        peer = action.type.startswith("peer.")
        if size > most and not (known or peer):
            raise TokenWrongError
        if size > most:
            raise BodyInvalidError(f"the request has {size} bytes; at most {most} are read")
        body = _json(action.body.to_pybytes())
        if not (known or peer or same(str(body.get("token", "")), self._token)):
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
        """Stage one task's rows; the answer comes when they are durable."""
        own = False
        try:
            command = _json(_bounded(descriptor.command or b""))
            own = True
            if "home" in command:
                summary = self._hosts.stages.stage(command, reader.schema, _batches(reader))
            else:
                summary = self._stage(command, reader)
        except Exception as error:
            raise self._told(error, "put", own=own) from None
        writer.write(pa.py_buffer(json.dumps(summary).encode()))

    def _stage(
        self, command: dict[str, Any], reader: flight.MetadataRecordBatchReader
    ) -> dict[str, Any]:
        return self._hosts.export(str(command["export"])).stage(
            query=command["query"],
            run=command["run"],
            batch=command["batch"],
            ddl=command["ddl"],
            schema=reader.schema,
            batches=_batches(reader),
        )

    # -- rows out ----------------------------------------------------------------------------

    def do_get(
        self, context: flight.ServerCallContext, ticket: flight.Ticket
    ) -> flight.FlightDataStream:
        """Send the blocks of one slice, each as one batch, also when no row passes."""
        try:
            request = _json(_bounded(ticket.ticket))
            read = Read(
                reader=str(request["reader"]),
                stream=str(request["stream"]),
                pieces=tuple((int(p[0]), int(p[1]), int(p[2])) for p in request["pieces"]),
                filter=request["filter"],
                columns=names_of(request["columns"]),
                query=None if request.get("query") is None else str(request["query"]),
                numbered=bool(request.get("numbered")),
                latest=_latest(request.get("latest")),
            )
            export = self._hosts.readable(request, read)
            stream = export.streams.get(read.stream)
            if stream is None:
                raise NotPlannedError(f"stream {read.stream} is not in the log of this agent")
            later = replace(read, pieces=_after(read.pieces, int(request.get("skip", 0))))
            if request.get("control"):
                return flight.GeneratorStream(
                    control_schema(), self._send(self._reader.control(export, later))
                )
            schema = self._reader.schema(stream, read)
        except Exception as error:
            raise self._told(error, "get") from None
        return flight.GeneratorStream(schema, self._send(self._reader.batches(export, later)))

    def _send(self, found: Iterable[Sent]) -> Iterator[tuple[pa.RecordBatch, pa.Buffer]]:
        try:
            for batch, told in found:
                yield batch, pa.py_buffer(json.dumps(told).encode())
        except Exception as error:
            raise self._told(error, "get") from None

    # -- what other agents ask ---------------------------------------------------------------

    def _plan(self, body: dict[str, Any]) -> dict[str, Any]:
        ask = read_ask(body, "peer.plan")
        asked = self._hosts.peer(body)
        export = asked.export
        self._hosts.check_filter(export, body["filter"])
        unfit = export.misfits(body["filter"], body["columns"], body.get("schema"))
        answer = export.plan(
            under(ask, asked.policy, granted=asked.granted),
            filter_=body["filter"],
            columns=body["columns"],
            unfit=unfit,
        )
        told = [why for stream, why in unfit.items() if export.holds_up(ask.reader, stream)]
        pass_ = self._hosts.pass_for(export.key, ask.import_, ask.reader)
        return {**plan_body(answer), "misfits": told, "pass": pass_}

    def _replan(self, body: dict[str, Any]) -> dict[str, Any]:
        ask, ranges = read_ask(body, "peer.replan"), read_ranges(body)
        asked = self._hosts.peer(body, planned=True)
        export = asked.export
        if not export.planned_under(str(body["reader"]), body["filter"]):
            self._hosts.check_filter(export, body["filter"])
        again = export.replan(
            under(ask, asked.policy, granted=asked.granted),
            ranges,
            filter_=body["filter"],
            columns=body["columns"],
        )
        reader = str(body["reader"])
        grant = Grant(
            export=export.key,
            reader=reader,
            ranges=ranges,
            filter=body["filter"],
            columns=names_of(body["columns"]),
        )
        return {
            "grant": grants.sign(self._token, grant),
            "pass": self._hosts.pass_for(export.key, ask.import_, reader),
            "blocks": again.blocks,
            "gone": again.gone,
            "order": again.order,
            "control": again.control,
            "agents": self._hosts.fellows.tickets(again.agents, grant),
        }

    def _where(self, body: dict[str, Any]) -> dict[str, Any]:
        """Tell a reader where a fellow is now that has blocks of its plan."""
        self._hosts.peer(body, planned=True)
        return {"location": self._hosts.fellows.where(str(body["pe"]))}


def _place(error: Exception) -> str:
    """Return where an error was raised, as file and line."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return "?" if at is None else f"{Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}"


def _latest(asked: dict[str, Any] | None) -> Latest | None:
    return None if asked is None else Latest(column=asked["column"], filter=asked["filter"])


def _bounded(data: bytes) -> bytes:
    if len(data) > MAX_BODY:
        raise BodyInvalidError(f"the request has {len(data)} bytes; at most {MAX_BODY} are read")
    return data


def _json(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BodyInvalidError(f"the request is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise BodyInvalidError("the request is not a JSON object")
    return body


def _batches(reader: flight.MetadataRecordBatchReader) -> Iterator[pa.RecordBatch]:
    for chunk in reader:
        yield chunk.data


def _after(pieces: tuple[tuple[int, int, int], ...], skip: int) -> tuple[tuple[int, int, int], ...]:
    """Return the pieces without their first ``skip`` blocks, which the caller has already."""
    left: list[tuple[int, int, int]] = []
    for epoch, first, last in pieces:
        passed = min(skip, last - first)
        skip -= passed
        if first + passed < last:
            left.append((epoch, first + passed, last))
    return tuple(left)
