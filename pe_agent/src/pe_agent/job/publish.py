"""Exporting: the declaration of exports by ``publish``, and the query that it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_agent.datasource.options import format_ddl
from pe_agent.datasource.schemas import Columns, as_ddl
from pe_agent.job.arguments import ArgumentError, check_keywords
from pe_agent.job.port_settings import ExportSettings, export_spec
from pe_agent.spark.batch_size import limit_batches_by_rows
from pe_agent.spark.observed_rows import export_metric, observe_rows
from pe_agent.spark.query_failure import with_cause_first
from pe_agent.spark.session import active_session
from streambroker_core.model.schema import parse_ddl, to_items
from streambroker_core.wire.manifests.ports import MAX_COMMENT

if TYPE_CHECKING:
    from typing import Unpack

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

    from pe_agent.job.context import Job, JobContext


_DESCRIBING = {"description", "owner", "tags"}


@dataclass(frozen=True, kw_only=True)
class Publication:
    """What a query publishes to one export: its columns, and the settings of the Export."""

    port: str
    columns: StructType
    spec: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Sink:
    """Sink of a query.

    Attributes:
        exports: the exports that it publishes to.
        options: options of the sink, without those that identify the agent.
        sizing_schema: columns that decide whether batches are cut by rows; None for all columns.
        rows: by port, an aggregate of the frame: the rows of its export; without it, all rows.
    """

    exports: tuple[Publication, ...]
    format: str = "streambroker"
    options: Mapping[str, str] = field(default_factory=dict)
    sizing_schema: StructType | None = None
    rows: Mapping[str, Column] = field(default_factory=dict)


@dataclass(frozen=True)
class QueryStart:
    """How a query is started; the fields are arguments of `publish`."""

    checkpoint: str | Path
    trigger: Mapping[str, str | bool] | None = None
    query_name: str | None = None

    def configure(self, writer: DataStreamWriter) -> DataStreamWriter:
        """Return the writer with checkpoint, trigger and name."""
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        if self.trigger is not None:
            trigger: dict[str, Any] = dict(self.trigger)
            writer = writer.trigger(**trigger)
        return writer if self.query_name is None else writer.queryName(self.query_name)


def publish(
    pe: Job,
    frame: DataFrame,
    port: str,
    *,
    checkpoint: str | Path,
    trigger: Mapping[str, str | bool] | None = None,
    query_name: str | None = None,
    redeclare: bool = False,
    **settings: Unpack[ExportSettings],
) -> StreamingQuery:
    """Export a streaming DataFrame; starts and returns its query.

    Args:
        pe: PE of the export.
        frame: the streaming DataFrame.
        port: name of the export port.
        checkpoint: directory of the query's checkpoint.
        trigger: as for ``DataStreamWriter.trigger``, for instance
            ``{"processingTime": "1 second"}``.
        query_name: name of the query.
        redeclare: overwrite the Export that exists.
        settings: ``stream_id``, ``properties``, ``allow_filter``, ``congestion_policy``,
            ``buffer``, ``durability``, ``archive``, ``schema_policy``, ``description``, ``owner``,
            ``tags`` and ``column_comments``, as `ExportSettings` describes them.

    Raises:
        ArgumentError, PropertyError: nothing was declared or started.
    """
    check_keywords("publish", settings, ExportSettings.__annotations__)
    writer = export_writer(pe, frame, port, redeclare=redeclare, **settings)
    writer.option("checkpointLocation", checkpoint)
    if trigger is not None:
        writer.trigger(**trigger)
    if query_name is not None:
        writer.queryName(query_name)
    return writer.start()


def export_writer(
    pe: Job,
    frame: DataFrame,
    port: str,
    *,
    redeclare: bool = False,
    **settings: Unpack[ExportSettings],
) -> ExportWriter:
    """Return a writer that exports a streaming DataFrame, with the verbs of Spark's writer.

    Args:
        pe: PE of the export.
        frame: the streaming DataFrame.
        port: name of the export port.
        redeclare: overwrite the Export that exists.
        settings: as for ``publish``.

    Raises:
        ArgumentError, PropertyError: a setting is wrong; nothing was declared.
    """
    spec = export_spec("export_writer", port, settings)
    return ExportWriter(pe.context, frame, port, spec, redeclare=redeclare)


def sink_options(
    pe: Job,
    port: str,
    *,
    schema: Columns,
    redeclare: bool = False,
    **settings: Unpack[ExportSettings],
) -> dict[str, str]:
    """Declare an export, and return options of ``format("streambroker")`` that write to it.

    For queries that something else starts, such as a pipeline: ``create_sink(name, "streambroker",
    options)``.

    Args:
        pe: PE of the export.
        port: name of the export port.
        schema: columns as DDL, StructType or Arrow schema.
        redeclare: overwrite the Export that exists.
        settings: as for ``publish``.

    Raises:
        ArgumentError, PropertyError, SchemaError: nothing was declared.
    """
    spec, columns = export_spec("sink_options", port, settings), to_items(parse_ddl(as_ddl(schema)))
    pe.context.declare("export", port, spec, redeclare=redeclare, schema=columns)
    pe.context.add_export(port, None)
    return {"export": port, **pe.context.agent_options()}


class ExportWriter:
    """Starts the query of one export, with ``option``, ``trigger``, ``queryName`` and ``start``.

    The methods do what those of Spark's ``DataStreamWriter`` do.
    """

    def __init__(
        self,
        job: JobContext,
        frame: DataFrame,
        port: str,
        spec: Mapping[str, Any],
        *,
        redeclare: bool,
    ) -> None:
        self._job, self._frame, self._redeclare = job, frame, redeclare
        self._export = Publication(port=port, columns=frame.schema, spec=spec)
        self._options: dict[str, str] = {}
        self._trigger: dict[str, str | bool] | None = None
        self._name: str | None = None

    def option(self, key: str, value: bool | float | str | Path | None) -> ExportWriter:
        """Set an option of the query, for instance ``checkpointLocation``; None sets nothing."""
        if value is not None:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            self._options[key.lower()] = text
        return self

    def options(self, **options: bool | float | str | Path | None) -> ExportWriter:
        """Set several options of the query."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def trigger(self, **trigger: str | bool) -> ExportWriter:
        """Set the trigger, as ``DataStreamWriter.trigger`` does."""
        self._trigger = trigger
        return self

    def queryName(self, name: str) -> ExportWriter:  # noqa: N802 - Spark's name
        """Set the name of the query."""
        self._name = name
        return self

    query_name = queryName

    def start(self) -> StreamingQuery:
        """Declare the export and start the query.

        Raises:
            ArgumentError: the option ``checkpointLocation`` is missing; nothing was declared.
        """
        options = dict(self._options)
        checkpoint = options.pop("checkpointlocation", None)
        if checkpoint is None:
            raise ArgumentError(
                f"export {self._export.port} has no checkpoint, without which a restart would lose"
                ' or repeat rows: call option("checkpointLocation", …) before start().'
            )
        sink = Sink(exports=(self._export,), options={**options, "export": self._export.port})
        start = QueryStart(checkpoint, self._trigger, self._name)
        return start_query(self._job, self._frame, sink, start, redeclare=self._redeclare)


