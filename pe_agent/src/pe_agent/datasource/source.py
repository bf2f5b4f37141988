"""The reading side, and the class Spark finds.

Spark keeps one reader instance per query run in a process of its own for ``latestOffset`` and
``partitions``; ``read`` runs on pickled copies in workers, so a slice carries all it needs.
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

from pe_agent.datasource.columns import struct_of
from pe_agent.datasource.lease import Ahead, Lease
from pe_agent.datasource.options import (
    SOURCE_FIELD,
    OptionError,
    Options,
    ddl_of,
    schema_of,
)
from pe_agent.datasource.packer import PACKED_DDL, Packer, places_of, with_marks
from pe_agent.datasource.pinned_rules import rules_of
from pe_agent.datasource.sink import StreambrokerStreamWriter
from pe_agent.datasource.slice_info import epochs, holder, planned, query, source_column
from pe_agent.spark.worker import settle
from pe_agent.transport.agent_client import AgentClient
from pe_agent.transport.agent_tls import AgentTrust
from pe_agent.transport.flight_errors import AgentRefusedError, AgentUnreachableError
from streambroker_core.control.runtime.control_rows import to_batch
from streambroker_core.control.tuples.epoch_control import read_placed
from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.offset import Offset

log = logging.getLogger("pe_agent")

SOURCE_COLUMN = struct_of(SOURCE_FIELD).fields[0]
AWAY_SECONDS = 0.1
AHEAD_SECONDS = 1.0
HEADS_WAIT = 10.0


class NothingGivenError(StreambrokerError):
    """An export refuses what a run up to a limit has still to read of it."""

    code = "NothingGiven"


class StreambrokerDataSource(DataSource):
    """``spark.readStream.format("streambroker").option("import", port)`` and the like.

    Options: ``import`` or ``export`` (the port), ``agent``, ``agentToken``, ``maxBytesPerBatch``
    (bytes, default 256 MiB or one epoch), ``reconnect`` (seconds, default 60), ``source``,
    ``failOnDataLoss`` (default true), ``stopAtEnd``, ``agentCa`` (a file) and ``agentPlain``.

    With ``control`` an import gives packed rows for an operator: ``columns`` (DDL; default those of
    the first match), ``input`` (its name there, default ``in``), ``buckets`` (default 64), ``key``
    (columns, with types if they are to be cast), ``broadcast``, ``nulls``, ``eventTime`` (a
    column), ``rank`` (of this frame among those of the input), ``mergeable`` (types of tuples),
    ``controlLog`` (this source of the query carries the agent's control log), ``apart`` (packed
    rows are taken apart again), ``rulesFile`` (it carries the rules in this control file, and needs
    only rows that these have to see).
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
        ddl = _columns_of(options)
        return f"{ddl}, {SOURCE_FIELD}" if options.source else ddl

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the reader of one query."""
        options = Options.read(self.options, "import")
        if options.packing is None:
            return StreambrokerStreamReader(schema, options)
        if schema.names != struct_of(PACKED_DDL).names:
            raise OptionError(
                "with `control` rows come packed; give their columns with the option `columns`,"
                " not as a schema."
            )
        columns = options.packing.columns or _columns_of(options)
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

        Why no options take its place: ``docs/decisions/0039-batch-writes-are-refused.md``.
        """
        raise OptionError(
            "format streambroker writes streams only: use df.writeStream, or pe.publish(df, port)."
        )


def _columns_of(options: Options) -> str:
    """Return the columns of an import's first match as DDL."""
    return schema_of(AgentClient(options.agent, options.token, options.trust()), options.port)


