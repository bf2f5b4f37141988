"""Operators on streams: what a user says of one, checked, and the streams that come out of it."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructType

from pe_agent.aligned.errors import AlignedError
from pe_agent.aligned.idleness import Pace, micros_of
from pe_agent.aligned.queries import jvm_prefilter as ahead
from pe_agent.aligned.runtime import hosting
from pe_agent.aligned.runtime.frames import CONTROL, arrow_of
from pe_agent.aligned.runtime.hosting import Feed
from pe_agent.aligned.runtime.packer import Packer, Repacker
from pe_agent.aligned.runtime.processor import APPLIED, COUNTED, Hosted
from pe_agent.datasource.schemas import Columns
from pe_agent.job import publish as publishing
from pe_agent.spark.query_failure import with_cause_first
from pe_agent.streams.import_stream import Imported, one_carrier
from pe_agent.streams.stream import Emitted, Rows, Stream, data_of
from streambroker_core.control.operators.operator import Input, Operator
from streambroker_core.control.runtime.buckets import Layout, layout_of
from streambroker_core.control.tuples import Limits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

BUCKETS = 64

Make = Callable[[], Operator]
"""Makes an operator: its class, or a function without arguments."""


@dataclass(kw_only=True)
class Node:
    """An operator in a graph.

    Attributes:
        name: its name, unique in a query.
        frame: what it emits.
        schemas: columns of each output.
        mark: stands in the plan of each query that runs it, and in no other.
        taken: a query has been made of it.
    """

    name: str
    frame: DataFrame
    schemas: dict[str, StructType]
    mark: str
    taken: bool = False


@dataclass(frozen=True, kw_only=True)
class OperatorStream(Stream):
    """The first output of an operator; its others by their tags: ``stream["errors"]``."""

    def __getitem__(self, output: str) -> Stream:
        """Return an output.

        Raises:
            AlignedError: there is none of that name.
        """
        node = self.node()
        if output not in node.schemas:
            raise AlignedError(
                f"operator {node.name} has no output {output}; it has {', '.join(node.schemas)}."
            )
        return Stream(
            spark=self.spark,
            pe=self.pe,
            data=Emitted(frame=node.frame, output=output, columns=node.schemas[output]),
            nodes=self.nodes,
            clocks=self.clocks,
            carrier=self.carrier,
        )

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
            properties: of the exports, by output; those of an export that exists already may be
                left out.
            trigger: as for ``PE.publish``, like ``query_name`` and ``redeclare``.
            query_name: name of the query.
            redeclare: overwrite the Exports that exist.

        Raises:
            AlignedError: there is no such output, properties are of an output that is not
                published, two outputs are for one export, or ``to_df`` refuses.
        """
        from pe_agent.aligned.sinks import of_outputs

        node, told = self.node(), dict(properties or {})
        for output in ports:
            self[output]
        lost = [output for output in told if output not in ports]
        if lost:
            raise AlignedError(
                f"properties are given for output {lost[0]}, which is not published."
            )
        pe = self.started_pe("publish_outputs")
        exports = {
            output: (
                port,
                node.schemas[output],
                publishing.export_spec(port, properties=told.get(output)),
            )
            for output, port in ports.items()
        }
        frame, sink = of_outputs(node.frame, exports)
        self.use(again=again)
        return publishing.start(
            pe,
            frame,
            sink,
            checkpoint=checkpoint,
            trigger=trigger,
            query_name=query_name,
            redeclare=redeclare,
        )

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
                it is called again for the last window, with the same rows: what it does outside is
                to be named by window, or by identity.
            checkpoint: directory of the query's checkpoint.
            again: the operators may run in another query as well.
            trigger: as for ``DataStreamWriter.trigger``.
            query_name: name of the query.

        Raises:
            AlignedError: as for ``to_df``.
        """
        node = self.node()
        self.use(again=again)
        schemas = dict(node.schemas)

        def call(frame: DataFrame, window: int) -> None:
            frame = frame.persist()
            try:
                function(window, {tag: data_of(frame, tag, schemas[tag]) for tag in schemas})
            finally:
                frame.unpersist()

        writer = node.frame.writeStream.foreachBatch(call)
        writer = writer.option("checkpointLocation", str(checkpoint))
        if trigger is not None:
            writer = writer.trigger(**trigger)
        if query_name is not None:
            writer = writer.queryName(query_name)
        return with_cause_first(writer.start())

    def node(self) -> Node:
        """Return the operator.

        Raises:
            AlignedError: something stands behind it.
        """
        if not isinstance(self.data, Emitted):
            raise AlignedError("outputs are those of an operator: take them right behind it.")
        frame = self.data.frame
        return next(node for node in self.nodes.values() if node.frame is frame)


def control_aware(
    operator: Make,
    inputs: Stream | Mapping[str, Stream],
    *,
    name: str | None = None,
    schema: Columns | None = None,
    schemas: Mapping[str, Columns] | None = None,
    buckets: int = BUCKETS,
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
        inputs: the stream of each of its inputs by name, or the one stream of its only input.
        name: of the operator, unique in the query and fixed for a checkpoint; default the name of
            its class.
        schema: columns of its first output; default those of its only input.
        schemas: columns of its outputs, by tag.
        buckets: how many; fixed for a checkpoint.
        order_by: a column by which the rows of all inputs are merged; None for input after input.
        null_keys: rows with a null in their key go to bucket 0; otherwise they are refused.
        limits: of control tuples in one window.
        report: tag of one more output, with a row for each control tuple that was handed over.
        counts: tag of one more output, with a row for each bucket, window and delivery: how many
            control tuples were received, left out as copies, delivered, emitted, and wait. A row
            without a delivery counts rows.
        on_invalid: what becomes of a control tuple that the operator cannot be handed, because it
            is strict and does not know the type, because of the payload, or because of the address:
            the window may ``fail``, or the tuple ``pass`` the operator, with a warning in the log.

    Returns:
        The first output, and by tag the others.

    Raises:
        AlignedError, OperatorError: something does not fit; nothing was started.
    """
    name = _name(operator, name)
    if on_invalid not in ("fail", "pass"):
        raise AlignedError(f"on_invalid is {on_invalid!r}: it has to be 'fail' or 'pass'.")
    runner = hosting.checked(operator, name, buckets)
    given = _by_port(inputs, runner.inputs, name)
    streams, carrier = one_carrier(list(given.values()))
    given = dict(zip(given, streams, strict=True))
    if carrier is not None and any(one.carrier and _is_import(one) for one in streams):
        carrier = replace(carrier)  # packed, it is a source of its own
    layouts = {
        one.name: _layout(one, given[one.name], buckets, null_keys=null_keys)
        for one in runner.inputs
    }
    outputs = _outputs(runner.outputs, given, schema, schemas, name)
    _add_reports(outputs, {"report": (report, APPLIED), "counts": (counts, COUNTED)}, name)
    nodes = joint_nodes(given.values())
    if name in nodes:
        raise AlignedError(
            f"the query has an operator {name} already: give one of them another name=."
        )
    clocks = frozenset[str]().union(*(one.clocks for one in given.values()))
    timed = not clocks and any(one.event_time for one in given.values())
    paces = _paces(given) if timed else {}
    mark = f"operator-{uuid.uuid4().hex}"
    hosted = Hosted(
        make=operator,
        name=name,
        buckets=buckets,
        order_by=order_by,
        limits=limits or Limits(),
        layouts=layouts,
        schemas=hosting.arrow_schemas(outputs),
        timed=timed,
        clocks=clocks,
        paces=paces,
        report=report,
        counts=counts,
        pass_invalid=on_invalid == "pass",
        mark=mark,
    )
    first = next(iter(given.values()))
    hosting.prepare(first.spark)
    feeds = [
        feed for port, one in given.items() for feed in _feeds(one, layouts[port], idle=bool(paces))
    ]
    frame = hosting.host(hosted, feeds).alias(mark)
    return OperatorStream(
        spark=first.spark,
        pe=next((one.pe for one in given.values() if one.pe is not None), None),
        data=Emitted(frame=frame, output=runner.outputs[0], columns=outputs[runner.outputs[0]]),
        nodes={**nodes, name: Node(name=name, frame=frame, schemas=outputs, mark=mark)},
        clocks=frozenset({name}) if timed or clocks else frozenset(),
        carrier=carrier,
    )


