"""A streaming DataFrame with control tuples in it that no Spark operation can lose.

>>> stream = pe.aligned(frame).key_by("symbol")  # doctest: +SKIP
>>> alerts = stream.where("price > 0").control_aware(Multiply)  # doctest: +SKIP
>>> alerts.publish("alerts", checkpoint="…")  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pe_agent.aligned.queries import start_guard
from pe_agent.aligned.queries.plan_check import is_plain_projection, python_functions
from pe_agent.aligned.runtime.frames import (
    CONTROL,
    PROGRESS,
    ROWS,
    SEQ,
    add_sequence,
    mixed_schema,
    shift_sequence,
)
from pe_agent.aligned.runtime.hosting import parse_columns
from pe_agent.aligned.runtime.packer import AT_END, REFUSE
from pe_agent.aligned.runtime.unpacker import (
    BatchFunction,
    BatchMapper,
    OutputDataReader,
    OutputRowsReader,
)
from pe_agent.datasource.schemas import spark_to_arrow
from pe_agent.job import publish as publishing
from pe_agent.streams.import_stream import Import, ImportFrame, choose_carrier
from streambroker_core.control.runtime.packing import RANK_BITS, RESERVED
from streambroker_core.errors import AlignedError
from streambroker_core.model.durations import FORMS, Duration, in_microseconds

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from pe_agent.datasource.schemas import Columns
    from pe_agent.job.context import Job, JobContext
    from pe_agent.streams.operator_stream import OperatorNode, OperatorStream
    from pe_agent.streams.side_input import Given
    from pe_agent.streams.side_inputs import SideInputs

HIDDEN_COLUMNS = (SEQ, CONTROL)
MAX_IDLE_SECONDS = 100_000_000_000
"""Upper bound of ``idle`` in seconds: about 3,000 years."""


@dataclass(frozen=True, kw_only=True)
class RowsFrame:
    """A frame of rows.

    Attributes:
        frame: the user's columns, ``_seq``, and ``_control`` if the frame is mixed.
        mixed: whether control rows are among the rows.
        ranks: number of frames of which it is a union.
        row_filter: filter of the rows that an operator on them has to see; None for all.
    """

    frame: DataFrame
    mixed: bool = False
    ranks: int = 1
    row_filter: str | None = None

    def schema(self) -> StructType:
        """Return the user's columns."""
        return self.frame.drop(*HIDDEN_COLUMNS).schema


@dataclass(frozen=True, kw_only=True)
class OutputFrame:
    """The rows and control tuples of one output of an operator."""

    frame: DataFrame
    output: str
    columns: StructType

    def select_output(self) -> DataFrame:
        """Return the frame of this output, including progress rows."""
        from pyspark.sql import functions

        return self.frame.where(
            (functions.col("output") == self.output) | (functions.col("kind") == PROGRESS)
        )

    def schema(self) -> StructType:
        """Return the user's columns."""
        return self.columns

    def rows(self) -> RowsFrame:
        """Return the output as rows with control rows among them."""
        read = OutputRowsReader(output=self.output, schema=spark_to_arrow(self.columns))
        frame = self.select_output().mapInArrow(read, mixed_schema(self.columns))
        return RowsFrame(frame=frame, mixed=True)


