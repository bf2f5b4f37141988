"""Adds columns of side inputs to main rows without a function."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.side.definition import Enrich, SideInput, SideJoin, added_columns
from streambroker_core.side.join.views import MapView, MultimapView, SingletonView, Views


@dataclass(frozen=True, slots=True)
class EnrichedRows:
    """Rows with their new columns.

    Attributes:
        batch: all rows.
        lacking: for each row, whether it lacks a value and that is an error; None if no row does.
    """

    batch: pa.RecordBatch
    lacking: pa.Array | None


def enriched_schema(join: SideJoin) -> pa.Schema:
    """Return the columns of main rows after all enrichments."""
    fields = list(join.schema)
    for enrich in join.enrich:
        side = join.input(enrich.input)
        several = side.many
        for name, field in added_columns(enrich, side):
            type_ = side.schema.field(field).type
            fields.append(pa.field(name, pa.list_(type_) if several else type_))
        if enrich.version is not None:
            fields.append(pa.field(enrich.version, pa.string()))
    return pa.schema(fields)


def add_columns(
    enrich: Enrich, side: SideInput, batch: pa.RecordBatch, views: Views
) -> EnrichedRows:
    """Add the columns of one side input to rows."""
    view = views[side.name]
    names = [field for _, field in added_columns(enrich, side)]
    size = batch.num_rows
    if isinstance(view, SingletonView):
        has_value = pa.repeat(pa.scalar(not view.empty), size)
        added = [pa.repeat(_singleton_value(side, view, name), size) for name in names]
    else:
        assert isinstance(view, MapView | MultimapView)  # noqa: S101 - checked at the definition
        has_value, added = view.columns(*(batch.column(name) for name in enrich.on), names=names)
    fields = [
        pa.field(new, column.type)
        for (new, _), column in zip(added_columns(enrich, side), added, strict=True)
    ]
    if enrich.version is not None:
        fields.append(pa.field(enrich.version, pa.string()))
        added = [*added, pa.repeat(pa.scalar(view.version, pa.string()), size)]
    schema = pa.schema([*batch.schema, *fields])
    result = pa.RecordBatch.from_arrays([*batch.columns, *added], schema=schema)
    if enrich.missing != "error" or side.has_default or pc.all(has_value).as_py():
        return EnrichedRows(result, None)
    return EnrichedRows(result, pc.invert(has_value))


def _singleton_value(side: SideInput, view: SingletonView, name: str) -> pa.Scalar:
    type_ = side.schema.field(name).type
    value = view.get()
    if isinstance(side.value, str) or value is None:
        return pa.scalar(value, type_)
    return pa.scalar(value.get(name), type_)
