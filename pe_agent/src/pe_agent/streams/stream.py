"""A streaming DataFrame with control tuples in it that no Spark operation can lose.

>>> stream = pe.aligned(frame).key_by("symbol")  # doctest: +SKIP
>>> alerts = stream.where("price > 0").control_aware(Multiply)  # doctest: +SKIP
>>> alerts.publish("alerts", checkpoint="…")  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pe_agent.aligned import row_steps
from pe_agent.aligned.control_source import ControlFileSource, control_source_plan
from pe_agent.aligned.data import OutputFrame
from pe_agent.aligned.operator_plan import DEFAULT_BUCKETS, OperatorFactory, plan_operator
from pe_agent.aligned.plan import OperatorNode, StreamPlan, plan_of
from pe_agent.aligned.runtime.unpacker import BatchFunction
from pe_agent.aligned.sinks import sink_for_outputs, sink_for_rows
from pe_agent.datasource.schemas import Columns
from pe_agent.job.publish import QueryStart, export_spec, start_query
from pe_agent.log.control_file import read_log_id
from pe_agent.spark.query_failure import with_cause_first
from pe_agent.streams.side_inputs import SideInputs
from streambroker_core.control.tuples import Limits
from streambroker_core.errors import AlignedError
from streambroker_core.model.durations import Duration

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from pe_agent.cep.query_rules import Processors
    from pe_agent.job.context import Job
    from pe_agent.streams.side_input import Given


@dataclass(frozen=True)
class Stream:
    """A stream of rows and control tuples.

    Made by ``PE.subscribe`` with ``control``, ``PE.aligned``, ``aligned.stream`` and
    ``aligned.control_stream``; each method returns a new one. Control tuples bypass or pass
    through every method, and stay in their window.
    """

    plan: StreamPlan

    @property
    def spark(self) -> SparkSession:
        """The session."""
        return self.plan.spark

    # -- operations on rows ------------------------------------------------------------------

    def where(self, condition: str | Column) -> Stream:
        """Keep the rows for which a condition is true; control tuples pass.

        Raises:
            AlignedError: it calls a Python function, and control tuples are among the rows.
        """
        return Stream(row_steps.where(self.plan, condition))

    filter = where

    def select(self, *chosen: str | Column) -> Stream:
        """Choose and compute columns, row by row; control tuples pass.

        Raises:
            AlignedError: an expression makes several rows of one, or one of several, or calls a
                Python function, and control tuples are among the rows.
        """
        return Stream(row_steps.select(self.plan, chosen))

    def with_columns(self, made: Mapping[str, Column]) -> Stream:
        """Add or replace columns, row by row; control tuples pass.

        Raises:
            AlignedError: as for ``select``, or a name is reserved.
        """
        return Stream(row_steps.with_columns(self.plan, made))

    def map_batches(self, function: BatchFunction, schema: Columns | None = None) -> Stream:
        """Call a function on Arrow batches of rows; control keeps its position between them.

        Args:
            function: takes a batch, returns one or several, with any number of rows.
            schema: columns of the result; None for the columns of its argument.
        """
        return Stream(row_steps.map_batches(self.plan, function, schema))

    @property
    def has_control_log(self) -> bool:
        """Whether the stream carries the tuples of ``PE.send_control``."""
        return self.plan.carrier is not None

    def without_control_log(self) -> Stream:
        """Return the stream of an import without tuples of ``PE.send_control``.

        Raises:
            AlignedError: the import is already open with them.
        """
        return Stream(self.plan.without_control_log())

    def union(self, *others: Stream) -> Stream:
        """Union streams: in each window, rows of the first precede those of the next.

        A stream of control alone may be among them; it needs no columns.

        Raises:
            AlignedError: the columns or keys differ, or there are too many streams.
        """
        return Stream(self.plan.union(*(one.plan for one in others)))

    def through(
        self, function: Callable[[DataFrame], DataFrame], *, immediate: str = "end"
    ) -> Stream:
        """Call a function on the rows as a DataFrame; control bypasses it and rejoins its window.

        For code that does not handle control tuples. ``END_WINDOW``, ``BEGIN`` and ``AT_TIME``
        tuples lose nothing. ``IMMEDIATE`` tuples lose their position, because the rows are new.

        Args:
            function: takes and returns a streaming DataFrame.
            immediate: deliver such tuples at the ``end`` of the window's rows, in the order of
                their emission, or ``refuse`` them: the query fails at the first one.

        Raises:
            AlignedError: the function returns no streaming DataFrame, or one with a reserved
                column.
        """
        return Stream(row_steps.through(self.plan, function, immediate))

    # -- operators ---------------------------------------------------------------------------

    def key_by(self, *names: str) -> Stream:
        """Set the columns that decide the bucket, for the next operator.

        Raises:
            AlignedError: there is no such column.
        """
        self.plan.check_columns(names, "key")
        return Stream(replace(self.plan, key=tuple(names)))

    def with_watermark(
        self, column: str, delay: Duration, *, idle: Duration | None = None
    ) -> Stream:
        """Set the event time column, and how much later rows may arrive.

        Args:
            column: a timestamp.
            delay: a duration, as ``10 seconds``, ``10s`` or a timedelta.
            idle: a duration of wall-clock time without a row, after which the stream no longer
                holds back the time of the operator's other inputs; None for never. Rows that arrive
                after that may be late.

        Raises:
            AlignedError: there is no such column, it is no timestamp, or the stream is behind an
                operator; or ``delay`` or ``idle`` is no valid duration.
        """
        return Stream(row_steps.with_watermark(self.plan, column, delay, idle))

    def control_aware(self, operator: Callable[[], Any], **settings: Any) -> OperatorStream:
        """Run an operator with one input on this stream; see ``aligned.control_aware``."""
        return control_aware(operator, self, **settings)

    def with_side_inputs(self, **inputs: Given) -> SideInputs[Stream, OperatorStream]:
        """Join rows with other streams and tables; see ``pe_agent.side``.

        Args:
            inputs: side inputs by the names that functions use, made by ``side_map`` and similar
                functions. Their order decides at equal positions.
        """
        return SideInputs(
            main=self.plan, sources=inputs, make_rows=Stream, make_operator=OperatorStream
        )

    # -- ends --------------------------------------------------------------------------------

    def schema(self) -> StructType:
        """Return the columns of the rows."""
        return self.plan.schema()

    def to_df(self, *, again: bool = False) -> DataFrame:
        """Return the rows as a streaming DataFrame, without control.

        Args:
            again: the operators upstream may run in another query as well.

        Raises:
            AlignedError: an operator upstream is already used by a query.
        """
        self.plan.require_data("rows")
        self.plan.mark_used(again=again)
        return self.plan.without_control()

    def publish(
        self,
        port: str,
        *,
        checkpoint: str | Path,
        again: bool = False,
        trigger: Mapping[str, Any] | None = None,
        query_name: str | None = None,
        redeclare: bool = False,
        **settings: Any,
    ) -> StreamingQuery:
        """Export rows and control tuples.

        Args:
            port: name of the export port.
            checkpoint: directory of the query's checkpoint.
            again: the operators upstream may run in another query as well.
            trigger: as for ``PE.publish``, like ``query_name`` and ``redeclare``.
            query_name: name of the query.
            redeclare: overwrite the Export that exists.
            settings: settings of the export, as for ``PE.publish``.

        Raises:
            AlignedError: the stream was made without a PE, or ``to_df`` refuses.
        """
        plan, spec = self.plan, export_spec(port, **settings)
        job, data = plan.require_job("publish"), plan.require_data("rows")
        plan.mark_used(again=again)
        if isinstance(data, OutputFrame) and not plan.control_frames:
            exports = {data.output: (port, data.columns, spec)}
            frame, sink = sink_for_outputs(data.frame, exports)
        else:
            frame, sink = sink_for_rows(plan.as_rows("rows"), plan.control_frames, port, spec)
        start = QueryStart(checkpoint, trigger, query_name)
        return start_query(job, frame, sink, start, redeclare=redeclare)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"a stream with control tuples has no {name}: Spark would lose, double or reorder"
            " them there. Use where, select, with_columns, map_batches, union or an operator; or"
            " through(lambda frame: …) for the rows alone, or to_df() to drop control tuples."
        )


@dataclass(frozen=True)
class OperatorStream(Stream):
    """The first output of an operator; index by tag for the others: ``stream["errors"]``."""

    def __getitem__(self, output: str) -> Stream:
        """Return an output.

        Raises:
            AlignedError: there is no output of that name.
        """
        node = self.node()
        if output not in node.schemas:
            raise AlignedError(
                f"operator {node.name} has no output {output}; it has {', '.join(node.schemas)}."
            )
        data = OutputFrame(frame=node.frame, output=output, columns=node.schemas[output])
        return Stream(replace(self.plan, data=data))

    def publish_outputs(
        self,
        ports: Mapping[str, str],
        *,
        checkpoint: str | Path,
        again: bool = False,
        properties: Mapping[str, Mapping[str, Any]] | None = None,
        trigger: Mapping[str, Any] | None = None,
        query_name: str | None = None,
        redeclare: bool = False,
    ) -> StreamingQuery:
        """Export several outputs, with their control tuples, by one query.

        Each batch reaches each export once.

        Args:
            ports: export ports by output.
            checkpoint: directory of the query's checkpoint.
            again: the operators may run in another query as well.
            properties: properties of the exports, by output; optional for an export that exists.
            trigger: as for ``PE.publish``, like ``query_name`` and ``redeclare``.
            query_name: name of the query.
            redeclare: overwrite the Exports that exist.

        Raises:
            AlignedError: there is no such output, properties name an output that is not published,
                two outputs have the same export, or ``to_df`` refuses.
        """
        node, export_properties = self.node(), dict(properties or {})
        for output in ports:
            self[output]
        unpublished = [output for output in export_properties if output not in ports]
        if unpublished:
            raise AlignedError(
                f"properties are given for output {unpublished[0]}, which is not published."
            )
        job = self.plan.require_job("publish_outputs")
        exports = {
            output: (
                port,
                node.schemas[output],
                export_spec(port, properties=export_properties.get(output)),
            )
            for output, port in ports.items()
        }
        frame, sink = sink_for_outputs(node.frame, exports)
        self.plan.mark_used(again=again)
        start = QueryStart(checkpoint, trigger, query_name)
        return start_query(job, frame, sink, start, redeclare=redeclare)

    def for_each_window(
        self,
        function: Callable[[int, dict[str, DataFrame]], None],
        *,
        checkpoint: str | Path,
        again: bool = False,
        trigger: Mapping[str, Any] | None = None,
        query_name: str | None = None,
    ) -> StreamingQuery:
        """Call a function in the driver for each window, with the rows of all outputs.

        Args:
            function: takes the window's number and a DataFrame of each output by tag. After a crash
                it is called again for the last window, with the same rows: key its side effects by
                window number or by identity.
            checkpoint: directory of the query's checkpoint.
            again: the operators may run in another query as well.
            trigger: as for ``DataStreamWriter.trigger``.
            query_name: name of the query.

        Raises:
            AlignedError: as for ``to_df``.
        """
        node = self.node()
        self.plan.mark_used(again=again)
        schemas = dict(node.schemas)

        def call(frame: DataFrame, window: int) -> None:
            frame = frame.persist()
            try:
                outputs = {
                    tag: OutputFrame(frame=frame, output=tag, columns=columns).without_control()
                    for tag, columns in schemas.items()
                }
                function(window, outputs)
            finally:
                frame.unpersist()

        writer = node.frame.writeStream.foreachBatch(call)
        start = QueryStart(checkpoint, trigger, query_name)
        return with_cause_first(start.configure(writer).start())

    def node(self) -> OperatorNode:
        """Return the operator; raise AlignedError if another step follows it."""
        data = self.plan.data
        if not isinstance(data, OutputFrame):
            raise AlignedError("outputs belong to an operator: take them directly after it.")
        return next(node for node in self.plan.nodes.values() if node.frame is data.frame)


@dataclass(frozen=True)
class PatternStream(OperatorStream):
    """Matches; by tag ``timeouts``, ``late``, ``errors`` and an output for each function.

    Attributes:
        processors: the rules, kept in the driver.
    """

    processors: Processors


def control_aware(
    operator: OperatorFactory,
    inputs: Stream | Mapping[str, Stream],
    *,
    name: str | None = None,
    schema: Columns | None = None,
    schemas: Mapping[str, Columns] | None = None,
    buckets: int = DEFAULT_BUCKETS,
    order_by: str | None = None,
    null_keys: bool = False,
    limits: Limits | None = None,
    report: str | None = None,
    counts: str | None = None,
    on_invalid: str = "fail",
) -> OperatorStream:
    """Run an operator on streams.

    Args:
        operator: its class, or a function that makes one; called in each window and bucket.
        inputs: the stream of each input by name, or the one stream of the only input.
        name: name of the operator, unique in the query and fixed for a checkpoint; default is the
            name of its class.
        schema: columns of the first output; default is those of the only input.
        schemas: columns of the outputs, by tag.
        buckets: number of buckets; fixed for a checkpoint.
        order_by: column by which the rows of all inputs are merged; None for input after input.
        null_keys: send rows with a null in their key to bucket 0; otherwise they are refused.
        limits: limits of control tuples in one window.
        report: tag of one more output, with a row for each control tuple that was delivered.
        counts: tag of one more output, with a row for each bucket, window and delivery: the numbers
            of control tuples received, dropped as copies, delivered, emitted and waiting. A row
            without a delivery counts rows.
        on_invalid: what happens to a control tuple that the operator cannot receive, because a
            strict operator does not know its type, or because of its payload or address:
            ``fail`` fails the window, ``pass`` forwards the tuple with a warning in the log.

    Returns:
        The first output; the others by tag.

    Raises:
        AlignedError, OperatorError: an argument does not fit; nothing was started.
    """
    plans = (
        inputs.plan
        if isinstance(inputs, Stream)
        else {port: one.plan for port, one in inputs.items()}
    )
    return OperatorStream(
        plan_operator(
            operator,
            plans,
            name=name,
            schema=schema,
            schemas=schemas,
            buckets=buckets,
            order_by=order_by,
            null_keys=null_keys,
            limits=limits,
            report=report,
            counts=counts,
            on_invalid=on_invalid,
        )
    )


def stream(frame: DataFrame, *, pe: Job | None = None) -> Stream:
    """Return a streaming DataFrame as a stream; rows are ordered by task, then within the task.

    Args:
        frame: a streaming DataFrame.
        pe: for publishing.

    Raises:
        AlignedError: it is not streaming, or a column has a reserved name.
    """
    return Stream(plan_of(frame, None if pe is None else pe.context))


def control_stream(spark: SparkSession, path: str | Path) -> Stream:
    """Return the control tuples of a file as a stream, for ``union`` with other streams.

    Raises:
        AlignedError: it is no file of control tuples.
    """
    read_log_id(Path(path))
    return Stream(control_source_plan(spark, ControlFileSource, path=str(path)))
