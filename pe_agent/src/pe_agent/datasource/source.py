"""The reading side, and the data source class that Spark instantiates.

Spark keeps one reader per query run in a process of its own for ``latestOffset`` and
``partitions``. ``read`` runs on pickled copies in workers, so a slice carries all it needs.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pe_agent.datasource.columns import parse_struct
from pe_agent.datasource.lease import Lease, Prefetcher
from pe_agent.datasource.options import (
    SOURCE_FIELD,
    OptionError,
    Options,
    fetch_schema,
    format_ddl,
)
from pe_agent.datasource.packer import (
    PACKED_DDL,
    ImportPacker,
    link_control_slices,
    read_row_numbers,
)
from pe_agent.datasource.pinned_rules import open_rules_file
from pe_agent.datasource.sink import StreambrokerStreamWriter
from pe_agent.datasource.slice_info import (
    build_source_column,
    current_query,
    describe_epochs,
    describe_planned,
    serving_pe,
)
from pe_agent.spark.worker import freeze_modules
from pe_agent.transport.agent_client import AgentClient
from pe_agent.transport.agent_tls import AgentTrust
from pe_agent.transport.flight_errors import AgentRefusedError, AgentUnreachableError
from streambroker_core.control.runtime.control_rows import to_batch
from streambroker_core.control.tuples.epoch_control import parse_indexed
from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.offset import Offset

log = logging.getLogger("pe_agent")

SOURCE_COLUMN = parse_struct(SOURCE_FIELD).fields[0]
RETRY_SECONDS = 0.1
PREFETCH_WAIT_SECONDS = 1.0
HEADS_WAIT = 10.0


class ExportRefusesError(StreambrokerError):
    """An export refuses to provide what a run up to a limit still has to read."""

    code = "NothingGiven"


class StreambrokerDataSource(DataSource):
    """``spark.readStream.format("streambroker").option("import", port)``, and writing.

    Options: ``import`` or ``export`` (the port), ``agent``, ``agentToken``, ``maxBytesPerBatch``
    (bytes, default 256 MiB or one epoch), ``reconnect`` (seconds, default 60), ``source``,
    ``failOnDataLoss`` (default true), ``stopAtEnd``, ``agentCa`` (a file) and ``agentPlain``.

    With ``control`` an import returns packed rows for an operator:

    - ``columns``: DDL; default those of the first match
    - ``input``: name of the operator's input, default ``in``
    - ``buckets``: default 64
    - ``key``: columns, with types if they are to be cast
    - ``broadcast``, ``nulls``, ``eventTime`` (a column)
    - ``rank``: position of this frame among those of the input
    - ``mergeable``: types of tuples
    - ``controlLog``: this source of the query carries the agent's control log
    - ``apart``: packed rows are unpacked again
    - ``rulesFile``: control file whose rules the source carries; it reads only rows that these
      rules have to see
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "streambroker"

    def schema(self) -> str:
        """Return the schema of the import's first match; waits up to 60 s for one."""
        options = Options.read(self.options, "import")
        if options.packing:
            return PACKED_DDL
        ddl = _fetch_columns(options)
        return f"{ddl}, {SOURCE_FIELD}" if options.source else ddl

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the reader of one query."""
        options = Options.read(self.options, "import")
        if options.packing is None:
            return StreambrokerStreamReader(schema, options)
        if schema.names != parse_struct(PACKED_DDL).names:
            raise OptionError(
                "with `control` rows come packed; give their columns with the option `columns`,"
                " not as a schema."
            )
        columns = options.packing.columns or _fetch_columns(options)
        packing = replace(options.packing, columns=columns)
        packing.check()
        return StreambrokerStreamReader(schema, replace(options, packing=packing))

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Return the writer of one micro-batch."""
        return StreambrokerStreamWriter(schema, Options.read(self.options, "export"), overwrite)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Refuse batch writes: without a batch id nothing could be published exactly once.

        Rejected alternatives: ``docs/decisions/0039-batch-writes-are-refused.md``.
        """
        raise OptionError(
            "format streambroker writes streams only: use df.writeStream, or pe.publish(df, port)."
        )


def _fetch_columns(options: Options) -> str:
    return fetch_schema(AgentClient(options.agent, options.token, options.trust()), options.port)


class Slice(InputPartition):
    """Blocks of planned epochs for one task: the ticket, and the TLS trust for its agent."""

    def __init__(self, ticket: dict[str, Any], trust: AgentTrust) -> None:
        self.value = ticket
        self.trust = trust


class StreambrokerStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query's reader of one import."""

    def __init__(self, schema: StructType, options: Options) -> None:
        self._schema = schema
        packing = options.packing
        rows = schema if packing is None else packing.struct
        with_source = packing is not None and options.source
        self._row_schema = StructType([*rows.fields, SOURCE_COLUMN]) if with_source else rows
        self._columns = StructType([f for f in rows.fields if f.name != "_source"])
        self._options = options
        self._trust = options.trust()
        self._session = secrets.token_hex(8)
        self._new_reader_id = secrets.token_hex(16)
        self._limit: dict[str, int] | None = None
        self._log_limit: int | None = None
        self._reads_to_end = False
        self._lease: Lease | None = None
        self._may_wait = False
        self._rules_file = None if packing is None else open_rules_file(packing.rules)
        self._prefetcher = Prefetcher(self._prefetch)
        self._is_away_logged = False

    def __getstate__(self) -> dict[str, Any]:
        return {"_schema": self._schema, "_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_schema"], state["_options"])  # type: ignore[misc]

    # -- driver side -------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the initial offset; it is constant and names no reader."""
        return Offset().encode()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return no limit: the agent applies ``maxBytesPerBatch``."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the limit of this run; with ``stopAtEnd`` it is the end of all exports.

        Raises:
            AgentUnreachableError: the own agent, or that of every exporter, did not answer for
                ``reconnect`` seconds. A run that could read nothing must not look like one that had
                nothing to read.
            AgentRefusedError: ``RoutesUnknown`` for as long.
        """
        if self._rules_file is not None:
            self._rules_file.freeze_end()
        if self._options.stop_at_end:
            self._reads_to_end = True
            return
        until = time.monotonic() + self._options.reconnect
        while True:
            wait = max(0.0, min(HEADS_WAIT, until - time.monotonic()))
            request: dict[str, Any] = {"import": self._options.port, "wait": wait}
            try:
                answer = self._client().call("reader.heads", timeout=HEADS_WAIT + 10, **request)
            except StreambrokerError as error:
                passing = error.code in ("AgentUnreachable", "RoutesUnknown")
                if not passing or time.monotonic() > until:
                    raise
            else:
                missing = ", ".join(answer["missing"])
                if answer["heads"] or not missing:
                    break
                if time.monotonic() > until:
                    raise AgentUnreachableError(
                        f"import {self._options.port} cannot read anything: no agent of {missing}"
                        f" has answered for {self._options.reconnect:.0f} s. Start the query"
                        " again when they are back."
                    )
            time.sleep(RETRY_SECONDS)
        if missing:
            log.warning(
                "import %s: agents do not answer, leaving their data for the next run: %s",
                self._options.port,
                missing,
            )
        self._limit, self._log_limit = answer["heads"], answer.get("control")

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Acknowledge ``start``, plan the next batch and return its end.

        If an agent is unreachable, ``start`` is returned and Spark calls again. In a run up to a
        limit that would end the run, so it waits for the agents that it needs.

        Raises:
            AgentUnreachableError: in a run up to a limit, the own agent, or that of an exporter
                below the limit, did not answer for ``reconnect`` seconds.
            ExportRefusesError: an export below the limit has refused for as long. With
                ``stopAtEnd``: only exports that refuse are left to wait for.
        """
        request = self._request(start)
        if self._reads_to_end:
            request |= {"wait": PREFETCH_WAIT_SECONDS, "aside": True}
        if self._limit is not None or self._reads_to_end:
            return self._next_up_to_limit(start, request)
        try:
            answer = None
            if not self._may_wait and (
                self._rules_file is None or self._rules_file.has_read_all(start)
            ):
                answer = self._prefetcher.poll(start, self._options.poll_wait)
            if answer is None:
                answer = self._call_with_lease("reader.next", request)
        except AgentUnreachableError as error:
            self._note_away(error)
            return start
        self._is_away_logged = False
        if self._options.stop_at_end and answer.get("left", 0.0) > self._options.reconnect:
            raise self._lagging_error(answer["behind"], answer["refused"])
        if answer["offset"] is None:
            self._may_wait = "together" in answer
            self._prefetcher.note_empty(start)
        return self._take_offset(answer) or start

    def _request(self, start: dict[str, Any]) -> dict[str, Any]:
        return {
            "import": self._options.port,
            "session": self._session,
            "start": start,
            "mint": self._new_reader_id,
            "columns": self._columns.names,
            "schema": format_ddl(self._columns),
            "max_bytes": self._options.max_bytes,
            "limit": self._limit,
            "lossy": self._options.skip_lost,
            "frame": self._options.frame,
            **self._control_fields(),
            **({} if self._rules_file is None else self._rules_file.request_fields(start)),
            "wait": self._options.poll_wait if self._limit is None else 0.0,
        }

    def _control_fields(self) -> dict[str, Any]:
        packing = self._options.packing
        if packing is None:
            return {}
        fields: dict[str, Any] = {"control": list(packing.mergeable)}
        return {**fields, "log": True, "log_limit": self._log_limit} if packing.log else fields

    def _prefetch(self, start: dict[str, Any]) -> dict[str, Any]:
        more = {"aside": True, "wait": PREFETCH_WAIT_SECONDS}
        return self._call_with_lease("reader.next", {**self._request(start), **more})

    def _next_up_to_limit(self, start: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
        until = time.monotonic() + self._options.reconnect
        while True:
            try:
                answer = self._call_with_lease("reader.next", request)
            except AgentUnreachableError as error:
                self._note_away(error)
                if time.monotonic() > until:
                    raise
                continue
            end = self._take_offset(answer)
            waits = (
                "ended" not in answer if self._reads_to_end else {"gated", "behind"} & set(answer)
            )
            if end is not None or not waits:
                return end or start
            if "behind" not in answer:
                until = time.monotonic() + self._options.reconnect
            elif time.monotonic() > until:
                raise self._lagging_error(answer["behind"], answer.get("refused", {}))
            else:
                time.sleep(RETRY_SECONDS)

    def _lagging_error(self, exports: list[str], refused: dict[str, str]) -> StreambrokerError:
        import_, seconds = f"import {self._options.port}", f"{self._options.reconnect:.0f} s"
        silent = [export for export in exports if export not in refused]
        if not silent:
            why = "; ".join(f"{export}: {message}" for export, message in sorted(refused.items()))
            return ExportRefusesError(
                f"{import_} has received nothing for {seconds} of the data that this run has to"
                f" read. {why}. Data read so far is kept; correct that, and start the query"
                " again."
            )
        return AgentUnreachableError(
            f"{import_}: {', '.join(silent)} did not answer for {seconds}, and has more data that"
            " this run has to read. Data read so far is kept; start the query again."
        )

    def _take_offset(self, answer: dict[str, Any]) -> dict[str, Any] | None:
        end = answer["offset"]
        if end is None:
            return None
        self._start_lease(end["reader"])
        return dict(end)

    def _note_away(self, error: StreambrokerError) -> None:
        if not self._is_away_logged:
            log.warning("no new data while the agent is away: %s", error)
        self._is_away_logged = True
        time.sleep(RETRY_SECONDS)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Register the plan of a batch again and cut it; a pure function of the two offsets.

        With ``failOnDataLoss`` false, lost epochs are skipped here and nowhere else, so all tasks
        of the batch see the same rows.

        Raises:
            AgentUnreachableError: an exporter's agent did not answer for ``reconnect`` seconds.
            AgentRefusedError: ``PlanRefused``, it refused for as long.
            OptionError: an earlier run planned the batch without columns of the schema.
        """
        self._start_lease(end["reader"])
        deadline = time.monotonic() + self._options.reconnect
        request = {
            "import": self._options.port,
            "session": self._session,
            "start": start,
            "end": end,
            "lossy": self._options.skip_lost,
            "control": self._options.packing is not None,
        }
        while True:
            late = time.monotonic() > deadline
            try:
                answer = self._call_with_lease("reader.slices", {**request, "give_up": late})
                for stream, parts in answer["lost"].items():
                    log.warning("continuing without epochs %s of stream %s", parts, stream)
                trust = self._trust.snapshot()  # executors need not have the file
                if answer["slices"]:
                    self._check_columns(end)
                slices = answer["slices"]
                packing = self._options.packing
                if packing is not None and packing.unpacks_rows:
                    slices = link_control_slices(slices)
                if self._rules_file is not None and packing is not None:
                    slices = self._rules_file.add_rule_slices(
                        start, end, slices, packing.event_time
                    )
                return [Slice(ticket, trust) for ticket in slices]
            except StreambrokerError as error:
                if error.code not in ("AgentUnreachable", "PlanRefused"):
                    raise
                if late:
                    raise self._not_planned_error(error, describe_planned(start, end)) from None
                time.sleep(0.2)

    def _not_planned_error(self, error: StreambrokerError, epochs_text: str) -> StreambrokerError:
        why = (
            f"import {self._options.port} cannot read its planned epochs for"
            f" {self._options.reconnect:.0f} s: {error} It still has to read {epochs_text}."
            f" Nothing was"
            " skipped; start the query again when"
        )
        if error.code == "PlanRefused":
            return AgentRefusedError(error.code, f"{why} the exporter's agent sends them.")
        return AgentUnreachableError(f"{why} the exporter's agent is back.")

    def _check_columns(self, end: dict[str, Any]) -> None:
        """Raise if an earlier run planned the batch with fewer columns than this one reads."""
        planned = end["columns"]
        missing = [] if planned is None else [c for c in self._columns.names if c not in planned]
        if missing:
            raise OptionError(
                f"import {self._options.port}: the batch that the checkpoint has planned does not"
                f" contain column {missing[0]!r}, and is read as it was planned, with"
                f" {', '.join(planned)}. Run the query once with these columns and the trigger"
                " availableNow; then start it with more."
            )

    def _call_with_lease(self, action: str, request: dict[str, Any]) -> dict[str, Any]:
        """Call the agent; while an earlier process of this query holds the lease, wait for it."""
        renewals: int | None = None
        while True:
            began = time.monotonic()
            answer = self._client().call(action, timeout=15.0, renewals=renewals, **request)
            if "busy" not in answer:
                if self._lease is not None:
                    self._lease.renewed_at = began
                return answer
            renewals = answer["busy"]["renewals"]
            time.sleep(min(0.5, answer["busy"]["seconds"] + 0.01))

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: ``latestOffset`` acknowledges, earlier and also when idle."""

    def stop(self) -> None:
        """Release the lease."""
        if self._lease is not None:
            self._lease.end()

    def _start_lease(self, reader: str) -> None:
        if self._lease is None:
            self._lease = Lease(self._client(), reader, self._session)

    def _client(self) -> AgentClient:
        return AgentClient(self._options.agent, self._options.token, self._trust)

    # -- task side ---------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the slice's rows; resume a lost connection for up to ``reconnect`` seconds."""
        from pyspark.sql.pandas.types import to_arrow_schema

        slice_ = cast(Slice, partition)
        self._trust = slice_.trust
        ticket: dict[str, Any] = {**slice_.value, "query": current_query()}
        row_schema = to_arrow_schema(self._row_schema, timezone="UTC")
        packing = self._options.packing
        if packing is None:
            for batch, meta in self._read_blocks(ticket):
                if batch.num_rows:
                    yield self._cast_batch(batch, row_schema, ticket, meta)
            freeze_modules("read")
            return
        packed = to_arrow_schema(self._schema, timezone="UTC")
        for batch in self._read_packed(ticket, row_schema, ImportPacker(packing, ticket)):
            if batch.num_rows:
                yield pa.RecordBatch.from_arrays(batch.columns, schema=packed)
        freeze_modules("read")

    def _read_packed(
        self, ticket: dict[str, Any], row_schema: pa.Schema, packer: ImportPacker
    ) -> Iterator[pa.RecordBatch]:
        if "tuples" in ticket:
            yield from packer.pack_control([to_batch(parse_indexed(ticket["tuples"]))])
        elif ticket.get("control"):
            yield from packer.pack_control([batch for batch, _ in self._read_blocks(ticket)])
        else:
            if "marks" in ticket:
                marks = {**ticket["marks"], "query": ticket["query"]}
                control = [batch for batch, _ in self._read_blocks(marks)]
                yield from packer.pack_immediate(marks["before"], control)
            for number, (batch, meta) in enumerate(self._read_blocks(ticket)):
                packer.note_time(batch, meta)
                if batch.num_rows:
                    row_numbers = read_row_numbers(batch, filtered=ticket["filter"] is not None)
                    shaped = self._cast_batch(batch, row_schema, ticket, meta)
                    yield from packer.pack_rows(shaped, number, row_numbers)
        yield from packer.finish()

    def _read_blocks(
        self, ticket: dict[str, Any]
    ) -> Iterator[tuple[pa.RecordBatch, dict[str, Any]]]:
        location, done = ticket["location"], 0
        until: float | None = None
        while True:
            try:
                rows = AgentClient(location, trust=self._trust).get(
                    {**ticket, "skip": done}, stall=self._options.reconnect
                )
                for batch, meta in rows:
                    done, until = done + 1, None
                    yield batch, meta
                return
            except StreambrokerError as error:
                if error.code != "AgentUnreachable":
                    raise
                until = until or time.monotonic() + self._options.reconnect
                if time.monotonic() > until:
                    raise AgentUnreachableError(
                        f"{error} Epochs {describe_epochs(ticket)} of stream {ticket['stream']} of"
                        f" {ticket['export']} could not be read at agent {serving_pe(ticket)} for"
                        f" {self._options.reconnect:.0f} s. Nothing was skipped; the batch is"
                        " repeated when the query is started again."
                    ) from None
                time.sleep(0.2)
                location = self._locate(ticket, location)

    def _locate(self, ticket: dict[str, Any], location: str) -> str:
        try:
            return str(
                self._client().call(
                    "reader.where",
                    export=ticket["export"],
                    stream=ticket["stream"],
                    reader=ticket["reader"],
                    agent=ticket.get("agent"),
                )["location"]
            )
        except StreambrokerError:
            return location

    def _cast_batch(
        self,
        batch: pa.RecordBatch,
        row_schema: pa.Schema,
        ticket: dict[str, Any],
        meta: dict[str, Any],
    ) -> pa.RecordBatch:
        if batch.schema.equals(row_schema):
            return batch
        arrays = []
        for column in row_schema:
            if column.name == "_source":
                arrays.append(build_source_column(column.type, batch.num_rows, ticket, meta))
            else:
                array = batch.column(column.name)
                arrays.append(array if array.type == column.type else array.cast(column.type))
        return pa.RecordBatch.from_arrays(arrays, schema=row_schema)
