"""The keys of rows, and a copy of each row for each key.

Where rules have keys of their own, a reader makes one copy of each row for each distinct selector,
not for each rule, and each copy goes to the bucket of its key.
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
"""Columns of copies: what the key is made of, the key as bytes, whether it is the first copy."""


def key_columns(batch: pa.RecordBatch, selector: Selector) -> list[pa.Array]:
    """Return the values of a key's parts, a column for each; of floats there is one zero, one NaN.

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
        found = [fetch(dict(zip(used, each, strict=True))) for each in values]
        return pa.array(found).take(codes)
    return pa.array([fetch(row) for row in batch.select(used).to_pylist()])


def _normalize_floats(column: pa.Array) -> pa.Array:
    if not pa.types.is_floating(column.type):
        return column
    column = pc.add(pc.cast(column, pa.float64()), 0.0)
    return pc.if_else(pc.is_nan(column), float("nan"), column)


def encode_columns(columns: Sequence[pa.Array]) -> tuple[pa.Array, list[tuple[Any, ...]]]:
    """Return a number for each row, from 0 without gaps, and what each number stands for.

    Args:
        columns: at least one, of no nested type.
    """
    codes = [column.dictionary_encode("encode") for column in columns]
    if len(codes) == 1:
        return codes[0].indices, [(value,) for value in codes[0].dictionary.to_pylist()]
    joined = reduce(_combine_codes, codes[1:], codes[0].indices)
    first = pc.index_in(pa.arange(0, len(pc.unique(joined))).cast(joined.type), joined)
    values = (column.take(first).to_pylist() for column in columns)
    return joined, list(zip(*values, strict=True))


def _combine_codes(before: pa.Array, column: pa.DictionaryArray) -> pa.Array:
    """Return a number for each pair of a number so far and a value, without gaps again."""
    size = pa.scalar(max(1, len(column.dictionary)), pa.int64())
    pairs = pc.add(pc.multiply(pc.cast(before, pa.int64()), size), column.indices)
    return pairs.dictionary_encode().indices


def copy_rows(batch: pa.RecordBatch, selectors: Sequence[Selector]) -> pa.RecordBatch:
    """Return one copy of each row for each key, as a `PatternOperator` with ``copied`` takes them.

    Args:
        batch: the rows.
        selectors: what `RuleSet.selectors` returns; at least one.

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
    whole = pa.Table.from_batches(parts).combine_chunks().to_batches()
    return whole[0] if whole else parts[0]


def _key_bytes(batch: pa.RecordBatch, selector: Selector) -> pa.Array:
    if not selector:
        return pa.repeat(pa.scalar(encode_key((), ()), pa.binary()), batch.num_rows)
    codes, values = encode_columns(key_columns(batch, selector))
    return pa.array([encode_key(selector, each) for each in values], pa.binary()).take(codes)
