"""A streaming DataFrame with control tuples in it that no Spark operation can lose.

>>> stream = pe.stream(frame).key_by("symbol")  # doctest: +SKIP
>>> alerts = stream.where("price > 0").apply(Multiply)  # doctest: +SKIP
>>> alerts.publish("alerts", checkpoint="…")  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pe_agent.aligned import row_steps
from pe_agent.aligned.control_source import ControlFileSource, control_source_plan
from pe_agent.aligned.data import OutputFrame
from pe_agent.aligned.operator_plan import OperatorFactory, plan_operator
from pe_agent.aligned.options import OperatorOptions
from pe_agent.aligned.plan import OperatorNode, StreamPlan, plan_of
from pe_agent.aligned.runtime.unpacker import BatchFunction
from pe_agent.aligned.sinks import sink_for_outputs, sink_for_rows
from pe_agent.datasource.schemas import Columns
from pe_agent.job.port_settings import ExportSettings, Property, export_spec
from pe_agent.job.publish import Publication, QueryStart, start_query
from pe_agent.log.control_file import read_log_id
from pe_agent.spark.query_failure import with_cause_first
from pe_agent.streams import old_methods
from pe_agent.streams.dead_letters import check_published, letter_properties
from pe_agent.streams.side_inputs import SideInputs
from streambroker_core.control.operators.dead_letters import DEAD_LETTERS
from streambroker_core.deprecation import deprecated_name
from streambroker_core.errors import AlignedError
from streambroker_core.model.durations import Duration

if TYPE_CHECKING:
    from typing import Unpack

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from pe_agent.cep.discovery.manager import OutcomeListener
    from pe_agent.cep.key_selectors import Key
    from pe_agent.cep.pattern_plan import MatchSettings, RuleSource
    from pe_agent.cep.query_rules import QueryRules
    from pe_agent.job.context import Job
    from pe_agent.streams.side_input import Given
    from streambroker_core.cep.pattern.pattern import Pattern
    from streambroker_core.cep.pattern.rule import PatternProcessor

_OLD_NAMES = {"control_aware": "pe_agent.streams.old_names"}


@dataclass(frozen=True, repr=False)
class Stream:
    """A stream of rows and control tuples.

    Made by ``PE.subscribe_stream``, ``PE.stream``, ``stream`` and ``control_stream``; each method
    returns a new one. Control tuples bypass or pass through every method, and stay in their window.
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

    withColumns = with_columns  # noqa: N815 - Spark's name

    def map_batches(self, function: BatchFunction, schema: Columns | None = None) -> Stream:
        """Call a function on Arrow batches of rows; control keeps its position between them.

        Args:
            function: takes a batch, returns one or several, with any number of rows.
            schema: columns of the result; None for the columns of its argument.
        """
        return Stream(row_steps.map_batches(self.plan, function, schema))

    @property
    def has_control_log(self) -> bool:
        """Whether the stream carries the tuples of ``PE.operators.send``."""
        return self.plan.carrier is not None

    def without_control_log(self) -> Stream:
        """Return the stream of an import without tuples of ``PE.operators.send``.

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

    def transform(
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
        return Stream(row_steps.transform(self.plan, function, immediate))

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

    withWatermark = with_watermark  # noqa: N815 - Spark's name

    def apply(
        self,
        operator: OperatorFactory,
        *,
        name: str | None = None,
        schema: Columns | None = None,
        schemas: Mapping[str, Columns] | None = None,
        options: OperatorOptions | None = None,
    ) -> OperatorStream:
        """Run an operator with one input, and return its first output; ``apply`` takes several.

        Args:
            operator: its class, or a function that makes one; called in each window and bucket.
            name: unique in the query, fixed for a checkpoint; default is the name of its class.
            schema: columns of the first output; default is those of the stream.
            schemas: columns of the outputs, by tag.
            options: buckets, order, limits and reports.

        Raises:
            AlignedError, OperatorError: an argument does not fit; nothing was started.
        """
        return apply(operator, self, name=name, schema=schema, schemas=schemas, options=options)

    def match(
        self,
        pattern: Pattern | PatternProcessor,
        *,
        name: str = "pattern",
        timer: bool = True,
        **settings: Unpack[MatchSettings],
    ) -> PatternStream:
        """Find a pattern that does not change; a checkpoint of another loses its partial matches.

        Args:
            pattern: a pattern, or a rule; without a key of its own. Its Python functions need not
                be among ``functions``.
            name: name of the operator; also the rule's id, if a pattern is passed.
            timer: in processing time windows end by themselves, which takes one more source. Fixed
                for a checkpoint; False for one of an earlier release, which lacks that source.
            settings: ``key``, ``event_time``, ``tie_break``, ``functions``, ``push_down``,
                ``output``, ``timeouts`` and ``options``, as `MatchSettings` describes them.

        Raises:
            AlignedError: an argument does not fit; nothing was started.
        """
        from pe_agent.cep.pattern_plan import plan_match

        return PatternStream(*plan_match(self.plan, pattern, settings, name=name, timer=timer))

    def match_rules(
        self,
        rules: RuleSource,
        *,
        control_file: str | Path | None = None,
        selectors: Iterable[Key] = (),
        name: str = "patterns",
        on_outcomes: OutcomeListener | None = None,
        **settings: Unpack[MatchSettings],
    ) -> PatternStream:
        """Find the patterns of rules that change while the query runs.

        The rules found now apply before the first row. A change applies in all partitions from the
        same window on.

        Args:
            rules: a discoverer or its factory; it is closed with the query. A list of rules or of
                their documents stays unchanged while the query runs.
            control_file: file through which rules reach the query. It belongs to the query's
                checkpoint: keep both, or neither. None for a file in the directory of the stream's
                PE, by ``name``.
            selectors: keys that rules may have as well as ``key``. Rows are copied for each key.
            name: name of the operator, unique in the query and fixed for a checkpoint.
            on_outcomes: called at each update with a list of `RuleUpdate`, one for each rule.
            settings: as for `match`.

        Raises:
            AlignedError: an argument does not fit; nothing was started.
            DiscoveryError: the first rules cannot be read, and none were sent before.
        """
        from pe_agent.cep.pattern_plan import plan_match_rules

        found = plan_match_rules(
            self.plan,
            rules,
            settings,
            control_file=control_file,
            selectors=selectors,
            name=name,
            on_outcomes=on_outcomes,
        )
        return PatternStream(*found)

    def join_side(self, **inputs: Given) -> SideInputs[Stream, OperatorStream]:
        """Join rows with other streams and tables; see ``streambroker.side``.

        Args:
            inputs: side inputs by the names that functions use, made by ``side_map`` and similar
                functions. Their order decides at equal positions.

        Raises:
            SideDefinitionError: an input is not made by such a function.
        """
        return SideInputs(
            main=self.plan, sources=inputs, make_rows=Stream, make_operator=OperatorStream
        )

    control_aware = old_methods.control_aware_method
    through = old_methods.through
    with_side_inputs = old_methods.with_side_inputs

    # -- ends --------------------------------------------------------------------------------

    def schema(self) -> StructType:
        """Return the columns of the rows."""
        return self.plan.schema()

    def to_df(self, *, again: bool | None = None) -> DataFrame:
        """Return the rows as a streaming DataFrame, without control.

        It may feed several queries. Each runs the operators upstream with a state of its own.

        Args:
            again: deprecated: without effect.

        Raises:
            AlignedError: it is a stream of control tuples alone.
        """
        old_methods.ignore_again(again)
        return self.plan.without_control()

    def publish(
        self,
        port: str,
        *,
        checkpoint: str | Path,
        again: bool | None = None,
        trigger: Mapping[str, str | bool] | None = None,
        query_name: str | None = None,
        redeclare: bool = False,
        **settings: Unpack[ExportSettings],
    ) -> StreamingQuery:
        """Export rows and control tuples.

        Args:
            port: name of the export port.
            checkpoint: directory of the query's checkpoint.
            again: deprecated: without effect.
            trigger: as for ``PE.publish``, like ``query_name`` and ``redeclare``.
            query_name: name of the query.
            redeclare: overwrite the Export that exists.
            settings: settings of the export, as for ``PE.publish``.

        Raises:
            AlignedError: it has no PE, ``to_df`` refuses, or dead letters would be lost.
        """
        old_methods.ignore_again(again)
        plan, spec = check_published(self.plan), export_spec("publish", port, settings)
        job, data = plan.require_job("publish"), plan.require_data("rows")
        if isinstance(data, OutputFrame) and not plan.control_frames:
            export = Publication(port=port, columns=data.columns, spec=spec)
            frame, sink = sink_for_outputs(data.frame, {data.output: export})
        else:
            rows = plan.as_rows("rows")
            export = Publication(port=port, columns=rows.schema(), spec=spec)
            frame, sink = sink_for_rows(rows, plan.control_frames, export)
        start = QueryStart(checkpoint, trigger, query_name)
        return start_query(job, frame, sink, start, redeclare=redeclare)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_describe(self)})"

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(name if name.startswith("_") else _explain_missing(self, name))


def _describe(stream: Stream) -> str:
    """Return the columns of a stream."""
    if stream.plan.data is None:
        return "control tuples"
    return ", ".join(f"{one.name} {one.dataType.simpleString()}" for one in stream.schema().fields)


def _explain_missing(stream: Stream, name: str) -> str:
    """Return why a stream has no attribute of a name, and what to do."""
    from pyspark.sql import DataFrame

    if hasattr(DataFrame, name):
        return (
            f"a stream with control tuples has no {name}: Spark would lose, double or reorder"
            " them there. Use where, select, with_columns, map_batches, union or an operator; or"
            " transform(lambda frame: …) for the rows alone, or to_df() to drop control tuples."
        )
    near = get_close_matches(name, [one for one in dir(stream) if one[0] != "_"], n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    if name == "outputs":
        hint = " Outputs are of an operator: take them directly after apply, match or a join."
    return f"a {type(stream).__name__} has no {name}.{hint}"


class Outputs(Mapping[str, Stream]):
    """The outputs of an operator as streams, by tag."""

    def __init__(self, plan: StreamPlan, node: OperatorNode) -> None:
        self._plan, self._node = plan, node

    def __getitem__(self, tag: str) -> Stream:
        """Return an output.

        Raises:
            AlignedError: there is no output of that name.
        """
        schemas = self._node.schemas
        if tag not in schemas:
            raise AlignedError(
                f"operator {self._node.name} has no output {tag}; it has {', '.join(schemas)}."
            )
        data = OutputFrame(frame=self._node.frame, output=tag, columns=schemas[tag])
        return Stream(replace(self._plan, data=data))

    def get(self, tag: str, default: Any = None) -> Any:
        """Return an output, or ``default`` if there is none of that name."""
        return self[tag] if tag in self else default  # noqa: SIM401 - this is `get`

    def __contains__(self, tag: object) -> bool:
        return tag in self._node.schemas

    def __iter__(self) -> Iterator[str]:
        return iter(self._node.schemas)

    def __len__(self) -> int:
        return len(self._node.schemas)

    def __repr__(self) -> str:
        return f"Outputs({', '.join(self)})"


@dataclass(frozen=True, repr=False)
class OperatorStream(Stream):
    """The first output of an operator; the others are in ``outputs``.

    A join with tables alone needs no operator for its first output. Then ``plan_operator`` plans
    the one that its other outputs need.
    """

    plan_operator: Callable[[], StreamPlan] | None = field(default=None, kw_only=True)

    @property
    def outputs(self) -> Outputs:
        """All outputs of the operator by tag, for instance ``outputs["errors"]``.

        Raises:
            AlignedError: another step follows the operator.
        """
        return Outputs(self._operator_plan(), self.node())

    def explain(self) -> list[str]:
        """Return which operators up to this one share a hop and which do not, and why."""
        return self._operator_plan().explain_hops()

    __getitem__ = old_methods.output

    def __repr__(self) -> str:
        if self.plan_operator is not None:
            return f"{type(self).__name__}({_describe(self)}; no operator for these rows)"
        node = self.node()
        outputs = ", ".join(node.schemas)
        return f"{type(self).__name__}({node.name!r}: {_describe(self)}; outputs {outputs})"

    def publish_outputs(
        self,
        ports: Mapping[str, str],
        *,
        checkpoint: str | Path,
        again: bool | None = None,
        properties: Mapping[str, Mapping[str, Property]] | None = None,
        trigger: Mapping[str, str | bool] | None = None,
        query_name: str | None = None,
        redeclare: bool = False,
    ) -> StreamingQuery:
        """Export several outputs, with their control tuples, by one query.

        Each batch reaches each export once.

        Args:
            ports: export ports by output.
            checkpoint: directory of the query's checkpoint.
            again: deprecated: without effect.
            properties: properties of the exports, by output; optional for an export that exists.
                Those of ``dead_letters`` are added to ``kind``, ``operator`` and ``of``.
            trigger: as for ``PE.publish``, like ``query_name`` and ``redeclare``.
            query_name: name of the query.
            redeclare: overwrite the Exports that exist.

        Raises:
            AlignedError: there is no such output, properties name an output that is not published,
                two outputs have the same export, or dead letters would be lost.
        """
        old_methods.ignore_again(again)
        node, export_properties = self.node(), dict(properties or {})
        for output in ports:
            self.outputs[output]
        unpublished = [output for output in export_properties if output not in ports]
        if unpublished:
            raise AlignedError(
                f"properties are given for output {unpublished[0]}, which is not published."
            )
        check_published(self._operator_plan(), ports)
        if node.has_dead_letters:
            given = export_properties.get(DEAD_LETTERS)
            export_properties[DEAD_LETTERS] = letter_properties(node, ports, given)
        job = self.plan.require_job("publish_outputs")
        exports = {
            output: Publication(
                port=port,
                columns=node.schemas[output],
                spec=export_spec(
                    "publish_outputs", port, {"properties": export_properties.get(output)}
                ),
            )
            for output, port in ports.items()
        }
        frame, sink = sink_for_outputs(node.frame, exports)
        start = QueryStart(checkpoint, trigger, query_name)
        return start_query(job, frame, sink, start, redeclare=redeclare)

    def foreach_batch(
        self,
        function: Callable[[dict[str, DataFrame], int], None],
        *,
        checkpoint: str | Path,
        again: bool | None = None,
        trigger: Mapping[str, str | bool] | None = None,
        query_name: str | None = None,
    ) -> StreamingQuery:
        """Call a function in the driver for each window, with the rows of all outputs.

        Args:
            function: takes a DataFrame of each output by tag, and the window's number. After a
                crash it is called again for the last window, with the same rows: key its side
                effects by window number or by identity.
            checkpoint: directory of the query's checkpoint.
            again: deprecated: without effect.
            trigger: as for ``DataStreamWriter.trigger``.
            query_name: name of the query.

        Raises:
            AlignedError: another step follows the operator, or dead letters of an operator before
                it would be lost.
        """
        old_methods.ignore_again(again)
        node = self.node()
        schemas = dict(node.schemas)
        check_published(self._operator_plan(), schemas)

        def call(frame: DataFrame, window: int) -> None:
            frame = frame.persist()
            try:
                outputs = {
                    tag: OutputFrame(frame=frame, output=tag, columns=columns).without_control()
                    for tag, columns in schemas.items()
                }
                function(outputs, window)
            finally:
                frame.unpersist()

        writer = node.frame.writeStream.foreachBatch(call)
        start = QueryStart(checkpoint, trigger, query_name)
        return with_cause_first(start.configure(writer).start())

    for_each_window = old_methods.for_each_window

    def node(self) -> OperatorNode:
        """Return the operator; raise AlignedError if another step follows it."""
        node = self._operator_plan().last_operator()
        if node is None:
            raise AlignedError("outputs belong to an operator: take them directly after it.")
        return node

    def _operator_plan(self) -> StreamPlan:
        return self.plan if self.plan_operator is None else self.plan_operator()


@dataclass(frozen=True, repr=False)
class PatternStream(OperatorStream):
    """Matches; in ``outputs`` ``timeouts``, ``late``, ``errors`` and one for each function.

    Attributes:
        rules: the rules, kept in the driver.
    """

    rules: QueryRules

    processors = old_methods.processors


def apply(
    operator: OperatorFactory,
    inputs: Stream | Mapping[str, Stream],
    *,
    name: str | None = None,
    schema: Columns | None = None,
    schemas: Mapping[str, Columns] | None = None,
    options: OperatorOptions | None = None,
) -> OperatorStream:
    """Run an operator on streams.

    Args:
        operator: its class, or a function that makes one; called in each window and bucket.
        inputs: the stream of each input by name, or the one stream of the only input.
        name: name of the operator, unique in the query and fixed for a checkpoint; default is the
            name of its class.
        schema: columns of the first output; default is those of the only input.
        schemas: columns of the outputs, by tag.
        options: buckets, order, limits and reports.

    Returns:
        The first output; the others are in ``outputs``.

    Raises:
        AlignedError, OperatorError: an argument does not fit; nothing was started.
    """
    plans = (
        inputs.plan
        if isinstance(inputs, Stream)
        else {port: one.plan for port, one in inputs.items()}
    )
    return OperatorStream(
        plan_operator(operator, plans, name=name, schema=schema, schemas=schemas, options=options)
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


def __getattr__(name: str) -> Any:
    """Import an old name, with a warning."""
    return deprecated_name(__name__, name, _OLD_NAMES, "streambroker")
