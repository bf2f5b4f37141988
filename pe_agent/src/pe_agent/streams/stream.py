"""A streaming DataFrame with control tuples in it, which no operation of Spark's can lose.

>>> stream = pe.aligned(frame).key_by("symbol")  # doctest: +SKIP
>>> alerts = stream.where("price > 0").control_aware(Multiply)  # doctest: +SKIP
>>> alerts.publish("alerts", checkpoint="…")  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pe_agent.aligned.errors import AlignedError
from pe_agent.aligned.queries import start_guard as starts
from pe_agent.aligned.queries.plan_check import is_plain_projection, python_functions
from pe_agent.aligned.runtime.frames import (
    CONTROL,
    NOTES,
    ROWS,
    SEQ,
    arrow_of,
    mixed_of,
    numbered,
    shifted,
)
from pe_agent.aligned.runtime.hosting import columns
from pe_agent.aligned.runtime.packer import AT_END, REFUSED
from pe_agent.aligned.runtime.unpacker import BatchFunction, DataOf, OnBatches, RowsOf
from pe_agent.job import publish as publishing
from pe_agent.streams.import_stream import Import, Imported, one_carrier
from streambroker_core.control.runtime.packing import RANK_BITS, RESERVED
from streambroker_core.model.durations import FORMS, Duration, in_microseconds

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from pe_agent.datasource.schemas import Columns
    from pe_agent.pe import PE
    from pe_agent.streams.operator_stream import Node, OperatorStream
    from pe_agent.streams.side_input import Given
    from pe_agent.streams.side_inputs import SideInputs

HIDDEN = (SEQ, CONTROL)
LONGEST = 100_000_000_000
"""Seconds that a time may have: about 3,000 years."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A frame of rows.

    Attributes:
        frame: the user's columns, ``_seq``, and ``_control`` if it is mixed.
        mixed: control rows are among the rows.
        ranks: of how many frames it is a union.
        needed: filter of the rows that an operator on them has to see; None for all.
    """

    frame: DataFrame
    mixed: bool = False
    ranks: int = 1
    needed: str | None = None

    def schema(self) -> StructType:
        """Return the user's columns."""
        return self.frame.drop(*HIDDEN).schema


@dataclass(frozen=True, kw_only=True)
class Emitted:
    """What one output of an operator emits."""

    frame: DataFrame
    output: str
    columns: StructType

    def of_output(self) -> DataFrame:
        """Return its rows alone, notes among them."""
        from pyspark.sql import functions

        return self.frame.where(
            (functions.col("output") == self.output) | (functions.col("kind") == NOTES)
        )

    def schema(self) -> StructType:
        """Return the user's columns."""
        return self.columns

    def rows(self) -> Rows:
        """Return it as rows."""
        read = RowsOf(output=self.output, schema=arrow_of(self.columns))
        frame = self.of_output().mapInArrow(read, mixed_of(self.columns))
        return Rows(frame=frame, mixed=True)


