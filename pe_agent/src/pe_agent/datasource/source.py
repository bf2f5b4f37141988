"""The reading side, and the data source class that Spark instantiates.

Spark keeps one reader per query run in a process of its own for ``latestOffset`` and
``partitions``. ``read`` runs on pickled copies in workers, so a slice carries all it needs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
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

from pe_agent.datasource.batch_reader import FilteringBatchReader, StreambrokerBatchReader
from pe_agent.datasource.columns import parse_struct
from pe_agent.datasource.options import (
    SOURCE_FIELD,
    BatchRange,
    OptionError,
    Options,
    fetch_schema,
)
from pe_agent.datasource.packer import ImportPacker, link_control_slices
from pe_agent.datasource.pinned_rules import PinnedRulesFile
from pe_agent.datasource.prefetcher import Prefetcher
from pe_agent.datasource.reader_calls import HEADS_WAIT, ReaderCalls
from pe_agent.datasource.sink import StreambrokerStreamWriter
from pe_agent.datasource.slice_reader import Slice, SliceReader
from pe_agent.datasource.slots import add_slots, packed_ddl
from pe_agent.spark.worker import freeze_modules
from pe_agent.transport.agent_client import AgentClient
from pe_agent.transport.flight_errors import AgentRefusedError, AgentUnreachableError
from pe_agent.transport.messages import Ticket
from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.offset import Offset, ranges
from streambroker_core.wire.agent_rpc.reader import NextOffset

log = logging.getLogger("pe_agent")

SOURCE_COLUMN = parse_struct(SOURCE_FIELD).fields[0]
RETRY_SECONDS = 0.1
PREFETCH_WAIT_SECONDS = 1.0


class ExportRefusesError(StreambrokerError):
    """An export refuses to provide what a run up to a limit still has to read."""

    code = "NothingGiven"


class StreambrokerDataSource(DataSource):
    """``spark.readStream.format("streambroker").option("import", port)``, and writing.

    ``spark.read`` reads what the exports have: all of it, or from ``start`` to ``end``.

    Options: ``import`` or ``export`` (the port), ``agent``, ``agentToken``, ``maxBytesPerBatch``
    (bytes, default 256 MiB or one epoch), ``reconnect`` (seconds, default 60), ``source``,
    ``failOnDataLoss`` (default true), ``stopAtEnd``, ``agentCa`` (a file) and ``agentPlain``.

    With ``control`` an import returns packed rows for an operator; `Packing` has the options for
    it: ``columns`` (default those of the first match), ``input``, ``buckets``, ``key``,
    ``broadcast``, ``nulls``, ``eventTime``, ``rank``, ``mergeable``, ``controlLog`` (its ``log``),
    ``apart`` (its ``unpacks_rows``), ``rulesFile`` (its ``rules``) and ``slots``.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "streambroker"

    def schema(self) -> str:
        """Return the schema of the import's first match; waits up to 60 s for one."""
        options = Options.read(self.options, "import")
        if options.packing:
            return packed_ddl(slots=options.packing.slots)
        ddl = _fetch_columns(options)
        return f"{ddl}, {SOURCE_FIELD}" if options.source else ddl

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of one batch."""
        range_ = BatchRange.read(self.options)
        kind = FilteringBatchReader if range_.push_filters else StreambrokerBatchReader
        return kind(schema, Options.read(self.options, "import"), range_)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the reader of one query."""
        options = Options.read(self.options, "import")
        BatchRange.check_absent(self.options)
        if options.packing is None:
            return StreambrokerStreamReader(schema, options)
        ddl = packed_ddl(slots=options.packing.slots)
        if schema.names != parse_struct(ddl).names:
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
        self._reads_to_end = False
        self._may_wait = False
        rules = None if packing is None else packing.rules
        self._rules_file = None if rules is None else PinnedRulesFile(rules)
        self._calls = ReaderCalls(self._client, options, self._columns, self._rules_file)
        self._prefetcher = Prefetcher(self._prefetch)
        self._is_away_logged = False
        self._planned: NextOffset | None = None

    def __reduce__(self) -> tuple[type[StreambrokerStreamReader], tuple[StructType, Options]]:
        return StreambrokerStreamReader, (self._schema, self._options)

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
            try:
                heads = self._calls.heads(wait)
            except StreambrokerError as error:
                passing = error.code in ("AgentUnreachable", "RoutesUnknown")
                if not passing or time.monotonic() > until:
                    raise
            else:
                missing = ", ".join(heads.missing)
                if heads.heads or not missing:
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
        self._calls.set_target(heads)

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
        if self._calls.limit is not None or self._reads_to_end:
            return self._next_up_to_limit(start)
        try:
            answer = None
            if not self._may_wait and (
                self._rules_file is None or self._rules_file.has_read_all(start.get("rules"))
            ):
                answer = self._prefetcher.poll(start, self._options.poll_wait)
            if answer is None:
                answer = self._calls.next(start)
        except AgentUnreachableError as error:
            self._note_away(error)
            return start
        self._is_away_logged = False
        if self._options.stop_at_end and answer.left > self._options.reconnect:
            raise self._lagging_error(answer)
        if answer.offset is None:
            self._may_wait = answer.together
            self._prefetcher.note_empty(start)
        return self._take_offset(answer) or start

    def _prefetch(self, start: dict[str, Any]) -> NextOffset:
        return self._calls.next(start, wait=PREFETCH_WAIT_SECONDS, aside=True)

    def _next_up_to_limit(self, start: dict[str, Any]) -> dict[str, Any]:
        until = time.monotonic() + self._options.reconnect
        while True:
            try:
                answer = self._prefetch(start) if self._reads_to_end else self._calls.next(start)
            except AgentUnreachableError as error:
                self._note_away(error)
                if time.monotonic() > until:
                    raise
                continue
            end = self._take_offset(answer)
            waits = not answer.ended if self._reads_to_end else answer.gated or answer.behind
            if end is not None or not waits:
                return end or start
            if not answer.behind:
                until = time.monotonic() + self._options.reconnect
            elif time.monotonic() > until:
                raise self._lagging_error(answer)
            else:
                time.sleep(RETRY_SECONDS)

    def _lagging_error(self, answer: NextOffset) -> StreambrokerError:
        import_, seconds = f"import {self._options.port}", f"{self._options.reconnect:.0f} s"
        refused = answer.refused
        silent = [export for export in answer.behind if export not in refused]
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

    def _take_offset(self, answer: NextOffset) -> dict[str, Any] | None:
        if answer.offset is None:
            return None
        self._calls.start_lease(answer.offset["reader"])
        self._planned = answer
        return dict(answer.offset)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the offset at the heads of all streams, for the progress of the query.

        ``behind`` counts the epochs that follow the planned batch, and their rows before filters
        if all exporters' agents report them. The heads are those that the agent knew when it
        planned the batch.
        """
        planned = self._planned
        if planned is None or planned.offset is None:
            return None
        streams = planned.offset["streams"]
        heads = {s: planned.heads.get(s, at["next"]) for s, at in streams.items()}
        behind = {"epochs": sum(heads[s] - at["next"] for s, at in streams.items())}
        if planned.rows_behind is not None:
            behind["rows"] = planned.rows_behind
        at_heads = {s: {**at, "next": heads[s]} for s, at in streams.items()}
        return {**planned.offset, "streams": at_heads, "behind": behind}

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
        self._calls.start_lease(end["reader"])
        deadline = time.monotonic() + self._options.reconnect
        while True:
            late = time.monotonic() > deadline
            try:
                answer = self._calls.slices(start, end, give_up=late)
                for stream, parts in answer.lost.items():
                    log.warning("continuing without epochs %s of stream %s", parts, stream)
                trust = self._trust.snapshot()  # executors need not have the file
                if answer.slices:
                    self._check_columns(end)
                slices = [cast(Ticket, one) for one in answer.slices]
                packing = self._options.packing
                if packing is not None and packing.unpacks_rows:
                    slices = link_control_slices(slices)
                if self._rules_file is not None and packing is not None:
                    slices = self._rules_file.add_rule_slices(
                        start.get("rules"), end.get("rules"), slices, packing.event_time
                    )
                return [Slice(ticket, trust) for ticket in slices]
            except StreambrokerError as error:
                if error.code not in ("AgentUnreachable", "PlanRefused"):
                    raise
                if late:
                    planned = ranges(Offset.decode(start), Offset.decode(end))
                    raise self._not_planned_error(error, planned) from None
                time.sleep(0.2)

    def _not_planned_error(
        self, error: StreambrokerError, planned: Mapping[str, tuple[int, int]]
    ) -> StreambrokerError:
        epochs = [f"epochs {f} to {n - 1} of stream {s}" for s, (f, n) in planned.items()]
        why = (
            f"import {self._options.port} cannot read its planned epochs for"
            f" {self._options.reconnect:.0f} s: {error} It still has to read {', '.join(epochs)}."
            " Nothing was skipped; start the query again when"
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

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: ``latestOffset`` acknowledges, earlier and also when idle."""

    def stop(self) -> None:
        """Release the lease."""
        self._calls.end_lease()

    def _client(self) -> AgentClient:
        return AgentClient(self._options.agent, self._options.token, self._trust)

    # -- task side ---------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the slice's rows; resume a lost connection for up to ``reconnect`` seconds."""
        from pyspark.sql.pandas.types import to_arrow_schema

        slice_ = cast(Slice, partition)
        self._trust = slice_.trust
        reader = SliceReader(slice_, self._options, self._row_schema, self._client)
        packing = self._options.packing
        if packing is None:
            yield from reader.read_rows()
        else:
            packed = to_arrow_schema(self._schema, timezone="UTC")
            batches = reader.read_packed(ImportPacker(packing, reader.ticket))
            for batch in add_slots(batches) if packing.slots else batches:
                if batch.num_rows:
                    yield pa.RecordBatch.from_arrays(batch.columns, schema=packed)
        freeze_modules("read")