@dataclass(frozen=True, kw_only=True)
class ControlFrame:
    """A frame of control rows, separate from the frame of rows.

    Attributes:
        frame: the column ``_control``, and ``_seq`` if the control rows were among rows.
        immediate: how ``IMMEDIATE`` tuples in it are handled.
    """

    frame: DataFrame
    immediate: str = REFUSE

    def with_positions(self) -> DataFrame:
        """Return the columns ``_seq`` and ``_control``."""
        from pyspark.sql import functions

        if SEQ in self.frame.columns:
            return self.frame.select(SEQ, CONTROL)
        return self.frame.select(functions.lit(0).cast("bigint").alias(SEQ), CONTROL)


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A stream of rows and control tuples.

    Made by ``PE.subscribe`` with ``control``, ``PE.aligned``, ``aligned.stream`` and
    ``aligned.control_stream``; each method returns a new one. Control tuples bypass or pass
    through every method, and stay in their window.
    """

    spark: SparkSession
    job: JobContext | None = None
    data: RowsFrame | OutputFrame | ImportFrame | None = None
    control_frames: tuple[ControlFrame, ...] = ()
    key: tuple[str, ...] = ()
    event_time: tuple[str, str] | None = None
    idle_after: float | None = None
    nodes: Mapping[str, OperatorNode] = field(default_factory=dict)
    watermark_operators: frozenset[str] = frozenset()
    carrier: Import | None = None

    # -- operations on rows ------------------------------------------------------------------

    def where(self, condition: str | Column) -> Stream:
        """Keep the rows for which a condition is true; control tuples pass.

        Raises:
            AlignedError: it calls a Python function, and control tuples are among the rows.
        """
        from pyspark.sql import functions

        rows = self._as_rows("where")
        predicate = functions.expr(condition) if isinstance(condition, str) else condition
        if rows.mixed:
            predicate = functions.col(CONTROL).isNotNull() | predicate
        frame = rows.frame.where(predicate)
        _check_functions("where", frame, rows)
        return self._with_frame(rows, frame)

    filter = where

    def select(self, *chosen: str | Column) -> Stream:
        """Choose and compute columns, row by row; control tuples pass.

        Raises:
            AlignedError: an expression makes several rows of one, or one of several, or calls a
                Python function, and control tuples are among the rows.
        """
        rows = self._as_rows("select")
        names = rows.frame.drop(*HIDDEN_COLUMNS).columns
        columns: list[Any] = []
        for one in chosen:
            columns += names if isinstance(one, str) and one == "*" else [one]
        hidden = [name for name in HIDDEN_COLUMNS if name in rows.frame.columns]
        projected = self._project("select", rows, lambda frame: frame.select(*columns, *hidden))
        if not rows.mixed:
            return projected
        guarded = [column for one in columns for column in _guard_selection(one, rows.frame)]
        return self._with_frame(rows, rows.frame.select(*guarded, *hidden))

    def with_columns(self, made: Mapping[str, Column]) -> Stream:
        """Add or replace columns, row by row; control tuples pass.

        Raises:
            AlignedError: as for ``select``, or a name is reserved.
        """
        rows = self._as_rows("with_columns")
        for name in made:
            if name.startswith(RESERVED):
                raise AlignedError(
                    f"with_columns would set {name}: names that begin with {', '.join(RESERVED)}"
                    " are reserved. Take another."
                )
        projected = self._project("with_columns", rows, lambda frame: frame.withColumns(dict(made)))
        if not rows.mixed:
            return projected
        guarded = {name: _null_in_control(column) for name, column in made.items()}
        return self._with_frame(rows, rows.frame.withColumns(guarded))

    def map_batches(self, function: BatchFunction, schema: Columns | None = None) -> Stream:
        """Call a function on Arrow batches of rows; control keeps its position between them.

        Args:
            function: takes a batch, returns one or several, with any number of rows.
            schema: columns of the result; None for the columns of its argument.
        """
        rows = self._as_rows("map_batches")
        columns = parse_columns(rows.schema() if schema is None else schema)
        mapper = BatchMapper(function=function, schema=spark_to_arrow(columns))
        frame = rows.frame.mapInArrow(mapper, mixed_schema(columns))
        return replace(self, data=RowsFrame(frame=frame, mixed=True))

    @property
    def has_control_log(self) -> bool:
        """Whether the stream carries the tuples of ``PE.send_control``."""
        return self.carrier is not None

    def without_control_log(self) -> Stream:
        """Return the stream of an import without tuples of ``PE.send_control``.

        Raises:
            AlignedError: the import is already open with them.
        """
        if self.carrier is not None and not isinstance(self.data, ImportFrame):
            raise AlignedError(
                f"import {self.carrier.port} is open with the control log: subscribe with"
                " control_log=False."
            )
        return replace(self, carrier=None)

    def union(self, *others: Stream) -> Stream:
        """Union streams: in each window, rows of the first precede those of the next.

        A stream of control alone may be among them; it needs no columns.

        Raises:
            AlignedError: the columns or keys differ, or there are too many streams.
        """
        united = self
        for other in others:
            united = _union_two(united, other)
        return united

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
        if immediate not in ("refuse", "end"):
            raise AlignedError(f"immediate is {immediate!r}: it has to be 'refuse' or 'end'.")
        way = AT_END if immediate == "end" else REFUSE
        rows = self._as_rows("through")
        control_frames = tuple(replace(one, immediate=way) for one in self.control_frames)
        if rows.mixed:
            control_rows = rows.frame.where(f"{CONTROL} IS NOT NULL").select(SEQ, CONTROL)
            control_frames = (*control_frames, ControlFrame(frame=control_rows, immediate=way))
        made: Any = function(self._without_control(rows))
        if not getattr(made, "isStreaming", False):
            raise AlignedError(
                f"the function of through returned {type(made).__name__}: it has to return a"
                " streaming DataFrame, derived from the one that it receives."
            )
        return replace(
            self, data=RowsFrame(frame=add_sequence(made)), control_frames=control_frames
        )

    # -- operators ---------------------------------------------------------------------------

    def key_by(self, *names: str) -> Stream:
        """Set the columns that decide the bucket, for the next operator.

        Raises:
            AlignedError: there is no such column.
        """
        self._check_columns(names, "key")
        return replace(self, key=tuple(names))

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
        self._check_columns([column], "event time")
        micros = in_microseconds(delay)
        if micros is None:
            raise AlignedError(f"{delay!r} is not a delay of a watermark: {FORMS}.")
        if self.nodes:
            raise AlignedError(
                "the watermark of a query is set before its first operator: call with_watermark"
                " on the streams that feed it; operators after it receive the time that has"
                " passed."
            )
        kind = self.schema()[column].dataType.typeName()
        if not kind.startswith("timestamp"):
            raise AlignedError(f"column {column} is {kind}: an event time is a timestamp.")
        wait = None if idle is None else in_microseconds(idle)
        if idle is not None and (wait is None or not 0 < wait <= MAX_IDLE_SECONDS * 1_000_000):
            shown = f"{idle:g} s" if isinstance(idle, int | float) else str(idle)
            raise AlignedError(
                f"a stream cannot be idle after {shown}: give more than 0 seconds, at most"
                f" {MAX_IDLE_SECONDS:,}, or leave idle out."
            )
        milliseconds = -(-micros // 1000)  # the unit of Spark's watermark
        return replace(
            self,
            event_time=(column, f"{milliseconds} milliseconds"),
            idle_after=None if wait is None else wait / 1_000_000,
        )

    def control_aware(self, operator: Callable[[], Any], **settings: Any) -> OperatorStream:
        """Run an operator with one input on this stream; see ``aligned.control_aware``."""
        from pe_agent.streams.operator_stream import control_aware

        return control_aware(operator, self, **settings)

    def with_side_inputs(self, **inputs: Given) -> SideInputs:
        """Join rows with other streams and tables; see ``pe_agent.side``.

        Args:
            inputs: side inputs by the names that functions use, made by ``side_map`` and similar
                functions. Their order decides at equal positions.
        """
        from pe_agent.streams.side_inputs import SideInputs

        return SideInputs(main=self, sources=inputs)

    # -- ends --------------------------------------------------------------------------------

    def schema(self) -> StructType:
        """Return the columns of the rows."""
        return self._require_data("a schema").schema()

    def to_df(self, *, again: bool = False) -> DataFrame:
        """Return the rows as a streaming DataFrame, without control.

        Args:
            again: the operators upstream may run in another query as well.

        Raises:
            AlignedError: an operator upstream is already used by a query.
        """
        data = self._require_data("rows")
        self.mark_used(again=again)
        if isinstance(data, OutputFrame):
            return select_output_rows(data.frame, data.output, data.columns)
        return self._without_control(self._as_rows("rows"))

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
        from pe_agent.aligned import sinks

        job, spec = self.require_job("publish"), publishing.export_spec(port, **settings)
        data = self._require_data("rows")
        self.mark_used(again=again)
        if isinstance(data, OutputFrame) and not self.control_frames:
            exports = {data.output: (port, data.columns, spec)}
            frame, sink = sinks.sink_for_outputs(data.frame, exports)
        else:
            frame, sink = sinks.sink_for_rows(
                self._as_rows("rows"), self.control_frames, port, spec
            )
        return publishing.start_query(
            job,
            frame,
            sink,
            checkpoint=checkpoint,
            trigger=trigger,
            query_name=query_name,
            redeclare=redeclare,
        )

    def mark_used(self, *, again: bool) -> None:
        """Record that a query is made of the stream; raise AlignedError as ``to_df`` does."""
        taken = [node.name for node in self.nodes.values() if node.is_used]
        if taken and not again:
            raise AlignedError(
                f"operator {taken[0]} is already part of a query. Another one runs it once more,"
                " with a state of its own: take several outputs with publish_outputs, or request"
                " it with again=True."
            )
        for node in self.nodes.values():
            node.is_used = True
            start_guard.allow_query(self.spark, node.mark)

    def require_job(self, what: str) -> JobContext:
        """Return the job of the stream; raise AlignedError if it was made without one."""
        if self.job is None:
            raise AlignedError(f"{what} needs a PE: make the stream with pe.aligned(frame).")
        return self.job

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"a stream with control tuples has no {name}: Spark would lose, double or reorder"
            " them there. Use where, select, with_columns, map_batches, union or an operator; or"
            " through(lambda frame: …) for the rows alone, or to_df() to drop control tuples."
        )

    # -- within ------------------------------------------------------------------------------

    def _require_data(self, what: str) -> RowsFrame | OutputFrame | ImportFrame:
        if self.data is None:
            raise AlignedError(
                f"a stream of control tuples alone has no rows, so it has not {what}: union it"
                " with a stream that has."
            )
        return self.data

    def _as_rows(self, what: str) -> RowsFrame:
        data = self._require_data(what)
        if isinstance(data, ImportFrame):
            return data.open_rows(self.carrier)
        return data.rows() if isinstance(data, OutputFrame) else data

    def _without_control(self, rows: RowsFrame) -> DataFrame:
        frame = rows.frame
        if rows.mixed:
            frame = frame.where(f"{CONTROL} IS NULL")
        return frame.drop(*HIDDEN_COLUMNS)

    def _with_frame(self, rows: RowsFrame, frame: DataFrame) -> Stream:
        return replace(self, data=replace(rows, frame=frame))

    def _project(
        self, what: str, rows: RowsFrame, make: Callable[[DataFrame], DataFrame]
    ) -> Stream:
        from pyspark.errors import AnalysisException

        several = AlignedError(
            f"{what} has an expression that does not return one row for each, such as explode or"
            " a sum; control tuples would be lost. Use map_batches, or through(lambda frame: …)"
            " for the rows alone."
        )
        try:
            frame = make(rows.frame)
        except AnalysisException as error:
            if "GROUP" not in (error.getCondition() or ""):
                raise
            raise several from error
        hidden = [name for name in frame.columns if name.startswith(RESERVED)]
        if sorted(hidden) != sorted(name for name in rows.frame.columns if name in HIDDEN_COLUMNS):
            raise AlignedError(
                f"{what} would create the columns {', '.join(frame.columns)}: names that begin"
                f" with {', '.join(RESERVED)} are reserved."
            )
        if not is_plain_projection(frame, rows.frame):
            raise several
        _check_functions(what, frame, rows)
        return self._with_frame(rows, frame)

    def _check_columns(self, names: Sequence[str], what: str) -> None:
        known = self.schema().names
        for name in names:
            if name not in known:
                raise AlignedError(
                    f"the {what} {name} is not a column of the stream; it has {', '.join(known)}."
                )


def _null_in_control(column: Column) -> Column:
    """Return a column that is computed for data rows only; it is null in control rows."""
    from pyspark.sql import functions

    return functions.when(functions.col(CONTROL).isNull(), column)


def _guard_selection(selected: str | Column, frame: DataFrame) -> list[Any]:
    """Return the columns of a selection, computed for data rows only.

    A name or a star computes nothing and is returned unchanged.
    """
    from pyspark.errors import AnalysisException

    names = frame.select(selected).columns
    if isinstance(selected, str) or len(names) != 1:
        return [selected]
    guarded = _null_in_control(selected).alias(names[0])
    try:
        frame.select(guarded)
    except AnalysisException:  # the star of a struct with one field
        return [selected]
    return [guarded]


def _check_functions(what: str, projection: DataFrame, rows: RowsFrame) -> None:
    """Raise on a Python function if control rows are mixed in: Spark would pass their nulls."""
    called = python_functions(projection, rows.frame) if rows.mixed else []
    if called:
        raise AlignedError(
            f"{what} calls the Python function {called[0]}, but control tuples are among the"
            " rows: Spark would also call it for them, with None in all columns. Call it with"
            " map_batches or through(lambda frame: …), which have the rows alone."
        )


def select_output_rows(frame: DataFrame, output: str, columns: StructType) -> DataFrame:
    """Return the rows of one output from an operator's frame."""
    from pyspark.sql import functions

    rows = frame.where((functions.col("output") == output) & (functions.col("kind") == ROWS))
    return rows.mapInArrow(OutputDataReader(output=output, schema=spark_to_arrow(columns)), columns)


