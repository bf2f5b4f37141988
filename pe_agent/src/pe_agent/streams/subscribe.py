"""Importing: the declaration of an import by ``subscribe``, and the frame or stream it opens."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from pe_agent.datasource.options import SOURCE_FIELD, fetch_schema
from pe_agent.datasource.schemas import Columns, as_ddl
from pe_agent.job.expression_errors import mark_expression_errors
from pe_agent.job.publish import ArgumentError
from pe_agent.spark.session import active_session
from streambroker_core.control.tuples.payloads import type_name
from streambroker_core.expression import parse
from streambroker_core.model.schema import Schema, parse_ddl, to_ddl, to_items

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pe_agent.job.context import Job, JobContext
    from pe_agent.streams.stream import Stream


@overload
def subscribe(
    pe: Job,
    port: str,
    subscription: str | None = None,
    *,
    streams: Sequence[Mapping[str, str]] | None = None,
    application_name: str | None = None,
    stream_id: str | None = None,
    application_scope: str | None = None,
    filter: str | None = None,
    start: str | None = None,
    on_congestion: str | None = None,
    schema: Columns | None = None,
    columns: Sequence[str] | None = None,
    source: bool = False,
    control: Literal[False] = False,
    redeclare: bool = False,
    max_bytes_per_batch: int | None = None,
    fail_on_data_loss: bool = True,
    stop_at_end: bool = False,
) -> DataFrame: ...


@overload
def subscribe(
    pe: Job,
    port: str,
    subscription: str | None = None,
    *,
    streams: Sequence[Mapping[str, str]] | None = None,
    application_name: str | None = None,
    stream_id: str | None = None,
    application_scope: str | None = None,
    filter: str | None = None,
    start: str | None = None,
    on_congestion: str | None = None,
    schema: Columns | None = None,
    columns: Sequence[str] | None = None,
    source: bool = False,
    control: Literal[True],
    control_log: bool = True,
    mergeable: Sequence[type] = (),
    redeclare: bool = False,
    max_bytes_per_batch: int | None = None,
    fail_on_data_loss: bool = True,
    stop_at_end: bool = False,
) -> Stream: ...


def subscribe(
    pe: Job,
    port: str,
    subscription: str | None = None,
    *,
    streams: Sequence[Mapping[str, str]] | None = None,
    application_name: str | None = None,
    stream_id: str | None = None,
    application_scope: str | None = None,
    filter: str | None = None,  # noqa: A002 - the word of the API
    start: str | None = None,
    on_congestion: str | None = None,
    schema: Columns | None = None,
    columns: Sequence[str] | None = None,
    source: bool = False,
    control: bool = False,
    control_log: bool = True,
    mergeable: Sequence[type] = (),
    redeclare: bool = False,
    max_bytes_per_batch: int | None = None,
    fail_on_data_loss: bool = True,
    stop_at_end: bool = False,
) -> DataFrame | Stream:
    """Import streams as a streaming DataFrame, or with ``control`` as a stream for operators.

    Without a subscription, names or other settings the port attaches to the existing Import.
    Settings declare an Import only if none exists; ``redeclare`` overwrites it.

    Args:
        pe: PE of the import.
        port: name of the import port.
        subscription: expression over the properties of exports.
        streams: imports by name, ``[{"applicationName": …, "streamId": …}]``.
        application_name: with ``stream_id``, narrows an import by name.
        stream_id: import by this name; excludes ``subscription`` and ``streams``.
        application_scope: scope of the exporters to match.
        filter: expression over the columns of a row, evaluated at the exporter.
        start: ``latest`` or ``earliest``, for exports never read before.
        on_congestion: ``inherit``, or ``drop`` to volunteer.
        schema: columns as DDL, StructType or Arrow schema; default is those of the first match,
            which is waited for up to 60 s.
        columns: only these columns.
        source: add the column ``_source`` (job, port, stream, epoch).
        control: also receive control tuples; the filter does not apply to them.
        control_log: with ``control``, whether this import carries tuples of ``send_control``. Of
            several imports of a query the first that may carries them.
        mergeable: with ``control``, types of tuples of which only the last one counts, and that end
            no batch.
        redeclare: overwrite the Import that exists.
        max_bytes_per_batch: maximum bytes of a micro-batch; a single epoch may exceed it.
        fail_on_data_loss: stop at unexpected data loss; else the loss is counted.
        stop_at_end: end the query when all exports have ended and everything is read.

    Raises:
        ArgumentError, SubscriptionError, FilterError, SchemaError: nothing was declared.
        SchemaUnknownError: no ``schema`` and no match in time.
    """
    spec = _import_spec(port, subscription, streams, application_name, stream_id, filter)
    settings = {
        "applicationScope": application_scope,
        "start": start,
        "onCongestion": on_congestion,
    }
    spec.update({k: v for k, v in settings.items() if v is not None})
    declared_ddl = None if schema is None else as_ddl(schema)
    if declared_ddl is not None:
        spec["schema"] = to_items(_select_columns(parse_ddl(declared_ddl), columns))
    job = pe.context
    job.declare("import", port, spec, redeclare=redeclare)
    job.add_import(port)
    ddl = to_ddl(_select_columns(parse_ddl(declared_ddl or fetch_schema(job.agent, port)), columns))
    options = {
        "import": port,
        "source": str(source).lower(),
        "failOnDataLoss": str(fail_on_data_loss).lower(),
        "stopAtEnd": str(stop_at_end).lower(),
    }
    if max_bytes_per_batch is not None:
        options["maxBytesPerBatch"] = str(max_bytes_per_batch)
    if not control:
        return _load_frame(job, options, f"{ddl}, {SOURCE_FIELD}" if source else ddl)
    from pe_agent.aligned.import_frame import Import, ImportFrame
    from pe_agent.aligned.plan import StreamPlan
    from pe_agent.streams.stream import Stream

    options |= {"control": "true", "mergeable": ",".join(map(type_name, mergeable))}
    opened = Import(
        port=port,
        ddl=ddl,
        source=source,
        load=lambda more: _load_frame(job, {**options, **more}),
    )
    carrier = opened if control_log else None
    data = ImportFrame(imports=(opened,))
    return Stream(StreamPlan(spark=job.spark, job=job, data=data, carrier=carrier))


def _load_frame(
    job: JobContext, options: Mapping[str, str], schema: str | None = None
) -> DataFrame:
    """Open a frame with a name of its own, by which the agent identifies queries that read it."""
    reader = job.spark.readStream.format("streambroker").options(**options, **job.agent_options())
    if schema is not None:
        reader = reader.schema(schema)
    with active_session(job.spark):
        return reader.option("frame", secrets.token_hex(8)).load()


def _import_spec(
    port: str,
    subscription: str | None,
    streams: Sequence[Mapping[str, str]] | None,
    application_name: str | None,
    stream_id: str | None,
    filter_: str | None,
) -> dict[str, Any]:
    ways = {"subscription": subscription, "streams": streams, "stream_id": stream_id}
    chosen = [name for name, value in ways.items() if value is not None]
    if len(chosen) > 1:
        raise ArgumentError(
            f"import {port}: {chosen[0]} and {chosen[1]} exclude each other; give one of them."
        )
    if application_name is not None and stream_id is None:
        raise ArgumentError(
            f"import {port}: application_name narrows an import by name; give stream_id too."
        )
    spec: dict[str, Any] = {}
    if subscription is not None:
        with mark_expression_errors({"subscription": subscription}):
            parse(subscription, "subscription")
        spec["subscription"] = subscription
    if streams is not None:
        spec["streams"] = [dict(s) for s in streams]
    if stream_id is not None:
        name = {"applicationName": application_name} if application_name else {}
        spec["streams"] = [{**name, "streamId": stream_id}]
    if filter_ is not None:
        with mark_expression_errors({"filter": filter_}):
            parse(filter_, "filter")
        spec["filter"] = filter_
    return spec


def _select_columns(schema: Schema, columns: Sequence[str] | None) -> Schema:
    if columns is None:
        return schema
    known = {c.name: c for c in schema}
    missing = [name for name in columns if name not in known]
    if missing:
        raise ArgumentError(
            f"column {missing[0]!r} is not in the schema; it has {', '.join(known)}."
        )
    return tuple(known[name] for name in columns)
