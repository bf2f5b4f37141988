"""The plan of an operator on streams: checks of the arguments, and its first output."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.types import StructType

from pe_agent.aligned.data import OutputFrame, RowsFrame
from pe_agent.aligned.import_frame import ImportFrame
from pe_agent.aligned.options import OperatorOptions
from pe_agent.aligned.plan import OperatorNode, StreamPlan, choose_carrier, merge_nodes
from pe_agent.aligned.queries import jvm_prefilter, query_listener
from pe_agent.aligned.runtime import hosting
from pe_agent.aligned.runtime.frames import CONTROL
from pe_agent.aligned.runtime.hosting import Feed, Hop
from pe_agent.aligned.runtime.idleness import InputTiming, delay_micros
from pe_agent.aligned.runtime.packer import FramePacker, Repacker
from pe_agent.aligned.runtime.processor import APPLIED_SCHEMA, COUNTS_SCHEMA, OperatorConfig
from pe_agent.datasource.schemas import Columns, spark_to_arrow
from streambroker_core.control.operators.dead_letters import DEAD_LETTER_SCHEMA
from streambroker_core.control.operators.operator import Input, Operator
from streambroker_core.control.runtime.buckets import Layout, make_layout
from streambroker_core.control.runtime.emitter import Stage
from streambroker_core.control.runtime.hop import find_obstacle
from streambroker_core.control.runtime.runner import AlignedRunner
from streambroker_core.control.tuples import Limits
from streambroker_core.errors import AlignedError

DEFAULT_BUCKETS = 64

OperatorFactory = Callable[[], Operator]
"""Makes an operator: an operator class, or a function without arguments."""


def plan_operator(
    operator: OperatorFactory,
    inputs: StreamPlan | Mapping[str, StreamPlan],
    *,
    name: str | None = None,
    schema: Columns | None = None,
    schemas: Mapping[str, Columns] | None = None,
    options: OperatorOptions | None = None,
) -> StreamPlan:
    """Return the first output of an operator; the arguments are those of ``streams.stream.apply``.

    Raises:
        AlignedError, OperatorError: an argument does not fit; nothing was started.
    """
    name, options = _operator_name(operator, name), options or OperatorOptions()
    if options.metrics:
        raise AlignedError(
            "metrics=True adds an output to a join with side inputs only; the metrics of rules are"
            " in found.rules.metrics()."
        )
    buckets = DEFAULT_BUCKETS if options.buckets is None else options.buckets
    runner = AlignedRunner(operator, Stage(query="", operator=name, buckets=buckets))
    by_port = _plans_by_port(inputs, runner.inputs, name)
    streams, carrier = choose_carrier(list(by_port.values()))
    by_port = dict(zip(by_port, streams, strict=True))
    if carrier is not None and any(one.carrier and _is_import(one) for one in streams):
        carrier = replace(carrier)  # opened as packed rows, it is a separate source
    layouts = {
        one.name: _layout(one, by_port[one.name], buckets, null_keys=bool(options.null_keys))
        for one in runner.inputs
    }
    outputs = _output_schemas(runner.outputs, by_port, schema, schemas, name)
    tags = options.report_tags()
    reports = {
        "report": APPLIED_SCHEMA,
        "counts": COUNTS_SCHEMA,
        "dead_letters": DEAD_LETTER_SCHEMA,
    }
    _add_reports(outputs, {what: (tags[what], columns) for what, columns in reports.items()}, name)
    nodes = merge_nodes(by_port.values())
    if name in nodes:
        raise AlignedError(
            f"the query has an operator {name} already: give one of them another name=."
        )
    clocks = frozenset[str]().union(*(one.watermark_operators for one in by_port.values()))
    timed = not clocks and any(one.event_time for one in by_port.values())
    timings = _input_timings(by_port) if timed else {}
    config = OperatorConfig(
        make=operator,
        name=name,
        buckets=buckets,
        order_by=options.order_by,
        limits=options.limits or Limits(),
        layouts=layouts,
        schemas={tag: spark_to_arrow(columns) for tag, columns in outputs.items()},
        has_watermark=timed,
        watermark_operators=clocks,
        timings=timings,
        report=tags["report"],
        counts=tags["counts"],
        dead_letters=tags["dead_letters"],
        pass_invalid=options.on_invalid == "pass",
        slots=options.groups == "slots",
    )
    first = next(iter(by_port.values()))
    hosting.prepare_session(first.spark)
    query_listener.log_failures(first.spark)
    mark = f"operator-{uuid.uuid4().hex}"
    hop, obstacle = _share_hop(by_port, config, mark)
    if hop is None:
        feeds = [
            feed
            for port, one in by_port.items()
            for feed in _build_feeds(one, layouts[port], idle=bool(timings), slots=config.slots)
        ]
        hop = Hop(operators=(config,), feeds=tuple(feeds), marks=(mark,))
    frame = hop.run()
    node = OperatorNode(
        name=name,
        frame=frame,
        schemas=outputs,
        mark=mark,
        hop=hop,
        obstacle=obstacle,
        has_dead_letters=options.dead_letters,
    )
    return StreamPlan(
        spark=first.spark,
        job=next((one.job for one in by_port.values() if one.job is not None), None),
        data=OutputFrame(frame=frame, output=runner.outputs[0], columns=outputs[runner.outputs[0]]),
        nodes={**nodes, name: node},
        watermark_operators=frozenset({name}) if timed or clocks else frozenset(),
        carrier=carrier,
    )


def _share_hop(
    by_port: Mapping[str, StreamPlan], config: OperatorConfig, mark: str
) -> tuple[Hop | None, str | None]:
    """Return the hop of the operator before this one with this one added, or why it cannot be."""
    (port, stream), *others = by_port.items()
    if not any(one.nodes for one in by_port.values()):
        return None, None
    if others:
        return None, f"{config.name} has several inputs"
    if not isinstance(stream.data, OutputFrame) or stream.control_frames:
        return None, f"the stream changes before {config.name}"
    output, frame = stream.data.output, stream.data.frame
    before = next(node for node in stream.nodes.values() if node.frame is frame)
    last = before.hop.operators[-1]
    if output in (last.report, last.counts, last.dead_letters):
        return None, f"{config.name} reads a report of {before.name}"
    if config.watermark_operators:
        return None, "the stream has an event time"
    if not (config.slots and last.slots):
        return None, "the state groups no buckets"
    obstacle = find_obstacle(last.make(), last.layouts, config.layouts[port])
    if obstacle is not None:
        return None, f"{before.name} {obstacle}"
    return before.hop.extend(config, output, mark), None


def _input_timings(streams: Mapping[str, StreamPlan]) -> dict[str, InputTiming]:
    """Return the timing of each input with an event time if any input may be idle, else {}."""
    timings = {}
    if any(one.idle_after is not None for one in streams.values()):
        for port, one in streams.items():
            if one.event_time is not None:
                idle = None if one.idle_after is None else round(one.idle_after * 1_000_000)
                timings[port] = InputTiming(
                    delay=delay_micros(one.spark, one.event_time[1]), idle_after=idle
                )
    return timings


def _operator_name(operator: OperatorFactory, name: str | None) -> str:
    if isinstance(operator, Operator):
        raise AlignedError(
            f"{type(operator).__name__} is already an operator: pass its class, or a function"
            " that creates one, because there is one for each window and bucket."
        )
    chosen = name if name is not None else (operator.__name__ if inspect.isclass(operator) else "")
    if not chosen or "." in chosen or "/" in chosen:
        raise AlignedError(
            f"an operator has the name {chosen!r}: give it one with name=, without '.' and '/'."
        )
    return chosen


def _plans_by_port(
    inputs: StreamPlan | Mapping[str, StreamPlan], ports: tuple[Input, ...], name: str
) -> dict[str, StreamPlan]:
    names = [one.name for one in ports]
    if isinstance(inputs, StreamPlan):
        if len(names) != 1:
            raise AlignedError(
                f"operator {name} has the inputs {', '.join(names)}: give each a stream, with"
                " streambroker.apply(operator, {name: stream, …})."
            )
        return {names[0]: inputs}
    if sorted(inputs) != sorted(names):
        raise AlignedError(
            f"operator {name} has the inputs {', '.join(names)}, and is given streams for"
            f" {', '.join(inputs) or 'none'}."
        )
    return {one: inputs[one] for one in names}


def _layout(input_: Input, stream: StreamPlan, buckets: int, *, null_keys: bool) -> Layout:
    key = stream.key or input_.key
    if stream.key and input_.key and stream.key != input_.key:
        raise AlignedError(
            f"input {input_.name} has the key {', '.join(input_.key)}, and its stream is keyed by"
            f" {', '.join(stream.key)}: leave one of both out."
        )
    if stream.data is None:
        return Layout(port=input_.name, buckets=buckets, broadcast=input_.broadcast)
    columns = stream.schema()
    _check_time(input_, stream, columns)
    return make_layout(replace(input_, key=key), spark_to_arrow(columns), buckets, nulls=null_keys)


def _check_time(input_: Input, stream: StreamPlan, columns: StructType) -> None:
    watermark = stream.event_time
    if watermark is not None and watermark[0] not in columns.names:
        raise AlignedError(
            f"the event time {watermark[0]} of input {input_.name} is no longer a column; it has"
            f" {', '.join(columns.names)}."
        )
    if input_.event_time is None or stream.watermark_operators:
        return
    if watermark is None or watermark[0] != input_.event_time:
        raise AlignedError(
            f"input {input_.name} has its event time in column {input_.event_time}: call"
            f" with_watermark({input_.event_time!r}, delay) on its stream."
        )


def _output_schemas(
    tags: tuple[str, ...],
    streams: Mapping[str, StreamPlan],
    schema: Columns | None,
    schemas: Mapping[str, Columns] | None,
    name: str,
) -> dict[str, StructType]:
    if not tags:
        raise AlignedError(f"operator {name} has no output: give it one, for its control tuples.")
    by_tag = dict(schemas or {})
    if schema is not None:
        by_tag.setdefault(tags[0], schema)
    elif len(tags) == 1 and len(streams) == 1 and not by_tag:
        by_tag[tags[0]] = next(iter(streams.values())).schema()
    if sorted(by_tag) != sorted(tags):
        raise AlignedError(
            f"operator {name} has the outputs {', '.join(tags)}, and columns are given for"
            f" {', '.join(by_tag) or 'none'}: give those of all with schemas={{tag: columns}}."
        )
    return {tag: hosting.parse_columns(by_tag[tag]) for tag in tags}


def _add_reports(
    outputs: dict[str, StructType], requested: Mapping[str, tuple[str | None, pa.Schema]], name: str
) -> None:
    for what, (tag, schema) in requested.items():
        if tag in outputs:
            raise AlignedError(
                f"operator {name} has an output {tag} already: give its {what} another tag."
            )
        if tag is not None:
            outputs[tag] = hosting.parse_columns(schema)


def _is_import(stream: StreamPlan) -> bool:
    return isinstance(stream.data, ImportFrame)


def _build_feeds(stream: StreamPlan, layout: Layout, *, idle: bool, slots: bool) -> list[Feed]:
    feeds = []
    if isinstance(stream.data, ImportFrame):
        column, delay = stream.event_time or (None, None)
        slotted = slots and not idle  # the reports of times come between
        frame = stream.data.open_packed(layout, column, stream.carrier, slots=slotted)
        feeds.append(Feed(frame=frame, delay=delay, port=layout.port, slotted=slotted))
    elif isinstance(stream.data, RowsFrame):
        schema, time = spark_to_arrow(stream.schema()), stream.event_time
        feeds.append(_build_row_feed(stream.data, layout, schema, time, idle=idle))
    elif stream.data is not None:
        repack = Repacker(layout=layout, output=stream.data.output)
        feeds.append(Feed(frame=stream.data.select_output(), pack=repack))
    for one in stream.control_frames:
        pack = FramePacker(layout=layout, immediate=one.immediate)
        feeds.append(Feed(frame=one.with_positions(), pack=pack))
    return feeds


def _build_row_feed(
    rows: RowsFrame,
    layout: Layout,
    schema: pa.Schema,
    time: tuple[str, str] | None,
    *,
    idle: bool,
) -> Feed:
    column, delay = time or (None, None)
    pack = FramePacker(layout=layout, schema=schema, event_time=column, row_filter=rows.row_filter)
    if rows.row_filter is not None and time is not None and not idle:
        fewer = jvm_prefilter.prefilter(rows.frame, rows.row_filter, time, CONTROL)
        if fewer is not None:
            return Feed(frame=fewer, pack=replace(pack, event_time=None))
    return Feed(frame=rows.frame, pack=pack, delay=delay, port=layout.port)