@dataclass(frozen=True, kw_only=True)
class Beside:
    """A frame of control rows that travels beside the rows.

    Attributes:
        frame: the column ``_control``, and ``_seq`` if it has been among rows.
        immediate: what becomes of ``IMMEDIATE`` tuples in it.
    """

    frame: DataFrame
    immediate: str = REFUSED

    def placed(self) -> DataFrame:
        """Return the columns ``_seq`` and ``_control``."""
        from pyspark.sql import functions

        if SEQ in self.frame.columns:
            return self.frame.select(SEQ, CONTROL)
        return self.frame.select(functions.lit(0).cast("bigint").alias(SEQ), CONTROL)


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A stream of rows and control tuples.

    Made by ``PE.subscribe`` with ``control``, ``PE.aligned``, ``aligned.streams`` and
    ``aligned.control_stream``; each method returns a new one. Control tuples go around or through
    every method, in their window.
    """

    spark: SparkSession
    pe: PE | None = None
    data: Rows | Emitted | Imported | None = None
    beside: tuple[Beside, ...] = ()
    key: tuple[str, ...] = ()
    event_time: tuple[str, str] | None = None
    idle: float | None = None
    nodes: Mapping[str, Node] = field(default_factory=dict)
    clocks: frozenset[str] = frozenset()
    carrier: Import | None = None

    # -- operations on rows ------------------------------------------------------------------

    def where(self, condition: str | Column) -> Stream:
        """Keep the rows for which a condition is true; control goes on.

        Raises:
            AlignedError: it calls a Python function, and control tuples are among the rows.
        """
        from pyspark.sql import functions

        rows = self._rows("where")
        found = functions.expr(condition) if isinstance(condition, str) else condition
        if rows.mixed:
            found = functions.col(CONTROL).isNotNull() | found
        frame = rows.frame.where(found)
        _check_functions("where", frame, rows)
        return self._with(rows, frame)

    filter = where

    def select(self, *chosen: str | Column) -> Stream:
        """Choose and compute columns, row by row; control goes on.

        Raises:
            AlignedError: an expression makes several rows of one, or one of several, or calls a
                Python function, and control tuples are among the rows.
        """
        rows = self._rows("select")
        names = rows.frame.drop(*HIDDEN).columns
        given: list[Any] = []
        for one in chosen:
            given += names if isinstance(one, str) and one == "*" else [one]
        hidden = [name for name in HIDDEN if name in rows.frame.columns]
        made = self._projected("select", rows, lambda frame: frame.select(*given, *hidden))
        if not rows.mixed:
            return made
        guarded = [column for one in given for column in _guarded(one, rows.frame)]
        return self._with(rows, rows.frame.select(*guarded, *hidden))

    def with_columns(self, made: Mapping[str, Column]) -> Stream:
        """Add or replace columns, row by row; control goes on.

        Raises:
            AlignedError: as for ``select``.
        """
        rows = self._rows("with_columns")
        for name in made:
            if name.startswith(RESERVED):
                raise AlignedError(
                    f"with_columns would set {name}: names that begin with {', '.join(RESERVED)}"
                    " are reserved. Take another."
                )
        found = self._projected("with_columns", rows, lambda frame: frame.withColumns(dict(made)))
        if not rows.mixed:
            return found
        guarded = {name: _of_rows(column) for name, column in made.items()}
        return self._with(rows, rows.frame.withColumns(guarded))

    def map_batches(self, function: BatchFunction, schema: Columns | None = None) -> Stream:
        """Call a function on Arrow batches of rows; control stays in its place between them.

        Args:
            function: takes a batch, returns one or several, with any number of rows.
            schema: columns of what it returns; None for those that it is given.
        """
        rows = self._rows("map_batches")
        made = columns(rows.schema() if schema is None else schema)
        on = OnBatches(function=function, schema=arrow_of(made))
        frame = rows.frame.mapInArrow(on, mixed_of(made))
        return replace(self, data=Rows(frame=frame, mixed=True))

    @property
    def has_control_log(self) -> bool:
        """Whether tuples of ``PE.send_control`` come by it."""
        return self.carrier is not None

    def without_control_log(self) -> Stream:
        """Return the stream of an import without tuples of ``PE.send_control``.

        Raises:
            AlignedError: it is open with them already.
        """
        if self.carrier is not None and not isinstance(self.data, Imported):
            raise AlignedError(
                f"import {self.carrier.port} is open with the control log: subscribe with"
                " control_log=False."
            )
        return replace(self, carrier=None)

    def union(self, *others: Stream) -> Stream:
        """Put streams together: rows of the first stand before those of the next in each window.

        A stream of control alone may be among them; it needs no columns.

        Raises:
            AlignedError: the columns or keys differ, or there are too many streams.
        """
        found = self
        for other in others:
            found = _two(found, other)
        return found

    def through(
        self, function: Callable[[DataFrame], DataFrame], *, immediate: str = "end"
    ) -> Stream:
        """Call a function on the rows as a DataFrame; control goes around and joins its window.

        For code that knows nothing of control. ``END_WINDOW``, ``BEGIN`` and ``AT_TIME`` tuples
        lose nothing. ``IMMEDIATE`` tuples have no place between rows that are new.

        Args:
            function: takes and returns a streaming DataFrame.
            immediate: deliver such tuples at the ``end`` of the window's rows, in the order of
                their emission, or ``refuse`` them: the query fails at the first one.

        Raises:
            AlignedError: what it returns is no streaming DataFrame, or has a reserved column.
        """
        if immediate not in ("refuse", "end"):
            raise AlignedError(f"immediate is {immediate!r}: it has to be 'refuse' or 'end'.")
        way = AT_END if immediate == "end" else REFUSED
        rows = self._rows("through")
        beside = tuple(replace(one, immediate=way) for one in self.beside)
        if rows.mixed:
            told = rows.frame.where(f"{CONTROL} IS NOT NULL").select(SEQ, CONTROL)
            beside = (*beside, Beside(frame=told, immediate=way))
        made: Any = function(self._plain(rows))
        if not getattr(made, "isStreaming", False):
            raise AlignedError(
                f"the function of through gave {type(made).__name__}: it has to return a streaming"
                " DataFrame, made of the one that it is given."
            )
        return replace(self, data=Rows(frame=numbered(made)), beside=beside)

    # -- operators ---------------------------------------------------------------------------

    def key_by(self, *names: str) -> Stream:
        """Say which columns decide the bucket, for the next operator.

        Raises:
            AlignedError: there is no such column.
        """
        self._has(names, "key")
        return replace(self, key=tuple(names))

    def with_watermark(
        self, column: str, delay: Duration, *, idle: Duration | None = None
    ) -> Stream:
        """Say which column is the event time, and how much later rows may come.

        Args:
            column: a timestamp.
            delay: a duration, as ``10 seconds``, ``10s`` or a timedelta.
            idle: a duration by the clock without a row, after which the stream no longer holds the
                time of the operator's other inputs; None for never. Rows that come then may be
                late.

        Raises:
            AlignedError: there is no such column, it is no time, or an operator was before; or
                ``delay`` or ``idle`` is no duration.
        """
        self._has([column], "event time")
        micros = in_microseconds(delay)
        if micros is None:
            raise AlignedError(f"{delay!r} is no delay of a watermark: {FORMS}.")
        if self.nodes:
            raise AlignedError(
                "the watermark of a query is set before its first operator: call with_watermark on"
                " what feeds it; operators that follow are told what time has passed."
            )
        kind = self.schema()[column].dataType.typeName()
        if not kind.startswith("timestamp"):
            raise AlignedError(f"column {column} is {kind}: an event time is a timestamp.")
        wait = None if idle is None else in_microseconds(idle)
        if idle is not None and (wait is None or not 0 < wait <= LONGEST * 1_000_000):
            shown = f"{idle:g} s" if isinstance(idle, int | float) else str(idle)
            raise AlignedError(
                f"a stream cannot be idle after {shown}: give more than 0 seconds, at most"
                f" {LONGEST:,}, or leave idle out."
            )
        milliseconds = -(-micros // 1000)  # of which Spark's watermark is made
        return replace(
            self,
            event_time=(column, f"{milliseconds} milliseconds"),
            idle=None if wait is None else wait / 1_000_000,
        )

    def control_aware(self, operator: Callable[[], Any], **settings: Any) -> OperatorStream:
        """Run an operator with one input on this stream; see ``operators.control_aware``."""
        from pe_agent.streams.operator_stream import control_aware

        return control_aware(operator, self, **settings)

    def with_side_inputs(self, **inputs: Given) -> SideInputs:
        """Let rows meet other streams and tables; see ``pe_agent.side``.

        Args:
            inputs: by the names under which functions ask for them; their order is the order at
                equal places. Made by ``side_map`` and its like.
        """
        from pe_agent.streams.side_inputs import SideInputs

        return SideInputs(main=self, given=inputs)

    # -- ends --------------------------------------------------------------------------------

    def schema(self) -> StructType:
        """Return the columns of its rows."""
        return self._some("a schema").schema()

    def to_df(self, *, again: bool = False) -> DataFrame:
        """Return the rows as a streaming DataFrame, without control.

        Args:
            again: the operators behind it may run in another query as well.

        Raises:
            AlignedError: an operator behind it has been given to a query already.
        """
        data = self._some("rows")
        self.use(again=again)
        if isinstance(data, Emitted):
            return data_of(data.frame, data.output, data.columns)
        return self._plain(self._rows("rows"))

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
            again: the operators behind it may run in another query as well.
            trigger: as for ``PE.publish``, like ``query_name`` and ``redeclare``.
            query_name: name of the query.
            redeclare: overwrite the Export that exists.
            settings: of the export, as ``PE.publish`` has them.

        Raises:
            AlignedError: the stream was made without a PE, or ``to_df`` refuses.
        """
        from pe_agent.aligned import sinks

        pe, spec = self.started_pe("publish"), publishing.export_spec(port, **settings)
        data = self._some("rows")
        self.use(again=again)
        if isinstance(data, Emitted) and not self.beside:
            exports = {data.output: (port, data.columns, spec)}
            frame, sink = sinks.of_outputs(data.frame, exports)
        else:
            frame, sink = sinks.of_rows(self._rows("rows"), self.beside, port, spec)
        return publishing.start(
            pe,
            frame,
            sink,
            checkpoint=checkpoint,
            trigger=trigger,
            query_name=query_name,
            redeclare=redeclare,
        )

    def use(self, *, again: bool) -> None:
        """Note that a query is made of it.

        Raises:
            AlignedError: an operator behind it has been given to a query already.
        """
        taken = [node.name for node in self.nodes.values() if node.taken]
        if taken and not again:
            raise AlignedError(
                f"operator {taken[0]} has been given to a query already. Another one runs it once"
                " more, with a state of its own: take several outputs with publish_outputs, or ask"
                " for it with again=True."
            )
        for node in self.nodes.values():
            node.taken = True
            starts.allow(self.spark, node.mark)

    def started_pe(self, what: str) -> PE:
        """Return the PE that it was made with.

        Raises:
            AlignedError: there is none.
        """
        if self.pe is None:
            raise AlignedError(f"{what} needs a PE: make the stream with pe.aligned(frame).")
        return self.pe

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"a stream with control tuples has no {name}: Spark would lose, double or reorder them"
            " there. Use where, select, with_columns, map_batches, union or an operator; or"
            " through(lambda frame: …) for the rows alone, or to_df() to leave control behind."
        )

    # -- within ------------------------------------------------------------------------------

    def _some(self, what: str) -> Rows | Emitted | Imported:
        if self.data is None:
            raise AlignedError(
                f"a stream of control tuples alone has no rows, so it has not {what}: union it"
                " with a stream that has."
            )
        return self.data

    def _rows(self, what: str) -> Rows:
        data = self._some(what)
        if isinstance(data, Imported):
            return data.rows(self.carrier)
        return data.rows() if isinstance(data, Emitted) else data

    def _plain(self, rows: Rows) -> DataFrame:
        frame = rows.frame
        if rows.mixed:
            frame = frame.where(f"{CONTROL} IS NULL")
        return frame.drop(*HIDDEN)

    def _with(self, rows: Rows, frame: DataFrame) -> Stream:
        return replace(self, data=replace(rows, frame=frame))

    def _projected(self, what: str, rows: Rows, make: Callable[[DataFrame], DataFrame]) -> Stream:
        from pyspark.errors import AnalysisException

        several = AlignedError(
            f"{what} has an expression that does not make one row of each, such as explode or a"
            " sum; control tuples would be lost. Use map_batches, or through(lambda frame: …) for"
            " the rows alone."
        )
        try:
            frame = make(rows.frame)
        except AnalysisException as error:
            if "GROUP" not in (error.getCondition() or ""):
                raise
            raise several from error
        hidden = [name for name in frame.columns if name.startswith(RESERVED)]
        if sorted(hidden) != sorted(name for name in rows.frame.columns if name in HIDDEN):
            raise AlignedError(
                f"{what} would make the columns {', '.join(frame.columns)}: names that begin with"
                f" {', '.join(RESERVED)} are reserved."
            )
        if not is_plain_projection(frame, rows.frame):
            raise several
        _check_functions(what, frame, rows)
        return self._with(rows, frame)

    def _has(self, names: Sequence[str], what: str) -> None:
        known = self.schema().names
        for name in names:
            if name not in known:
                raise AlignedError(
                    f"the {what} {name} is no column of the stream; it has {', '.join(known)}."
                )