def _paces(given: Mapping[str, Stream]) -> dict[str, Pace]:
    """Return how time goes on in inputs, where one of them may be idle; else nothing."""
    found = {}
    if any(one.idle is not None for one in given.values()):
        for port, one in given.items():
            if one.event_time is not None:
                idle = None if one.idle is None else round(one.idle * 1_000_000)
                found[port] = Pace(delay=micros_of(one.spark, one.event_time[1]), idle=idle)
    return found


def joint_nodes(streams: Iterable[Stream]) -> dict[str, Node]:
    """Return the operators behind streams.

    Raises:
        AlignedError: two of them have one name.
    """
    found: dict[str, Node] = {}
    for stream in streams:
        for name, node in stream.nodes.items():
            if found.setdefault(name, node) is not node:
                raise AlignedError(
                    f"two operators of the query have the name {name}: give one of them another"
                    " name=."
                )
    return found


def _name(operator: Make, name: str | None) -> str:
    if isinstance(operator, Operator):
        raise AlignedError(
            f"{type(operator).__name__} is an operator already: give its class, or a function that"
            " makes one, because there is one for each window and bucket."
        )
    found = name if name is not None else (operator.__name__ if inspect.isclass(operator) else "")
    if not found or "." in found or "/" in found:
        raise AlignedError(
            f"an operator has the name {found!r}: give it one with name=, without '.' and '/'."
        )
    return found