def start_query(
    job: JobContext, frame: DataFrame, sink: Sink, start: QueryStart, *, redeclare: bool
) -> StreamingQuery:
    """Declare the exports of a sink, and start the query that publishes to them."""
    for one in sink.exports:
        schema = to_items(parse_ddl(format_ddl(one.columns)))
        spec = _with_comments(one.spec, one.columns)
        job.declare("export", one.port, spec, redeclare=redeclare, schema=schema)
        job.add_export(one.port, None)
    sources, ports = job.queries.sources(frame), tuple(one.port for one in sink.exports)
    job.queries.announce(ports, sources)
    options = {**sink.options, **job.agent_options()}
    for port in ports:
        frame = observe_rows(frame, export_metric(port), sink.rows.get(port))
    writer = frame.writeStream.format(sink.format).options(**options).outputMode("append")
    with (
        limit_batches_by_rows(frame.sparkSession, sink.sizing_schema or frame.schema),
        active_session(frame.sparkSession),
    ):
        query = with_cause_first(start.configure(writer).start())
    for port in ports:
        job.add_export(port, query)
    job.queries.add(ports, query, sources)
    return query


def _with_comments(spec: Mapping[str, Any], columns: StructType) -> dict[str, Any]:
    """Return the settings of an Export with the comments in its schema, if it has a description.

    Comments are cut to their limit. An Export without description, owner and tags gets none, since
    a broker of an earlier release would refuse them.
    """
    comments = {
        one.name: str(one.metadata["comment"])[:MAX_COMMENT]
        for one in columns.fields
        if one.metadata.get("comment")
    }
    if not comments or "columnComments" in spec or not spec.keys() & _DESCRIBING:
        return dict(spec)
    return {**spec, "columnComments": comments}
