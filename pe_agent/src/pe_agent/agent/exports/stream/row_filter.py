"""Row filters of a stream's blocks, and schema checks of readers."""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa

from pe_agent.agent.exports.stream.export_stream import VisibleStream
from pe_agent.agent.exports.stream.manifests import AnyBlock
from pe_agent.agent.exports.stream.schema_versions import adapt
from pe_agent.filters import CompiledFilter, compile_filter
from streambroker_core.errors import ExpressionError
from streambroker_core.expression import parse
from streambroker_core.model.schema import find_missing_column, parse_ddl


@lru_cache(maxsize=1024)
def compile_cached(filter_: str, schema: pa.Schema) -> CompiledFilter:
    """Compile a filter for a schema; cached."""
    return compile_filter(parse(filter_, "filter"), schema)


def count_passing_rows(
    stream: VisibleStream, block: AnyBlock, ddl: str, filter_: str | None
) -> int:
    """Return how many rows of a block pass a filter; ``ddl`` has the columns of its epoch."""
    schema = stream.schema
    rows = adapt(stream.read(block, ddl), schema)
    if filter_ is None:
        return int(rows.num_rows)
    return int(compile_cached(filter_, schema).mask(rows).true_count)


@lru_cache(maxsize=1024)
def _coverage_gap(ddl: str, schema: str) -> str | None:
    return find_missing_column(parse_ddl(ddl), parse_ddl(schema))


def first_too_wide(stream: VisibleStream, schema: str | None) -> tuple[int, str] | None:
    """Return the first epoch with wider types than those of ``schema``, and why; None if none."""
    return None if schema is None else stream.versions.find_unreadable(schema)


def schema_mismatch(
    stream: VisibleStream,
    filter_: str | None,
    columns: tuple[str, ...] | None,
    schema: str | None,
) -> str | None:
    """Return why a stream cannot be read with this filter and these columns, None if it can."""
    missing = [c for c in columns or () if c not in stream.schema.names]
    if missing:
        return f"stream {stream.id} has no column {missing[0]!r}; it has ({stream.ddl})"
    differs = None if schema is None else _coverage_gap(stream.ddl, schema)
    if differs is not None:
        return f"the columns of stream {stream.id} differ: {differs}"
    if filter_ is None:
        return None
    try:
        compile_cached(filter_, stream.schema)
    except ExpressionError as error:
        return f"the filter does not fit stream {stream.id}: {error}"
    return None