class Slice(InputPartition):
    """Blocks of planned epochs for one task: the ticket, where to show it, and whom to trust."""

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
        self._rows = StructType([*rows.fields, SOURCE_COLUMN]) if with_source else rows
        self._columns = StructType([f for f in rows.fields if f.name != "_source"])
        self._options = options
        self._trust = options.trust()
        self._session = secrets.token_hex(8)
        self._mint = secrets.token_hex(16)
        self._limit: dict[str, int] | None = None
        self._log_limit: int | None = None
        self._to_end = False
        self._lease: Lease | None = None
        self._together = False
        self._rules = None if packing is None else rules_of(packing.rules)
        self._ahead = Ahead(self._ask_ahead)
        self._told = False

    def __getstate__(self) -> dict[str, Any]:
        return {"_schema": self._schema, "_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_schema"], state["_options"])  # type: ignore[misc]

    # -- driver side -------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset before the first; it is constant and has no reader."""
        return Offset().encode()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return no limit: ``maxBytesPerBatch`` is the agent's business."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix how far this run reads; with ``stopAtEnd`` to the end of all exports.

        Raises:
            AgentUnreachableError: the own agent stayed away for ``reconnect`` seconds, or that of
                every exporter did; a run that could read nothing must not look like one that had
                nothing to read.
            AgentRefusedError: ``RoutesUnknown`` for as long.
        """
        if self._rules is not None:
            self._rules.stop_here()
        if self._options.stop_at_end:
            self._to_end = True
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
                        f"import {self._options.port} can read nothing: no agent of {missing}"
                        f" answers for {self._options.reconnect:.0f} s. Start the query again when"
                        " they are back."
                    )
            time.sleep(AWAY_SECONDS)
        if missing:
            log.warning("import %s: left for the next run: %s", self._options.port, missing)
        self._limit, self._log_limit = answer["heads"], answer.get("control")

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Acknowledge ``start``, plan the next batch and return its end.

        An agent that is away changes nothing: ``start`` is returned and Spark asks again. A run
        up to a limit would end with that, so it waits for agents that it needs.

        Raises:
            AgentUnreachableError: in a run up to a limit, the own agent, or an exporter's that has
                not reached it, stayed away for ``reconnect`` seconds.
            NothingGivenError: an export that has not reached it has refused for as long; so it is
                with ``stopAtEnd`` once there is nothing to wait for but exports that refuse.
        """
        request = self._request(start)
        if self._to_end:
            request |= {"wait": AHEAD_SECONDS, "aside": True}
        if self._limit is not None or self._to_end:
            return self._up_to_limit(start, request)
        try:
            answer = None
            if not self._together and (self._rules is None or self._rules.read_by(start)):
                answer = self._ahead.look(start, self._options.poll_wait)
            if answer is None:
                answer = self._claiming("reader.next", request)
        except AgentUnreachableError as error:
            self._note_away(error)
            return start
        self._told = False
        if self._options.stop_at_end and answer.get("left", 0.0) > self._options.reconnect:
            raise self._left_behind(answer["behind"], answer["refused"])
        if answer["offset"] is None:
            self._together = "together" in answer
            self._ahead.nothing(start)
        return self._end_of(answer) or start

    def _request(self, start: dict[str, Any]) -> dict[str, Any]:
        return {
            "import": self._options.port,
            "session": self._session,
            "start": start,
            "mint": self._mint,
            "columns": self._columns.names,
            "schema": ddl_of(self._columns),
            "max_bytes": self._options.max_bytes,
            "limit": self._limit,
            "lossy": self._options.lossy,
            "frame": self._options.frame,
            **self._control(),
            **({} if self._rules is None else self._rules.asked(start)),
            "wait": self._options.poll_wait if self._limit is None else 0.0,
        }

    def _control(self) -> dict[str, Any]:
        packing = self._options.packing
        if packing is None:
            return {}
        told: dict[str, Any] = {"control": list(packing.mergeable)}
        return {**told, "log": True, "log_limit": self._log_limit} if packing.log else told

    def _ask_ahead(self, start: dict[str, Any]) -> dict[str, Any]:
        more = {"aside": True, "wait": AHEAD_SECONDS}
        return self._claiming("reader.next", {**self._request(start), **more})

    def _up_to_limit(self, start: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
        until = time.monotonic() + self._options.reconnect
        while True:
            try:
                answer = self._claiming("reader.next", request)
            except AgentUnreachableError as error:
                self._note_away(error)
                if time.monotonic() > until:
                    raise
                continue
            end = self._end_of(answer)
            waits = "ended" not in answer if self._to_end else {"gated", "behind"} & set(answer)
            if end is not None or not waits:
                return end or start
            if "behind" not in answer:
                until = time.monotonic() + self._options.reconnect
            elif time.monotonic() > until:
                raise self._left_behind(answer["behind"], answer.get("refused", {}))
            else:
                time.sleep(AWAY_SECONDS)

    def _left_behind(self, behind: list[str], refused: dict[str, str]) -> StreambrokerError:
        """Return why a run up to a limit cannot reach it."""
        import_, seconds = f"import {self._options.port}", f"{self._options.reconnect:.0f} s"
        silent = [export for export in behind if export not in refused]
        if not silent:
            why = "; ".join(f"{export}: {said}" for export, said in sorted(refused.items()))
            return NothingGivenError(
                f"{import_} is given nothing for {seconds} of what this run is to read. {why}."
                " What was read is kept; correct that, and start the query again."
            )
        return AgentUnreachableError(
            f"{import_}: {', '.join(silent)} did not answer for {seconds}, and has more that this"
            " run is to read. What was read is kept; start the query again."
        )

    def _end_of(self, answer: dict[str, Any]) -> dict[str, Any] | None:
        end = answer["offset"]
        if end is None:
            return None
        self._hold(end["reader"])
        return dict(end)

    def _note_away(self, error: StreambrokerError) -> None:
        if not self._told:
            log.warning("no news while the agent is away: %s", error)
        self._told = True
        time.sleep(AWAY_SECONDS)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Register the plan of a batch again and cut it; a pure function of the two offsets.

        With ``failOnDataLoss`` false epochs that are gone are left out, here and nowhere else, so
        that all tasks of the batch see the same.

        Raises:
            AgentUnreachableError: an exporter's agent stayed away for ``reconnect`` seconds.
            AgentRefusedError: ``PlanRefused``, it refused for as long.
            OptionError: the batch was planned, in an earlier run, without columns of the schema.
        """
        self._hold(end["reader"])
        deadline = time.monotonic() + self._options.reconnect
        request = {
            "import": self._options.port,
            "session": self._session,
            "start": start,
            "end": end,
            "lossy": self._options.lossy,
            "control": self._options.packing is not None,
        }
        while True:
            late = time.monotonic() > deadline
            try:
                answer = self._claiming("reader.slices", {**request, "give_up": late})
                for stream, parts in answer["lost"].items():
                    log.warning("goes on without epochs %s of stream %s", parts, stream)
                trust = self._trust.now()  # executors need not have the file
                if answer["slices"]:
                    self._check_columns(end)
                slices = answer["slices"]
                packing = self._options.packing
                if packing is not None and packing.apart:
                    slices = with_marks(slices)
                if self._rules is not None and packing is not None:
                    slices = self._rules.slices(start, end, slices, packing.event_time)
                return [Slice(ticket, trust) for ticket in slices]
            except StreambrokerError as error:
                if error.code not in ("AgentUnreachable", "PlanRefused"):
                    raise
                if late:
                    raise self._not_planned(error, planned(start, end)) from None
                time.sleep(0.2)

    def _not_planned(self, error: StreambrokerError, wanted: str) -> StreambrokerError:
        """Return why a batch cannot be cut: the exporter's agent is away, or refuses."""
        why = (
            f"import {self._options.port} cannot read its planned epochs for"
            f" {self._options.reconnect:.0f} s: {error} It still has to read {wanted}. Nothing was"
            " skipped; start the query again when"
        )
        if error.code == "PlanRefused":
            return AgentRefusedError(error.code, f"{why} the exporter's agent gives them.")
        return AgentUnreachableError(f"{why} the exporter's agent is back.")

    def _check_columns(self, end: dict[str, Any]) -> None:
        """Refuse a batch that an earlier run has planned with fewer columns than this one reads."""
        planned = end["columns"]
        missing = [] if planned is None else [c for c in self._columns.names if c not in planned]
        if missing:
            raise OptionError(
                f"import {self._options.port}: the batch that the checkpoint has planned is without"
                f" column {missing[0]!r}, and is read as it was planned, with {', '.join(planned)}."
                " Run the query once with these columns and the trigger availableNow; then start it"
                " with more."
            )

    def _claiming(self, action: str, request: dict[str, Any]) -> dict[str, Any]:
        """Call the agent; while an earlier process of this query holds the lease, wait for it."""
        renewals: int | None = None
        while True:
            began = time.monotonic()
            answer = self._client().call(action, timeout=15.0, renewals=renewals, **request)
            if "busy" not in answer:
                if self._lease is not None:
                    self._lease.heard = began
                return answer
            renewals = answer["busy"]["renewals"]
            time.sleep(min(0.5, answer["busy"]["seconds"] + 0.01))

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: ``latestOffset`` acknowledges, earlier and also when idle."""

    def stop(self) -> None:
        """Give the lease back."""
        if self._lease is not None:
            self._lease.end()

    def _hold(self, reader: str) -> None:
        if self._lease is None:
            self._lease = Lease(self._client(), reader, self._session)

    def _client(self) -> AgentClient:
        return AgentClient(self._options.agent, self._options.token, self._trust)

    # -- task side ---------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the slice's rows; a lost connection is taken up again behind the last block.

        Raises:
            AgentUnreachableError: the exporter's agent stayed away for ``reconnect`` seconds.
        """
        from pyspark.sql.pandas.types import to_arrow_schema

        mine = cast(Slice, partition)
        self._trust = mine.trust
        ticket: dict[str, Any] = {**mine.value, "query": query()}
        wanted = to_arrow_schema(self._rows, timezone="UTC")
        packing = self._options.packing
        if packing is None:
            for batch, meta in self._blocks(ticket):
                if batch.num_rows:
                    yield self._shaped(batch, wanted, ticket, meta)
            settle("read")
            return
        packed = to_arrow_schema(self._schema, timezone="UTC")
        for batch in self._packed(ticket, wanted, Packer(packing, ticket)):
            if batch.num_rows:
                yield pa.RecordBatch.from_arrays(batch.columns, schema=packed)
        settle("read")

    def _packed(
        self, ticket: dict[str, Any], wanted: pa.Schema, packer: Packer
    ) -> Iterator[pa.RecordBatch]:
        if "tuples" in ticket:
            yield from packer.control([to_batch(read_placed(ticket["tuples"]))])
        elif ticket.get("control"):
            yield from packer.control([batch for batch, _ in self._blocks(ticket)])
        else:
            if "marks" in ticket:
                marks = {**ticket["marks"], "query": ticket["query"]}
                told = [batch for batch, _ in self._blocks(marks)]
                yield from packer.between(marks["before"], told)
            for number, (batch, meta) in enumerate(self._blocks(ticket)):
                packer.note_time(batch, meta)
                if batch.num_rows:
                    places = places_of(batch, filtered=ticket["filter"] is not None)
                    shaped = self._shaped(batch, wanted, ticket, meta)
                    yield from packer.rows(shaped, number, places)
        yield from packer.end()

    def _blocks(self, ticket: dict[str, Any]) -> Iterator[tuple[pa.RecordBatch, dict[str, Any]]]:
        """Yield each block of a slice with what is said of it, also one without rows.

        Raises:
            AgentUnreachableError: see :meth:`read`.
        """
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
                        f"{error} Epochs {epochs(ticket)} of stream {ticket['stream']} of"
                        f" {ticket['export']} could not be read at agent {holder(ticket)} for"
                        f" {self._options.reconnect:.0f} s. Nothing was skipped; the batch is"
                        " repeated when the query is started again."
                    ) from None
                time.sleep(0.2)
                location = self._where(ticket, location)

    def _where(self, ticket: dict[str, Any], location: str) -> str:
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

    def _shaped(
        self,
        batch: pa.RecordBatch,
        wanted: pa.Schema,
        ticket: dict[str, Any],
        meta: dict[str, Any],
    ) -> pa.RecordBatch:
        """Return the batch in exactly the Arrow schema that Spark expects."""
        if batch.schema.equals(wanted):
            return batch
        arrays = []
        for column in wanted:
            if column.name == "_source":
                arrays.append(source_column(column.type, batch.num_rows, ticket, meta))
            else:
                array = batch.column(column.name)
                arrays.append(array if array.type == column.type else array.cast(column.type))
        return pa.RecordBatch.from_arrays(arrays, schema=wanted)
