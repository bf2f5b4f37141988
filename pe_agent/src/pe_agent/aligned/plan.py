"""The plan of a stream: its frames of rows and control, and the operators before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from pe_agent.aligned.data import ControlFrame, OutputFrame, RowsFrame
from pe_agent.aligned.import_frame import Import, ImportFrame
from pe_agent.aligned.runtime.frames import CONTROL, SEQ, add_sequence, shift_sequence
from pe_agent.aligned.runtime.hosting import Hop
from streambroker_core.control.runtime.packing import RANK_BITS
from streambroker_core.errors import AlignedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

    from pe_agent.job.context import JobContext


@dataclass(frozen=True, kw_only=True)
class OperatorNode:
    """An operator in a graph.

    Attributes:
        frame: what it emits.
        schemas: columns of its outputs.
        mark: an alias in the plans of its queries only.
        hop: the operators that share its hop, up to itself.
        obstacle: why it does not share the hop of the operator before it.
        has_dead_letters: one of its outputs has what it refuses.
    """

    name: str
    frame: DataFrame
    schemas: dict[str, StructType]
    mark: str
    hop: Hop
    obstacle: str | None = None
    has_dead_letters: bool = False


@dataclass(frozen=True, kw_only=True)
class StreamPlan:
    """What a stream of rows and control tuples is made of; each step makes a new plan.

    Attributes:
        job: the job that publishes it, if known.
        data: None for a stream of control tuples alone.
        control_frames: control tuples that are not among the rows.
        key: columns that decide the bucket, for the next operator.
        event_time: column of the event time, and Spark's form of the delay.
        idle_after: seconds without a row after which it holds back no other input.
        nodes: the operators before it, by name.
        watermark_operators: the operators whose watermark it receives.
        carrier: the import that brings the control log.
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

    def require_data(self, what: str) -> RowsFrame | OutputFrame | ImportFrame:
        """Return the data; raise AlignedError if it is control tuples alone."""
        if self.data is None:
            raise AlignedError(
                f"a stream of control tuples alone has no rows, so it has not {what}: union it"
                " with a stream that has."
            )
        return self.data

    def require_job(self, what: str) -> JobContext:
        """Return the job; raise AlignedError if the stream was made without a PE."""
        if self.job is None:
            raise AlignedError(f"{what} needs a PE: make the stream with pe.stream(frame).")
        return self.job

    def schema(self) -> StructType:
        """Return the columns of the rows."""
        return self.require_data("a schema").schema()

    def as_rows(self, what: str) -> RowsFrame:
        """Return the data as a frame of rows; an import is opened."""
        data = self.require_data(what)
        if isinstance(data, ImportFrame):
            return data.open_rows(self.carrier)
        return data.rows() if isinstance(data, OutputFrame) else data

    def without_control(self) -> DataFrame:
        """Return the rows alone, with the user's columns."""
        data = self.require_data("rows")
        return (data if isinstance(data, OutputFrame) else self.as_rows("rows")).without_control()

    def without_control_log(self) -> StreamPlan:
        """Return the plan without the control log; raise AlignedError if it is open with it."""
        if self.carrier is not None and not isinstance(self.data, ImportFrame):
            raise AlignedError(
                f"import {self.carrier.port} is open with the control log: subscribe with"
                " control_log=False."
            )
        return replace(self, carrier=None)

    def last_operator(self) -> OperatorNode | None:
        """Return the operator that it is an output of; None if another step follows it."""
        if not isinstance(self.data, OutputFrame):
            return None
        return next(node for node in self.nodes.values() if node.frame is self.data.frame)

    def check_columns(self, names: Sequence[str], what: str) -> None:
        """Raise AlignedError if one of the names is not a column."""
        known = self.schema().names
        for name in names:
            if name not in known:
                raise AlignedError(
                    f"the {what} {name} is not a column of the stream; it has {', '.join(known)}."
                )

    def explain_hops(self) -> list[str]:
        """Return a sentence for each hop of the operators before it."""
        hops = {name: [one.name for one in node.hop.operators] for name, node in self.nodes.items()}
        inner = {name for names in hops.values() for name in names[:-1]}
        lines = []
        for last, names in hops.items():
            if last not in inner:
                what = " and ".join([", ".join(names[:-1]), last]) if names[1:] else last
                shared = "share one hop" if names[1:] else "has a hop of its own"
                obstacle = self.nodes[names[0]].obstacle
                lines.append(f"{what} {shared}{f': {obstacle}' if obstacle else ''}.")
        return lines

    def union(self, *others: StreamPlan) -> StreamPlan:
        """Return the union; rows of the first precede those of the next in each window."""
        united = self
        for other in others:
            united = _union_two(united, other)
        return united


class Planned(Protocol):
    """A stream."""

    @property
    def plan(self) -> StreamPlan:
        """Its plan."""


def plan_of(stream: Planned | DataFrame, job: JobContext | None = None) -> StreamPlan:
    """Return the plan of a stream, or of a streaming DataFrame.

    Raises:
        AlignedError: it is not streaming, or a column has a reserved name.
    """
    source: Any = stream
    plan = getattr(source, "plan", None)
    if isinstance(plan, StreamPlan):
        return plan
    if not source.isStreaming:
        raise AlignedError("the DataFrame is not streaming: make it with readStream or subscribe.")
    rows = RowsFrame(frame=add_sequence(source))
    return StreamPlan(spark=source.sparkSession, job=job, data=rows)


def merge_nodes(plans: Iterable[StreamPlan]) -> dict[str, OperatorNode]:
    """Return the operators upstream by name; raise AlignedError if two have the same name."""
    merged: dict[str, OperatorNode] = {}
    for plan in plans:
        for name, node in plan.nodes.items():
            if merged.setdefault(name, node) is not node:
                raise AlignedError(
                    f"two operators of the query have the name {name}: give one of them another"
                    " name=."
                )
    return merged


def choose_carrier(plans: Sequence[StreamPlan]) -> tuple[list[StreamPlan], Import | None]:
    """Choose the one import of a query that brings the control log; the others are set not to.

    An import that is already open is preferred, else the first that may bring it. Two open ones
    raise AlignedError.
    """
    chosen = list(plans)
    opened = {
        id(one.carrier): one.carrier
        for one in chosen
        if one.carrier is not None and not isinstance(one.data, ImportFrame)
    }
    if len(opened) > 1:
        first, second, *_ = opened.values()
        raise AlignedError(
            f"the imports {first.port} and {second.port} of one query both bring the control log,"
            " so each tuple of pe.operators.send would come twice: subscribe to one of them with"
            " control_log=False."
        )
    keep = next(iter(opened.values()), None)
    for at, one in enumerate(chosen):
        if one.carrier is not None and isinstance(one.data, ImportFrame):
            if keep is None:
                keep = one.carrier
            else:
                chosen[at] = one.without_control_log()
    return chosen, keep


def _union_two(left: StreamPlan, right: StreamPlan) -> StreamPlan:
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


def _union_data(left: StreamPlan, right: StreamPlan) -> RowsFrame | ImportFrame:
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
    return _union_rows(left.as_rows("union"), right.as_rows("union"))


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


def _describe_columns(types: Mapping[str, DataType]) -> str:
    return ", ".join(f"{name} {kind.simpleString()}" for name, kind in types.items())
