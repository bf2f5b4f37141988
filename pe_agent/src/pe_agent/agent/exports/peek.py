"""The last rows of an export, for a person who looks: no reader, no claim, bounded."""

from __future__ import annotations

import base64
import json
import math
import time
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from datetime import time as time_of_day
from typing import Any

import pyarrow as pa

from pe_agent.agent.exports.batch_reads import SchemaMismatchError
from pe_agent.agent.exports.export import AgentExport
from pe_agent.agent.exports.status import list_versions
from pe_agent.agent.exports.stream.export_stream import ExportStream, VisibleStream
from pe_agent.agent.exports.stream.restricted_stream import restricted
from pe_agent.agent.exports.stream.row_filter import compile_cached, schema_mismatch
from pe_agent.agent.exports.stream.schema_versions import adapt
from pe_agent.log.errors import AddressGone
from streambroker_core.model.policies import restrict_unknown
from streambroker_core.model.schema import parse_ddl, to_items
from streambroker_core.wire.agent_rpc.job import ExportPeek
from streambroker_core.wire.broker.agent_commands import MAX_PEEK_ROWS

MAX_BYTES = 680_000
"""Maximum size of the rows; in base64 they still fit into a message of 1 MiB."""
SCAN_SECONDS = 2.0
"""After this time no further block is read."""
MAX_VERSIONS = 20
"""Latest versions of the columns that are listed."""
_SAFE_INTEGER = 2**53
"""JavaScript reads larger numbers as other ones."""


def peek(export: AgentExport, request: ExportPeek) -> dict[str, Any]:
    """Return the last rows that pass, in the order of their publishing.

    ``truncated`` is true if the log may have more of them. ``position`` is what a later request
    gives as ``after`` to get only what is published from now on. ``schemaVersions`` lists the
    latest versions of the stream's columns. A person is of no job, so all policies apply together;
    ``policies`` describes them.

    Raises:
        PolicyDeniedError: policies leave nothing.
        SchemaMismatchError: the newest stream lacks a column, or the filter does not fit it.
        LogError, BucketError: a block cannot be read.
    """
    with export.state.lock:
        streams = [one for one in export.state.streams.values() if one.manifests]
        stream = streams[-1] if streams else None
        epochs = sorted(stream.manifests, reverse=True) if stream else []
    if stream is None:
        return {"stream": None, "position": None, "columns": [], "rows": [], "truncated": False}
    restriction = restrict_unknown(export.policies.current)
    visible = restricted(stream, restriction)
    columns = tuple(request.columns) if request.columns else None
    mismatch = schema_mismatch(visible, request.filter, columns, None)
    if mismatch is not None:
        raise SchemaMismatchError(mismatch)
    after = _epoch_after(request.after, stream)
    limit = max(1, min(MAX_PEEK_ROWS, request.limit))
    blocks = _blocks(visible, [epoch for epoch in epochs if epoch > after], request.filter, columns)
    batches, truncated = _take(blocks, limit)
    position = f"{stream.id}:{epochs[0]}"
    answer: dict[str, Any] = {"stream": stream.id, "position": position, "truncated": truncated}
    if restriction is not None:
        answer["policies"] = restriction.describe()
    names = list(columns) if columns else visible.schema.names
    types = {one["name"]: one["type"] for one in to_items(parse_ddl(visible.ddl))}
    answer["columns"] = [{"name": name, "type": types[name]} for name in names]
    answer["schemaVersions"] = list_versions(visible)[-MAX_VERSIONS:]
    if request.arrow:
        schema = pa.schema([visible.schema.field(name) for name in names])
        return {**answer, "arrow": base64.b64encode(_as_stream(batches, schema)).decode()}
    rows = [[_plain(row[name]) for name in names] for one in batches for row in one.to_pylist()]
    kept = _fitting(rows)
    return {**answer, "rows": kept, "truncated": truncated or len(kept) < len(rows)}


def _epoch_after(after: str | None, stream: ExportStream) -> int:
    id_, _, epoch = (after or "").rpartition(":")
    return int(epoch) if id_ == stream.id and epoch.isdigit() else -1


def _blocks(
    stream: VisibleStream, epochs: list[int], filter_: str | None, columns: tuple[str, ...] | None
) -> Iterator[pa.RecordBatch]:
    """Yield the passing rows of each block, the newest first; removed epochs are left out."""
    schema = stream.schema
    for epoch in epochs:
        manifest = stream.manifests.get(epoch)
        if manifest is None:
            continue
        for block in reversed(manifest.blocks):
            try:
                batch = adapt(stream.read(block, manifest.ddl), schema)
            except AddressGone:
                continue
            if filter_ is not None:
                batch = batch.filter(compile_cached(filter_, schema).mask(batch))
            yield batch if columns is None else batch.select(list(columns))


def _take(blocks: Iterator[pa.RecordBatch], limit: int) -> tuple[list[pa.RecordBatch], bool]:
    """Return the last rows, the oldest first, and whether there may be more."""
    ends = time.monotonic() + SCAN_SECONDS
    taken: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in blocks:
        part = batch.slice(max(0, batch.num_rows - (limit - rows)))
        while part.num_rows and size + part.nbytes > MAX_BYTES:
            part = part.slice(part.num_rows - part.num_rows // 2)
        if part.num_rows:
            taken.insert(0, part)
        rows, size = rows + part.num_rows, size + part.nbytes
        if part.num_rows < batch.num_rows or time.monotonic() > ends:
            return taken, True
    return taken, False


def _as_stream(batches: list[pa.RecordBatch], schema: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def _fitting(rows: list[list[Any]]) -> list[list[Any]]:
    """Return the last rows that are within `MAX_BYTES` as JSON."""
    size = 0
    for count, row in enumerate(reversed(rows)):
        size += len(json.dumps(row)) + 1
        if size > MAX_BYTES:
            return rows[len(rows) - count :]
    return rows


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; what JSON lacks becomes text, binary becomes hexadecimal."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return value if abs(value) <= _SAFE_INTEGER else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value.isoformat() if isinstance(value, (datetime, date, time_of_day)) else str(value)
