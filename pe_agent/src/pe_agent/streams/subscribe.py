"""Importing: the declaration of an import, and the frame or stream that it opens."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict

from pe_agent.datasource.options import SOURCE_FIELD, fetch_schema
from pe_agent.datasource.schemas import Columns, as_ddl
from pe_agent.job.arguments import (
    ArgumentError,
    OnCongestion,
    StartAt,
    check_keywords,
)
from pe_agent.job.port_settings import import_spec
from pe_agent.spark.observed_rows import count_packed_rows, import_metric, observe_rows
from pe_agent.spark.session import active_session
from streambroker_core.control.tuples.payloads import type_name
from streambroker_core.deprecation import warn_deprecated
from streambroker_core.model.schema import Schema, parse_ddl, to_ddl, to_items

if TYPE_CHECKING:
    from typing import Unpack

    from pyspark.sql import DataFrame

    from pe_agent.job.context import Job, JobContext
    from pe_agent.streams.stream import Stream


class ImportSettings(TypedDict, total=False):
    """Settings of an import; those of the resource declare it where it does not exist."""

    streams: Sequence[Mapping[str, str]] | None
    application_name: str | None
    stream_id: str | None
    application_scope: str | None
    filter: str | None
    start: StartAt | datetime | str | None
    on_congestion: OnCongestion | str | None
    schema: Columns | None
    columns: Sequence[str] | None
    source: bool
    redeclare: bool
    max_bytes_per_batch: int | None
    fail_on_data_loss: bool
    stop_at_end: bool


def subscribe(
    pe: Job, port: str, subscription: str | None = None, **settings: Unpack[ImportSettings]
) -> DataFrame:
    """Import streams as a streaming DataFrame.

    Without a subscription, names or other settings the port attaches to the existing Import.
    Settings declare an Import only if none exists; ``redeclare`` overwrites it.

    Args:
        pe: PE of the import.
        port: name of the import port.
        subscription: expression over the properties of exports.
        settings: keyword arguments:

            - ``streams``: imports by name, ``[{"applicationName": …, "streamId": …}]``.
            - ``application_name``: with ``stream_id``, narrows an import by name.
            - ``stream_id``: import by this name; excludes ``subscription`` and ``streams``.
            - ``application_scope``: scope of the exporters to match.
            - ``filter``: expression over the columns of a row, evaluated at the exporter.
            - ``start``: for exports never read before: ``latest``, ``earliest``, a time as
              datetime or ``2026-01-31T12:00:00Z``, or a time ago, ``-1h``.
            - ``on_congestion``: ``inherit``, or ``drop`` to volunteer.
            - ``schema``: columns as DDL, StructType or Arrow schema; default is those of the first
              match, which is waited for up to 60 s.
            - ``columns``: only these columns.
            - ``source``: add the column ``_source`` (job, port, stream, epoch).
            - ``redeclare``: overwrite the Import that exists.
            - ``max_bytes_per_batch``: maximum bytes of a micro-batch; a single epoch may exceed it.
            - ``fail_on_data_loss``: stop at unexpected data loss (default); else it is counted.
            - ``stop_at_end``: end the query when all exports have ended and everything is read.

    Raises:
        ArgumentError, SubscriptionError, FilterError, SchemaError: nothing was declared.
        SchemaUnknownError: no ``schema`` and no match in time.
    """
    old: dict[str, Any] = settings  # type: ignore[assignment]
    if "control" in old:
        warn_deprecated("subscribe(control=)", "subscribe_stream()")
        if not old["control"]:  # as before, without control these have no effect
            old.pop("mergeable", None)
            old.pop("control_log", None)
    if old.pop("control", False):
        stream: Any = subscribe_stream(pe, port, subscription, **old)
        return stream  # type: ignore[no-any-return]
    opened = _Opened.declare(pe.context, "subscribe", port, subscription, settings)
    return _load_frame(pe.context, opened.options, opened.schema())


def subscribe_stream(
    pe: Job,
    port: str,
    subscription: str | None = None,
    *,
    mergeable: Sequence[type] = (),
    control_log: bool = True,
    **settings: Unpack[ImportSettings],
) -> Stream:
    """Import streams with their control tuples, as a stream for operators.

    Args:
        pe: PE of the import.
        port: name of the import port.
        subscription: expression over the properties of exports.
        mergeable: types of tuples of which only the last one counts, and that end no batch.
        control_log: whether this import carries tuples of ``pe.operators.send``. Of several imports
            of a query the first that may carries them.
        settings: as for ``subscribe``; the filter does not apply to control tuples.

    Raises:
        ArgumentError, SubscriptionError, FilterError, SchemaError: nothing was declared.
        SchemaUnknownError: no ``schema`` and no match in time.
    """
    from pe_agent.aligned.import_frame import Import, ImportFrame
    from pe_agent.aligned.plan import StreamPlan
    from pe_agent.streams.stream import Stream

    job = pe.context
    made = _Opened.declare(job, "subscribe_stream", port, subscription, settings)
    options = {
        **made.options,
        "control": "true",
        "mergeable": ",".join(map(type_name, mergeable)),
    }
    opened = Import(
        port=port,
        ddl=made.ddl,
        source=made.source,
        load=lambda more: _load_frame(job, {**options, **more}),
    )
    carrier = opened if control_log else None
    data = ImportFrame(imports=(opened,))
    return Stream(StreamPlan(spark=job.spark, job=job, data=data, carrier=carrier))


@dataclass(frozen=True)
class _Opened:
    """A declared import: its columns, and options of the data source."""

    ddl: str
    source: bool
    options: Mapping[str, str]

    def schema(self) -> str:
        return f"{self.ddl}, {SOURCE_FIELD}" if self.source else self.ddl

    @classmethod
    def declare(
        cls,
        job: JobContext,
        method: str,
        port: str,
        subscription: str | None,
        settings: ImportSettings,
    ) -> _Opened:
        check_keywords(method, settings, ImportSettings.__annotations__)
        spec = import_spec(port, subscription, settings)
        schema, columns = settings.get("schema"), settings.get("columns")
        declared_ddl = None if schema is None else as_ddl(schema)
        if declared_ddl is not None:
            spec["schema"] = to_items(_select_columns(parse_ddl(declared_ddl), columns))
        job.declare("import", port, spec, redeclare=settings.get("redeclare", False))
        job.add_import(port)
        known = parse_ddl(declared_ddl or fetch_schema(job.agent, port))
        options = {
            "import": port,
            "source": str(settings.get("source", False)).lower(),
            "failOnDataLoss": str(settings.get("fail_on_data_loss", True)).lower(),
            "stopAtEnd": str(settings.get("stop_at_end", False)).lower(),
        }
        if settings.get("max_bytes_per_batch") is not None:
            options["maxBytesPerBatch"] = str(settings["max_bytes_per_batch"])
        return cls(to_ddl(_select_columns(known, columns)), settings.get("source", False), options)


def _load_frame(
    job: JobContext, options: Mapping[str, str], schema: str | None = None
) -> DataFrame:
    """Open a frame with a name of its own, by which the agent identifies queries that read it."""
    reader = job.spark.readStream.format("streambroker").options(**options, **job.agent_options())
    if schema is not None:
        reader = reader.schema(schema)
    with active_session(job.spark):
        frame = reader.option("frame", secrets.token_hex(8)).load()
    rows = count_packed_rows(frame) if "control" in options else None
    return observe_rows(frame, import_metric(options["import"], job.stopped), rows)


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