def _union_two(left: Stream, right: Stream) -> Stream:
    from pe_agent.streams.operator_stream import merge_nodes

    nodes = merge_nodes([left, right])
    (left, right), carrier = choose_carrier([left, right])
    data = left.data if right.data is None else right.data
    if left.data is not None and right.data is not None:
        data = _union_data(left, right)
    if (left.event_time and right.watermark_operators) or (
        right.event_time and left.watermark_operators
    ):
        raise AlignedError(
            "a union of a stream with an event time and of one that an operator emits: give each"
            " an input of its own, because an operator's rows receive the time that has passed."
        )
    for what in ("key", "event_time"):
        low, high = getattr(left, what), getattr(right, what)
        if low and high and low != high:
            raise AlignedError(
                f"two streams of a union have the {what} {low} and {high}: give both the same, or"
                " give it to the union."
            )
    return replace(
        left,
        job=left.job or right.job,
        data=data,
        control_frames=(*left.control_frames, *right.control_frames),
        key=left.key or right.key,
        event_time=left.event_time or right.event_time,
        idle_after=max(
            (s for s in (left.idle_after, right.idle_after) if s is not None), default=None
        ),
        nodes=nodes,
        watermark_operators=left.watermark_operators | right.watermark_operators,
        carrier=carrier,
    )


