"""A stream as a reader under policies sees it: all else does not exist for its requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256

import pyarrow as pa
import pyarrow.compute as pc

from pe_agent.agent.exports.stream.export_stream import VisibleStream
from pe_agent.agent.exports.stream.manifests import AnyBlock, Manifest
from pe_agent.agent.exports.stream.row_filter import compile_cached
from pe_agent.agent.exports.stream.schema_versions import SchemaVersion, SchemaVersions, adapt
from streambroker_core.control.runtime.packing import SEQ
from streambroker_core.errors import ExpressionError
from streambroker_core.model.policies import Mask, PolicyDeniedError, Restriction, mask_problem
from streambroker_core.model.schema import parse_ddl, to_ddl


class RestrictedStream:
    """View of a stream with the rows, columns and values that a restriction leaves.

    The policies' filters see the rows as they are; filters of readers see what is left.
    """

    objects = None
    """A bucket has all columns of all rows, so no reader gets to it."""

    def __init__(self, stream: VisibleStream, restriction: Restriction) -> None:
        """Create a view.

        Raises:
            PolicyDeniedError: a filter or a mask does not fit the columns.
        """
        self.id = stream.id
        self.restriction = restriction
        self._stream = stream
        self._schema = stream.schema
        self._masks: Mapping[str, Mask] = dict(restriction.masks)
        try:
            self._filters = [compile_cached(text, self._schema) for text in restriction.filters]
        except ExpressionError as error:
            raise PolicyDeniedError(
                f"{restriction} of the export do not fit stream {stream.id}: {error}"
            ) from None
        for column in restriction.visible(parse_ddl(stream.ddl)):
            mask = self._masks.get(column.name)
            problem = None if mask is None else mask_problem(mask, column.type)
            if problem is not None:
                raise PolicyDeniedError(
                    f"{restriction} of the export do not fit stream {stream.id}: column"
                    f" `{column.name}` {problem}."
                )
        self.versions: SchemaVersions = stream.versions.change(self._change_version)

    @property
    def ddl(self) -> str:
        """The newest columns as Spark DDL."""
        return self.versions.newest.ddl

    @property
    def schema(self) -> pa.Schema:
        """The newest columns in Arrow."""
        return self.versions.newest.schema

    @property
    def manifests(self) -> Mapping[int, Manifest]:
        """Epochs with all their blocks."""
        return self._stream.manifests

    def read(self, block: AnyBlock, ddl: str) -> pa.RecordBatch:
        """Read what is left of one block, of the columns of its epoch.

        Where policies filter, an additional last column has the numbers of the rows in the block.
        """
        rows = self._stream.read(block, ddl)
        numbers = None
        if self._filters:
            full = adapt(rows, self._schema)
            mask = self._filters[0].mask(full)
            for other in self._filters[1:]:
                mask = pc.and_(mask, other.mask(full))
            rows, numbers = rows.filter(mask), pc.indices_nonzero(mask).cast(pa.int64())
        schema = self.versions.of(ddl).schema
        columns = [self._show(rows.column(field.name), field) for field in schema]
        if numbers is not None:
            schema = schema.append(pa.field(SEQ, pa.int64(), nullable=False))
            columns.append(numbers)
        if not columns:  # a batch without columns has its number of rows from elsewhere
            return rows.select([])
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _change_version(self, version: SchemaVersion) -> SchemaVersion:
        fields = [
            field.with_nullable(True) if field.name in self._masks else field
            for field in (version.schema.field(n) for n in self._names(version))
        ]
        columns = self.restriction.visible(parse_ddl(version.ddl))
        return replace(version, ddl=to_ddl(columns), schema=pa.schema(fields))

    def _names(self, version: SchemaVersion) -> list[str]:
        return self.restriction.select(version.schema.names)

    def _show(self, column: pa.Array, field: pa.Field) -> pa.Array:
        mask = self._masks.get(field.name)
        if mask is None:
            return column
        if mask.kind == "null":
            return pa.nulls(len(column), field.type)
        if mask.kind == "constant":
            return pa.repeat(pa.scalar(mask.value, pa.string()).cast(field.type), len(column))
        return _hashed(column).cast(field.type)


def restricted(stream: VisibleStream, restriction: Restriction | None) -> VisibleStream:
    """Return a stream as a restriction leaves it; the stream itself without one."""
    return stream if restriction is None else RestrictedStream(stream, restriction)


def _hashed(column: pa.Array) -> pa.Array:
    """Return the SHA-256 of each text in hexadecimal; null stays null."""
    encoded = column.dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    hashes = [None if text is None else sha256(text.encode()).hexdigest() for text in texts]
    return pa.array(hashes, pa.string()).take(encoded.indices)
