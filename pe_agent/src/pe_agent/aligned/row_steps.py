"""Steps on the rows of a plan: each returns a new plan, and control tuples keep their places."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pe_agent.aligned.data import HIDDEN_COLUMNS, ControlFrame, RowsFrame
from pe_agent.aligned.plan import StreamPlan
from pe_agent.aligned.queries.plan_check import is_plain_projection, python_functions
from pe_agent.aligned.runtime.frames import CONTROL, SEQ, add_sequence, mixed_schema
from pe_agent.aligned.runtime.hosting import parse_columns
from pe_agent.aligned.runtime.packer import AT_END, REFUSE
from pe_agent.aligned.runtime.unpacker import BatchFunction, BatchMapper
from pe_agent.datasource.schemas import Columns, spark_to_arrow
from streambroker_core.control.runtime.packing import RESERVED
from streambroker_core.control.tuples import ControlTuple
from streambroker_core.errors import AlignedError
from streambroker_core.model.durations import FORMS, Duration, in_microseconds

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MAX_IDLE_SECONDS = 100_000_000_000
"""Upper bound of ``idle`` in seconds: about 3,000 years."""


def where(plan: StreamPlan, condition: str | Column) -> StreamPlan:
    """Keep the rows for which a condition is true."""
    from pyspark.sql import functions

    rows = plan.as_rows("where")
    predicate = functions.expr(condition) if isinstance(condition, str) else condition
    if rows.mixed:
        predicate = functions.col(CONTROL).isNotNull() | predicate
    frame = rows.frame.where(predicate)
    _check_functions("where", frame, rows)
    return _with_frame(plan, rows, frame)


def select(plan: StreamPlan, chosen: Sequence[str | Column]) -> StreamPlan:
    """Choose and compute columns, row by row."""
    rows = plan.as_rows("select")
    names = rows.frame.drop(*HIDDEN_COLUMNS).columns
    columns: list[Any] = []
    for one in chosen:
        columns += names if isinstance(one, str) and one == "*" else [one]
    hidden = [name for name in HIDDEN_COLUMNS if name in rows.frame.columns]
    frame = _project("select", rows, lambda frame: frame.select(*columns, *hidden))
    if rows.mixed:
        guarded = [column for one in columns for column in _guard_selection(one, rows.frame)]
        frame = rows.frame.select(*guarded, *hidden)
    return _with_frame(plan, rows, frame)


def with_columns(plan: StreamPlan, made: Mapping[str, Column]) -> StreamPlan:
    """Add or replace columns, row by row."""
    rows = plan.as_rows("with_columns")
    for name in made:
        if name.startswith(RESERVED):
            raise AlignedError(
                f"with_columns would set {name}: names that begin with {', '.join(RESERVED)}"
                " are reserved. Take another."
            )
    frame = _project("with_columns", rows, lambda frame: frame.withColumns(dict(made)))
    if rows.mixed:
        guarded = {name: _null_in_control(column) for name, column in made.items()}
        frame = rows.frame.withColumns(guarded)
    return _with_frame(plan, rows, frame)


def map_batches(
    plan: StreamPlan,
    function: BatchFunction,
    schema: Columns | None = None,
    on_control: Callable[[ControlTuple], None] | None = None,
) -> StreamPlan:
    """Call a function on Arrow batches of rows, and another on control tuples among them."""
    rows = plan.as_rows("map_batches")
    columns = parse_columns(rows.schema() if schema is None else schema)
    mapper = BatchMapper(function=function, schema=spark_to_arrow(columns), on_control=on_control)
    frame = rows.frame.mapInArrow(mapper, mixed_schema(columns))
    return replace(plan, data=RowsFrame(frame=frame, mixed=True))


def transform(
    plan: StreamPlan, function: Callable[[DataFrame], DataFrame], immediate: str
) -> StreamPlan:
    """Call a function on the rows as a DataFrame; control bypasses it."""
    if immediate not in ("refuse", "end"):
        raise AlignedError(f"immediate is {immediate!r}: it has to be 'refuse' or 'end'.")
    way = AT_END if immediate == "end" else REFUSE
    rows = plan.as_rows("through")
    control_frames = tuple(replace(one, immediate=way) for one in plan.control_frames)
    if rows.mixed:
        control_rows = rows.frame.where(f"{CONTROL} IS NOT NULL").select(SEQ, CONTROL)
        control_frames = (*control_frames, ControlFrame(frame=control_rows, immediate=way))
    made: Any = function(rows.without_control())
    if not getattr(made, "isStreaming", False):
        raise AlignedError(
            f"the function of through returned {type(made).__name__}: it has to return a"
            " streaming DataFrame, derived from the one that it receives."
        )
    return replace(plan, data=RowsFrame(frame=add_sequence(made)), control_frames=control_frames)


def with_watermark(
    plan: StreamPlan, column: str, delay: Duration, idle: Duration | None
) -> StreamPlan:
    """Set the event time column, how much later rows may arrive, and when the stream is idle."""
    plan.check_columns([column], "event time")
    micros = in_microseconds(delay)
    if micros is None:
        raise AlignedError(f"{delay!r} is not a delay of a watermark: {FORMS}.")
    if plan.nodes:
        raise AlignedError(
            "the watermark of a query is set before its first operator: call with_watermark"
            " on the streams that feed it; operators after it receive the time that has"
            " passed."
        )
    kind = plan.schema()[column].dataType.typeName()
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
        plan,
        event_time=(column, f"{milliseconds} milliseconds"),
        idle_after=None if wait is None else wait / 1_000_000,
    )


def _with_frame(plan: StreamPlan, rows: RowsFrame, frame: DataFrame) -> StreamPlan:
    return replace(plan, data=replace(rows, frame=frame))


def _project(what: str, rows: RowsFrame, make: Callable[[DataFrame], DataFrame]) -> DataFrame:
    from pyspark.errors import AnalysisException

    several = AlignedError(
        f"{what} has an expression that does not return one row for each, such as explode or"
        " a sum; control tuples would be lost. Use map_batches, or transform(lambda frame: …)"
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
    return frame


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
            " map_batches or transform(lambda frame: …), which have the rows alone."
        )