def stream(frame: DataFrame, *, pe: Job | None = None) -> Stream:
    """Return a streaming DataFrame as a stream; rows are ordered by task, then within the task.

    Args:
        frame: a streaming DataFrame.
        pe: for publishing.

    Raises:
        AlignedError: it is not streaming, or a column has a reserved name.
    """
    if not frame.isStreaming:
        raise AlignedError("the DataFrame is not streaming: make it with readStream or subscribe.")
    return Stream(
        spark=frame.sparkSession,
        job=None if pe is None else pe.context,
        data=RowsFrame(frame=add_sequence(frame)),
    )


def _union_data(left: Stream, right: Stream) -> RowsFrame | ImportFrame:
    low, high = ({c.name: c.dataType for c in of.schema()} for of in (left, right))
    if low != high:
        raise AlignedError(
            f"two streams of a union have the columns {_describe_columns(low)} and"
            f" {_describe_columns(high)}: select the"
            " same, with the same types."
        )
    frames = (left.data, right.data)
    if isinstance(frames[0], ImportFrame) and isinstance(frames[1], ImportFrame):
        imports = (*frames[0].imports, *frames[1].imports)
        _check_ranks(len(imports))
        return ImportFrame(imports=imports)
    return _union_rows(left._as_rows("union"), right._as_rows("union"))


def _check_ranks(ranks: int) -> None:
    most = (1 << RANK_BITS) - 1  # the last rank is reserved for what follows all rows
    if ranks > most:
        raise AlignedError(f"a union of {ranks} streams: there can be {most}.")


def _union_rows(left: RowsFrame, right: RowsFrame) -> RowsFrame:
    from pyspark.sql import functions

    ranks = left.ranks + right.ranks
    _check_ranks(ranks)
    frames = [left.frame, right.frame.withColumn(SEQ, shift_sequence(left.ranks))]
    mixed = left.mixed or right.mixed
    if mixed:
        frames = [
            frame
            if CONTROL in frame.columns
            else frame.withColumn(CONTROL, functions.lit(None).cast("binary"))
            for frame in frames
        ]
    return RowsFrame(frame=frames[0].unionByName(frames[1]), mixed=mixed, ranks=ranks)


def _describe_columns(types: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {kind.simpleString()}" for name, kind in types.items())
