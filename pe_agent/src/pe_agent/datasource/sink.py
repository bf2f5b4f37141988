"""The writing side: tasks stage rows at the agent, the commit publishes them as one epoch.

Only ``write`` asks the agent for admission, because Spark can interrupt a task but neither the
writer's constructor nor the commit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pe_agent.datasource.columns import parse_struct
from pe_agent.datasource.options import OptionError, Options, format_ddl
from pe_agent.datasource.packer import PACKED_DDL, Packing
from pe_agent.datasource.unpacker import UnpackedControl, Unpacker, merge_tasks
from pe_agent.transport.agent_client import AgentClient, send
from pe_agent.transport.rows.stage_writer import StageWriter, encode_schema, publish
from streambroker_core.control.tuples.envelope import encode
from streambroker_core.control.tuples.epoch_control import deduplicate_indexed
from streambroker_core.errors import StreambrokerError
from streambroker_core.wire.agent_rpc.publisher import (
    PublisherAbort,
    PublisherAdmit,
    PublisherPublish,
)

log = logging.getLogger("pe_agent")

COMMIT_SECONDS = 10.0
"""Maximum time a commit retries: Spark cannot interrupt it, so ``query.stop()`` waits."""
ABORT_SECONDS = 2.0
"""Maximum time of an abort; the next publish discards the stages that it does not reach."""

RESERVED = ("_control", "_seq", "_pid", "_now", "_source")


@dataclass
class Staged(WriterCommitMessage):
    """Commit message of a write task; everything in the manifest comes from these messages."""

    export: str
    query: str
    run: str
    batch: int
    partition: int
    stage: dict[str, Any] | None
    control: list[UnpackedControl] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Number of rows that the task has staged."""
        return 0 if self.stage is None else int(self.stage["rows"])