def _of_rows(column: Column) -> Column:
    """Return a column that is computed for rows of data only; it is null in control rows."""
    from pyspark.sql import functions

    return functions.when(functions.col(CONTROL).isNull(), column)


def _guarded(one: str | Column, frame: DataFrame) -> list[Any]:
    """Return what a selection stands for, computed for rows of data only.

    A name, and a star, compute nothing.
    """
    from pyspark.errors import AnalysisException

    names = frame.select(one).columns
    if isinstance(one, str) or len(names) != 1:
        return [one]
    guarded = _of_rows(one).alias(names[0])
    try:
        frame.select(guarded)
    except AnalysisException:  # the star of a struct with one field
        return [one]
    return [guarded]


def _check_functions(what: str, made: DataFrame, rows: Rows) -> None:
    """Refuse what Spark would do to control rows: call a Python function with their nulls."""
    found = python_functions(made, rows.frame) if rows.mixed else []
    if found:
        raise AlignedError(
            f"{what} calls the Python function {found[0]}, and control tuples are among the rows:"
            " Spark would call it for them, too, with None in all columns. Call it with map_batches"
            " or through(lambda frame: …), which have the rows alone."
        )


def data_of(frame: DataFrame, output: str, columns: StructType) -> DataFrame:
    """Return the rows of one output, of what an operator emits."""
    from pyspark.sql import functions

    rows = frame.where((functions.col("output") == output) & (functions.col("kind") == ROWS))
    return rows.mapInArrow(DataOf(output=output, schema=arrow_of(columns)), columns)