def _by_port(
    inputs: Stream | Mapping[str, Stream], ports: tuple[Input, ...], name: str
) -> dict[str, Stream]:
    names = [one.name for one in ports]
    if isinstance(inputs, Stream):
        if len(names) != 1:
            raise AlignedError(
                f"operator {name} has the inputs {', '.join(names)}: give each a stream, with"
                " control_aware(operator, {name: stream, …})."
            )
        return {names[0]: inputs}
    if sorted(inputs) != sorted(names):
        raise AlignedError(
            f"operator {name} has the inputs {', '.join(names)}, and is given streams for"
            f" {', '.join(inputs) or 'none'}."
        )
    return {one: inputs[one] for one in names}


def _layout(one: Input, stream: Stream, buckets: int, *, null_keys: bool) -> Layout:
    key = stream.key or one.key
    if stream.key and one.key and stream.key != one.key:
        raise AlignedError(
            f"input {one.name} has the key {', '.join(one.key)}, and its stream is keyed by"
            f" {', '.join(stream.key)}: leave one of both out."
        )
    if stream.data is None:
        return Layout(port=one.name, buckets=buckets, broadcast=one.broadcast)
    columns = stream.schema()
    _check_time(one, stream, columns)
    return layout_of(replace(one, key=key), arrow_of(columns), buckets, nulls=null_keys)


def _check_time(one: Input, stream: Stream, columns: StructType) -> None:
    told = stream.event_time
    if told is not None and told[0] not in columns.names:
        raise AlignedError(
            f"the event time {told[0]} of input {one.name} is no column any more; it has"
            f" {', '.join(columns.names)}."
        )
    if one.event_time is None or stream.clocks:
        return
    if told is None or told[0] != one.event_time:
        raise AlignedError(
            f"input {one.name} has its event time in column {one.event_time}: call"
            f" with_watermark({one.event_time!r}, delay) on its stream."
        )


def _outputs(
    tags: tuple[str, ...],
    given: Mapping[str, Stream],
    schema: Columns | None,
    schemas: Mapping[str, Columns] | None,
    name: str,
) -> dict[str, StructType]:
    if not tags:
        raise AlignedError(f"operator {name} has no output: give it one, for its control tuples.")
    told = dict(schemas or {})
    if schema is not None:
        told.setdefault(tags[0], schema)
    elif len(tags) == 1 and len(given) == 1 and not told:
        told[tags[0]] = next(iter(given.values())).schema()
    if sorted(told) != sorted(tags):
        raise AlignedError(
            f"operator {name} has the outputs {', '.join(tags)}, and columns are given for"
            f" {', '.join(told) or 'none'}: give those of all with schemas={{tag: columns}}."
        )
    return {tag: hosting.columns(told[tag]) for tag in tags}


def _add_reports(
    outputs: dict[str, StructType], asked: Mapping[str, tuple[str | None, pa.Schema]], name: str
) -> None:
    for what, (tag, schema) in asked.items():
        if tag in outputs:
            raise AlignedError(
                f"operator {name} has an output {tag} already: give its {what} another tag."
            )
        if tag is not None:
            outputs[tag] = hosting.columns(schema)


def _is_import(stream: Stream) -> bool:
    return isinstance(stream.data, Imported)


def _feeds(stream: Stream, layout: Layout, *, idle: bool) -> list[Feed]:
    """Return what feeds a port: rows, and control beside them."""
    found = []
    if isinstance(stream.data, Imported):
        column, delay = stream.event_time or (None, None)
        frame = stream.data.packed(layout, column, stream.carrier)
        found.append(Feed(frame=frame, delay=delay, port=layout.port))
    elif isinstance(stream.data, Rows):
        schema, time = arrow_of(stream.schema()), stream.event_time
        found.append(_feed_of_rows(stream.data, layout, schema, time, idle=idle))
    elif stream.data is not None:
        repack = Repacker(layout=layout, output=stream.data.output)
        found.append(Feed(frame=stream.data.of_output(), pack=repack))
    for one in stream.beside:
        pack = Packer(layout=layout, immediate=one.immediate)
        found.append(Feed(frame=one.placed(), pack=pack))
    return found


def _feed_of_rows(
    rows: Rows,
    layout: Layout,
    schema: pa.Schema,
    time: tuple[str, str] | None,
    *,
    idle: bool,
) -> Feed:
    column, delay = time or (None, None)
    pack = Packer(layout=layout, schema=schema, event_time=column, needed=rows.needed)
    if rows.needed is not None and time is not None and not idle:
        fewer = ahead.reduced(rows.frame, rows.needed, time, CONTROL)
        if fewer is not None:
            return Feed(frame=fewer, pack=replace(pack, event_time=None))
    return Feed(frame=rows.frame, pack=pack, delay=delay, port=layout.port)