class StreambrokerStreamWriter(DataSourceStreamArrowWriter):
    """Writes one micro-batch. Spark makes one for each batch, and another one for its commit."""

    def __init__(self, schema: StructType, options: Options, overwrite: bool) -> None:
        if overwrite:
            raise OptionError("output mode `complete` cannot be exported; use `append`.")
        if options.packing is not None:
            schema = _unpacked_schema(schema, options.packing)
        taken = [n for n in schema.names if n.startswith(RESERVED)]
        if taken:
            raise OptionError(
                f"column {taken[0]!r} has a reserved name ({', '.join(RESERVED)}); rename it before"
                " publishing."
            )
        self._ddl = format_ddl(schema)
        self._row_schema = schema
        self._options = options
        self._trust = options.trust().snapshot()  # executors need not have the file

    # -- tasks -------------------------------------------------------------------------------

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the task's rows; they are durable when this returns.

        Raises:
            AgentRefusedError: the export is unknown or in use, the batch differs, the disk is full.
            AgentUnreachableError: the own agent did not answer for ``reconnect`` seconds.
        """
        if self._options.packing is not None:
            return self.write_with_control(lambda unpacker: unpacker.unpack_rows(iterator))
        staged = self._new_message()
        first = next((b for b in iterator if b.num_rows), None)
        if first is not None:
            staged.stage = self._stager(staged).stage(first, iterator)
        return staged

    def write_with_control(
        self, produce_rows: Callable[[Unpacker], Iterator[pa.RecordBatch]]
    ) -> WriterCommitMessage:
        """Stage the task's rows; its control tuples are part of the commit message.

        ``produce_rows`` yields the rows to stage, and passes the control tuples to the unpacker.

        Raises:
            AgentRefusedError, AgentUnreachableError: see :meth:`write`.
            ControlLimitError: the query emits more tuples than fit into one epoch.
        """
        staged, schema = self._new_message(), self._arrow_schema()
        where = f"batch {staged.batch} of export {staged.export}"
        unpacker = Unpacker(schema, where, staged.query)
        rows = produce_rows(unpacker)
        first = next(rows, None)
        if first is not None:
            staged.stage = self._stager(staged).stage(first, rows)
        staged.control = unpacker.collect_control()
        if staged.stage is None and staged.control:
            self._stager(staged).admit()
        return staged

    def _new_message(self) -> Staged:
        """Return the task's empty message; raise OptionError outside of a streaming query."""
        context = TaskContext.get()
        if context is None:
            raise OptionError("rows can be written only inside a Spark task.")
        batch = context.getLocalProperty("streaming.sql.batchId")
        query = context.getLocalProperty("sql.streaming.queryId")
        run = context.getLocalProperty("spark.jobGroup.id")
        if batch is None or query is None or run is None:
            raise OptionError("the task has no batch id: format streambroker writes streams only.")
        return Staged(
            export=self._options.port,
            query=query,
            run=run,
            batch=int(batch),
            partition=context.partitionId(),
            stage=None,
        )

    def _stager(self, staged: Staged) -> StageWriter:
        request = PublisherAdmit(
            export=staged.export,
            query=staged.query,
            run=staged.run,
            batch=staged.batch,
            ddl=self._ddl,
            renewed=None,
        )
        return StageWriter(self._client, request, self._options.reconnect)

    def _client(self) -> AgentClient:
        return AgentClient(self._options.agent, self._options.token, self._trust)

    # -- driver ------------------------------------------------------------------------------

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish the stages that the messages name; a repeat after a crash publishes nothing new.

        Raises:
            AgentUnreachableError: the own agent did not answer for :data:`COMMIT_SECONDS`, or for
                ``reconnect`` if that is less. The batch is repeated when the query is started
                again.
            AgentRefusedError: a stage is missing, the batch differs, the run was replaced.
        """
        staged = _staged_messages(messages)
        if not staged:
            return
        stages = [s.stage for s in staged if s.stage is not None]
        one = staged[0]
        control = self._control(staged)
        rows = any(s.rows for s in staged)
        request = PublisherPublish(
            export=one.export,
            query=one.query,
            run=one.run,
            batch=batchId,
            stages=stages,
            ddl=self._ddl if stages or control else None,
            control=control,
            arrow=encode_schema(self._arrow_schema()) if control and not rows else None,
        )
        publish(self._client, request, min(COMMIT_SECONDS, self._options.reconnect))

    def _control(self, staged: list[Staged]) -> list[list[Any]]:
        """Return the control tuples of a batch with their indexes, as JSON."""
        tasks = [(s.rows, s.control) for s in staged]
        rows = sum(s.rows for s in staged)
        where = f"batch {staged[0].batch} of export {staged[0].export}"
        placed = deduplicate_indexed(merge_tasks(tasks), rows, where, staged[0].query)
        return [[at, encode(one)] for at, one in placed]

    def _arrow_schema(self) -> pa.Schema:
        from pyspark.sql.pandas.types import to_arrow_schema

        return to_arrow_schema(self._row_schema, timezone="UTC")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Discard the stages that were not published."""
        staged = _staged_messages(messages)
        if not staged:
            return
        one = staged[0]
        try:
            request = PublisherAbort(
                export=one.export,
                query=one.query,
                run=one.run,
                batch=batchId,
                stages=[s.stage["stage"] for s in staged if s.stage is not None],
            )
            send(self._client(), request, timeout=ABORT_SECONDS)
        except StreambrokerError as error:
            log.warning("stages of batch %s not discarded yet: %s", batchId, error)


def _unpacked_schema(schema: StructType, packing: Packing) -> StructType:
    """Return the columns of the rows in a packed frame; raise OptionError if they are not known."""
    if schema.names != parse_struct(PACKED_DDL).names or not packing.columns:
        raise OptionError(
            "with `control` the frame has to have the packed rows of an operator"
            f" ({PACKED_DDL}), and the option `columns` the columns that they hold."
        )
    return packing.struct


def _staged_messages(messages: list[WriterCommitMessage | None]) -> list[Staged]:
    return sorted((m for m in messages if isinstance(m, Staged)), key=lambda m: m.partition)