def _two(one: Stream, other: Stream) -> Stream:
    from pe_agent.streams.operator_stream import joint_nodes

    nodes = joint_nodes([one, other])
    (one, other), carrier = one_carrier([one, other])
    data = one.data if other.data is None else other.data
    if one.data is not None and other.data is not None:
        data = _united(one, other)
    if (one.event_time and other.clocks) or (other.event_time and one.clocks):
        raise AlignedError(
            "a union of a stream with an event time and of one that an operator emits: give each an"
            " input of its own, because an operator's rows are told what time has passed."
        )
    for what in ("key", "event_time"):
        low, high = getattr(one, what), getattr(other, what)
        if low and high and low != high:
            raise AlignedError(
                f"two streams of a union have the {what} {low} and {high}: give both the same, or"
                " give it to the union."
            )
    return replace(
        one,
        pe=one.pe or other.pe,
        data=data,
        beside=(*one.beside, *other.beside),
        key=one.key or other.key,
        event_time=one.event_time or other.event_time,
        idle=max((s for s in (one.idle, other.idle) if s is not None), default=None),
        nodes=nodes,
        clocks=one.clocks | other.clocks,
        carrier=carrier,
    )


def stream(frame: DataFrame, *, pe: PE | None = None) -> Stream:
    """Take up a streaming DataFrame; its rows are in the order of tasks and of rows in them.

    Args:
        frame: a streaming DataFrame.
        pe: for publishing.

    Raises:
        AlignedError: it is not streaming, or a column has a reserved name.
    """
    if not frame.isStreaming:
        raise AlignedError("the DataFrame is not streaming: make it with readStream or subscribe.")
    return Stream(spark=frame.sparkSession, pe=pe, data=Rows(frame=numbered(frame)))


