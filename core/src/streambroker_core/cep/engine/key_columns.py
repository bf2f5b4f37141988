"""Keys of rows, and copies of rows for rules with their own keys.

A reader copies each row once per distinct selector, not per rule. Each copy goes to the bucket of
its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.cep.engine.key_store import encode_key
from streambroker_core.cep.pattern.key_selectors import Selector, key_expression, selector_text

SELECTOR, KEY_BYTES, FIRST = "_selector", "_place", "_first"
"""Columns of copies: selector as text, encoded key, and whether it is the row's first copy."""


def key_columns(batch: pa.RecordBatch, selector: Selector) -> list[pa.Array]:
    """Return one column for each part of a key; floats have a single zero and a single NaN.

    Raises:
        FilterError: a part is neither a column nor an expression.
    """
    return [_normalize_floats(_key_part(batch, text)) for text in selector]


def _key_part(batch: pa.RecordBatch, text: str) -> pa.Array:
    if text in batch.schema.names:
        return batch.column(text)
    fetch, names = key_expression(text)
    used = [name for name in batch.schema.names if name in names]
    columns = [batch.column(name) for name in used]
    if used and not any(pa.types.is_nested(column.type) for column in columns):
        codes, values = encode_columns(columns)
        results = [fetch(dict(zip(used, each, strict=True))) for each in values]
        return pa.array(results).take(codes)
    return pa.array([fetch(row) for row in batch.select(used).to_pylist()])


def _normalize_floats(column: pa.Array) -> pa.Array:
    if not pa.types.is_floating(column.type):
        return column
    column = pc.add(pc.cast(column, pa.float64()), 0.0)
    return pc.if_else(pc.is_nan(column), float("nan"), column)


def encode_columns(columns: Sequence[pa.Array]) -> tuple[pa.Array, list[tuple[Any, ...]]]:
    """Number the distinct rows of columns from 0 without gaps; return numbers and distinct rows.

    There is at least one column, and none has a nested type.
    """
    codes = [column.dictionary_encode("encode") for column in columns]
    if len(codes) == 1:
        return codes[0].indices, [(value,) for value in codes[0].dictionary.to_pylist()]
    joined = reduce(_combine_codes, codes[1:], codes[0].indices)
    first = pc.index_in(pa.arange(0, len(pc.unique(joined))).cast(joined.type), joined)
    values = (column.take(first).to_pylist() for column in columns)
    return joined, list(zip(*values, strict=True))


def _combine_codes(before: pa.Array, column: pa.DictionaryArray) -> pa.Array:
    """Number the pairs of a previous number and a value, again without gaps."""
    size = pa.scalar(max(1, len(column.dictionary)), pa.int64())
    pairs = pc.add(pc.multiply(pc.cast(before, pa.int64()), size), column.indices)
    return pairs.dictionary_encode().indices


def copy_rows(batch: pa.RecordBatch, selectors: Sequence[Selector]) -> pa.RecordBatch:
    """Copy each row once for each selector, for a `PatternOperator` with ``copied``.

    `selectors` is the result of `RuleSet.selectors`, with at least one.

    Raises:
        FilterError: a part of a key is neither a column nor an expression.
    """
    names = [*batch.schema.names, SELECTOR, KEY_BYTES, FIRST]
    parts = []
    for number, selector in enumerate(selectors):
        added = [
            pa.repeat(pa.scalar(selector_text(selector)), batch.num_rows),
            _key_bytes(batch, selector),
            pa.repeat(pa.scalar(number == 0), batch.num_rows),
        ]
        parts.append(pa.RecordBatch.from_arrays([*batch.columns, *added], names=names))
    copies = pa.Table.from_batches(parts).combine_chunks().to_batches()
    return copies[0] if copies else parts[0]


def _key_bytes(batch: pa.RecordBatch, selector: Selector) -> pa.Array:
    if not selector:
        return pa.repeat(pa.scalar(encode_key((), ()), pa.binary()), batch.num_rows)
    codes, values = encode_columns(key_columns(batch, selector))
    return pa.array([encode_key(selector, each) for each in values], pa.binary()).take(codes)
