"""Reading streams without Spark: an import whose rows come as Arrow batches."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pyarrow as pa

from pe_agent.client.agent_port import (
    RECONNECT_SECONDS,
    AgentPort,
    reader_job,
    retry_until,
)
from pe_agent.client.arrow_types import widen
from pe_agent.client.connect import broker_url
from pe_agent.job.agent.agent_start import AgentSettings
from pe_agent.job.arguments import ArgumentError, OnCongestion, StartAt
from pe_agent.job.port_settings import import_spec
from pe_agent.job.settings import AgentOptions, BrokerAuth
from pe_agent.transport.agent_client import send
from pe_agent.transport.broker_client import BrokerClient, pe_path
from pe_agent.transport.rows.block_reader import BlockReader, count_blocks
from pe_agent.transport.rows.casts import cast_column
from pe_agent.transport.rows.reader_lease import Lease
from streambroker_client.errors import UnknownPortError
from streambroker_core.errors import ManifestError, StreambrokerError
from streambroker_core.expression.strings import quote
from streambroker_core.ledger.offset import Offset
from streambroker_core.model import DEFAULT_NAMESPACE, PeKey, PortKey
from streambroker_core.model.schema import parse_ddl, to_ddl
from streambroker_core.wire.agent_rpc.codec import Request
from streambroker_core.wire.agent_rpc.reader import (
    Busy,
    GetSchema,
    NextOffset,
    ReaderNext,
    ReaderSlices,
)

if TYPE_CHECKING:
    from typing import Self

log = logging.getLogger("pe_agent")

PORT = "read"
"""Name of the port of a reader."""
MAX_BATCH_BYTES = 16 << 20
"""Bytes that are planned at a time; a single epoch may have more."""
WAIT_SECONDS = 5.0
CALL_SECONDS = 15.0
NOTICE_SECONDS = 10.0
"""Time without a match after which there is a warning."""
VERSION = 1
"""Format version of a position."""

_T = TypeVar("_T")


def read(
    source: str,
    *,
    job: str | None = None,
    broker: str | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    filter: str | None = None,  # noqa: A002 - the name it has everywhere
    columns: Sequence[str] | None = None,
    start: StartAt | datetime | str | None = None,
    on_congestion: OnCongestion | str | None = None,
    position: Mapping[str, Any] | None = None,
    stop_at_end: bool = False,
    auth: BrokerAuth | None = None,
    agent: AgentOptions | None = None,
) -> Reader:
    """Read streams without Spark, as Arrow record batches.

    The reader is an Import like that of any job. Without ``position`` it begins with new rows, does
    not hold up an exporter, counts what it loses, and is deleted when it is closed. With
    ``position`` it gets each row exactly once, if the caller stores `Reader.position` together
    with what it did with the batch: the exporter keeps rows that it has not read, as for a query.

    Args:
        source: an export, ``job/pe/port``, or a subscription, ``kind == "trade"``.
        job: name of the job; required with ``position``. Default is a new one of the application
            ``reader-<user>``.
        broker: address of the broker; default ``$STREAMBROKER_URL`` or ``http://127.0.0.1:8470``.
        namespace: namespace of the reader, and of the export.
        filter: expression over the columns of a row, evaluated at the exporter.
        columns: only these columns.
        start: for exports never read before: ``latest``, ``earliest``, a time as datetime or
            ``2026-01-31T12:00:00Z``, or a time ago, ``-1h``. Default is ``latest``, with
            ``position`` ``earliest``.
        on_congestion: ``drop``: lose rows rather than hold up an exporter; ``inherit``: the
            exporter decides. Default is ``drop``, with ``position`` ``inherit``.
        position: the last one stored, ``{}`` at first.
        stop_at_end: end when all exports have ended and everything is read.
        auth: token for the broker and CA of its certificate; default is the environment's.
        agent: address of the agent and its TLS; default is loopback, and the environment's TLS.

    Raises:
        ArgumentError, SubscriptionError, FilterError: nothing was started.
        UnknownPortError: the broker has no such export.
        StreambrokerError: the agent did not start, see `streambroker.start`.
    """
    if position is not None and job is None:
        raise ArgumentError(
            "a reader with a position needs a name that stays: give job= as well. Two readers must"
            " not have the same."
        )
    is_kept = position is not None
    state = _Position.parse(position or {})
    settings = AgentSettings(
        broker=broker_url(broker), auth=auth or BrokerAuth(), agent=agent or AgentOptions()
    )
    application = job or reader_job()
    pe = PeKey.parse(f"{namespace}/{job or f'{application}-{secrets.token_hex(4)}'}/0")
    named = _parse_export(source, namespace)
    chosen = {
        "filter": filter,
        "start": start or ("earliest" if is_kept else "latest"),
        "on_congestion": on_congestion or ("inherit" if is_kept else "drop"),
    }
    spec = import_spec("read", source if named is None else None, chosen)
    key = PortKey(pe.namespace, pe.job, pe.pe, PORT)
    port = AgentPort("import", key, settings, is_temporary=not is_kept)
    try:
        if named is not None:
            spec = {**_select_export(port.broker, named), **spec}
        port.declare(spec, application=application, redeclare=True)
    except BaseException:
        port.close()
        raise
    return Reader(
        port, state, export=named, columns=columns, is_lossy=not is_kept, stop_at_end=stop_at_end
    )


class _Position:
    """What a reader has read: an offset, and of the next batch the number of blocks.

    Attributes:
        offset: end of the last batch that was read, None at first.
        end: end of the batch of which ``blocks`` were read; None between batches.
    """

    def __init__(self, offset: Any = None, end: Any = None, blocks: int = 0) -> None:
        self.offset: dict[str, Any] | None = offset
        self.end: dict[str, Any] | None = end
        self.blocks = blocks

    @staticmethod
    def parse(data: Mapping[str, Any]) -> _Position:
        """Return a position from JSON; raise ArgumentError if it is none."""
        if not data:
            return _Position()
        version, offset, end, blocks = (data.get(n) for n in ("v", "offset", "end", "blocks"))
        if version != VERSION or not isinstance(blocks, int) or blocks < 0:
            raise ArgumentError(
                "position is not one that Reader.position returned, or a newer release wrote it:"
                " give the last one, unchanged, or {} to start from the beginning."
            )
        Offset.decode(offset)
        Offset.decode(end)
        return _Position(offset, end, blocks)

    def to_json(self) -> dict[str, Any]:
        """Return the position as JSON."""
        return {"v": VERSION, "offset": self.offset, "end": self.end, "blocks": self.blocks}


class Reader:
    """Record batches of an import, in order; iterate over it. Not thread-safe.

    ``for batch in reader`` waits for new rows, and ends only with ``stop_at_end``. ``close``
    ends the agent; a ``with`` statement does it.
    """

    def __init__(
        self,
        port: AgentPort,
        position: _Position,
        *,
        export: PortKey | None,
        columns: Sequence[str] | None,
        is_lossy: bool,
        stop_at_end: bool,
    ) -> None:
        self._port, self._position = port, position
        self._export = None if export is None else str(export)
        self._columns = columns
        self._is_lossy, self._stop_at_end = is_lossy, stop_at_end
        self._session = secrets.token_hex(8)
        self._new_reader_id = secrets.token_hex(16)
        self._ddl: str | None = None
        self._schema: pa.Schema | None = None
        self._lease: Lease | None = None
        self._blocks = BlockReader(port.trust, RECONNECT_SECONDS, lambda: port.agent)
        self._rows = self._read()

    @property
    def position(self) -> dict[str, Any]:
        """The position behind the last batch, as JSON; store it to go on from there."""
        return self._position.to_json()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        """Return the next record batch, never an empty one. After an error it may be called again.

        Raises:
            AgentUnreachableError: an agent did not answer for a minute.
            AgentRefusedError: ``DataLoss`` for a reader with a position; other refusals.
        """
        try:
            return next(self._rows)
        except StopIteration:
            raise
        except BaseException:
            self._rows = self._read()  # the next call goes on behind the last batch
            raise

    def close(self) -> None:
        """End the agent, and delete the Import of a reader without a position."""
        self._rows.close()
        if self._lease is not None:
            self._lease.end()
        self._port.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> Generator[pa.RecordBatch, None, None]:
        state = self._position
        while True:
            if state.end is None:
                answer = self._next()
                if answer.offset is None:
                    if self._stop_at_end and answer.ended:
                        return
                    continue
                state.end = dict(answer.offset)
            self._start_lease(state.end["reader"])
            yield from self._read_batch(state)
            state.offset, state.end, state.blocks = state.end, None, 0

    def _read_batch(self, state: _Position) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a planned batch behind those that were read."""
        before = 0
        for ticket in self._slices(state):
            number = count_blocks(ticket)
            skip = min(number, max(0, state.blocks - before))
            if self._export not in (None, ticket["export"]):
                skip = number
            if skip < number:
                for batch, _ in self._blocks.read({**ticket, "query": None}, skip):
                    unified = self._unify(batch)
                    state.blocks += 1
                    if unified.num_rows:
                        yield unified
            before += number
            state.blocks = max(state.blocks, before)

    def _next(self) -> NextOffset:
        columns = self._wait_for_columns()
        request = ReaderNext(
            import_=self._port.key.port,
            session=self._session,
            start=self._position.offset,
            mint=self._new_reader_id,
            columns=[one.name for one in parse_ddl(columns)],
            schema=columns,
            max_bytes=MAX_BATCH_BYTES,
            lossy=self._is_lossy,
            wait=WAIT_SECONDS,
        )
        return self._with_lease(request)

    def _slices(self, state: _Position) -> Sequence[dict[str, Any]]:
        end = cast("dict[str, Any]", state.end)
        request = ReaderSlices(
            import_=self._port.key.port,
            session=self._session,
            start=state.offset,
            end=end,
            lossy=self._is_lossy,
        )
        answer = self._with_lease(request)
        for stream, parts in answer.lost.items():
            log.warning("continuing without epochs %s of stream %s", parts, stream)
        return answer.slices

    def _with_lease(self, request: Request[_T | Busy]) -> _T:
        """Call the agent; wait while another process of this reader holds its lease."""
        deadline = time.monotonic() + RECONNECT_SECONDS
        while True:
            try:
                answer = send(self._port.agent, request, timeout=CALL_SECONDS)
            except StreambrokerError as error:
                retry_until(deadline, error)
                continue
            if not isinstance(answer, Busy):
                return answer
            request = replace(cast(Any, request), renewals=answer.busy.renewals)
            time.sleep(min(0.5, answer.busy.seconds + 0.01))

    def _wait_for_columns(self) -> str:
        """Return the columns to read as DDL; wait for the first export that matches."""
        notice = time.monotonic() + NOTICE_SECONDS
        while self._ddl is None:
            self._ddl = self._fetch_columns()
            if self._ddl is None and time.monotonic() > notice:
                notice = float("inf")
                log.warning("no export matches yet; see `streambroker explain`")
        return self._ddl

    def _fetch_columns(self) -> str | None:
        deadline = time.monotonic() + RECONNECT_SECONDS
        while True:
            try:
                request = GetSchema(port=self._port.key.port, wait=2.0)
                ddl = send(self._port.agent, request).ddl
                break
            except StreambrokerError as error:
                retry_until(deadline, error)
        if ddl is None or self._columns is None:
            return ddl
        known = {one.name: one for one in parse_ddl(ddl)}
        missing = [name for name in self._columns if name not in known]
        if missing:
            raise ArgumentError(
                f"column {missing[0]!r} is not in the schema; it has {', '.join(known)}."
            )
        return to_ddl(tuple(known[name] for name in self._columns))

    def _start_lease(self, reader: str) -> None:
        if self._lease is None:
            self._lease = Lease(self._port, reader, self._session)

    def _unify(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the schema of the first one; exporters' schemas may differ.

        Types are as wide as those that the reader asks for.
        """
        if self._schema is None:
            self._schema = widen(batch.schema, parse_ddl(self._ddl or ""))
        if batch.schema.equals(self._schema):
            return batch
        columns = [cast_column(batch.column(field.name), field) for field in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _parse_export(source: str, namespace: str) -> PortKey | None:
    """Return the key of ``job/pe/port``; None for a subscription."""
    try:
        return PortKey.parse(f"{namespace}/{source}")
    except ManifestError:
        return None


def _select_export(broker: BrokerClient, export: PortKey) -> dict[str, Any]:
    """Return the settings of an Import that selects an export, by its name or its properties."""
    path = f"{pe_path(export.job, export.pe)}/export/{export.port}"
    try:
        spec = broker.request("GET", path).body["spec"]
    except UnknownPortError as error:
        raise UnknownPortError(
            error.status,
            {
                "code": error.code,
                "detail": f"there is no export {export}. `streambroker exports` lists those that"
                " exist; a subscription also matches exports that come later.",
            },
        ) from None
    if spec.get("streamId"):
        name = {"applicationName": spec["application"]["name"], "streamId": spec["streamId"]}
        return {"streams": [name], "applicationScope": spec["application"].get("scope")}
    terms = [
        f"{name} == {_literal(value)}"
        for name, value in spec.get("properties", {}).items()
        if not isinstance(value, list)
    ]
    if not terms:
        raise ArgumentError(
            f"export {export} has neither a streamId nor a property of one value by which it could"
            " be selected: give a subscription instead."
        )
    scope = spec["application"].get("scope")
    return {"subscription": " && ".join(terms), "applicationScope": scope}


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return quote(value) if isinstance(value, str) else repr(value)