def _united(left: Stream, right: Stream) -> Rows | Imported:
    low, high = ({c.name: c.dataType for c in of.schema()} for of in (left, right))
    if low != high:
        raise AlignedError(
            f"two streams of a union have the columns {_told(low)} and {_told(high)}: select the"
            " same, with the same types."
        )
    found = (left.data, right.data)
    if isinstance(found[0], Imported) and isinstance(found[1], Imported):
        imports = (*found[0].imports, *found[1].imports)
        _check_ranks(len(imports))
        return Imported(imports=imports)
    return _united_rows(left._rows("union"), right._rows("union"))


def _check_ranks(ranks: int) -> None:
    most = (1 << RANK_BITS) - 1  # the last rank is for what comes behind all rows
    if ranks > most:
        raise AlignedError(f"a union of {ranks} streams: there can be {most}.")


def _united_rows(one: Rows, other: Rows) -> Rows:
    from pyspark.sql import functions

    ranks = one.ranks + other.ranks
    _check_ranks(ranks)
    frames = [one.frame, other.frame.withColumn(SEQ, shifted(one.ranks))]
    mixed = one.mixed or other.mixed
    if mixed:
        frames = [
            frame
            if CONTROL in frame.columns
            else frame.withColumn(CONTROL, functions.lit(None).cast("binary"))
            for frame in frames
        ]
    return Rows(frame=frames[0].unionByName(frames[1]), mixed=mixed, ranks=ranks)


def _told(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {kind.simpleString()}" for name, kind in given.items())
