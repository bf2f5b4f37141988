"""Evaluate conditions on batches; a condition that several rules share is evaluated once.

The caller may pass a compiler of masks; without one, each row is evaluated alone. For a condition
on the past of a run, only its local part is evaluated here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.cep.nfa.compiled import CompiledRule
from streambroker_core.expression import Expression, tree

Mask: TypeAlias = "Callable[[pa.RecordBatch, MutableMapping[str, pa.BooleanArray]], Any]"
"""Receives rows and a cache of predicate masks on them; returns a boolean for each row."""
MaskMaker: TypeAlias = "Callable[[Expression, pa.Schema], Mask]"

_MIN_LOOKUPS = 4
"""From this many comparisons of one column with texts on, one lookup evaluates them all."""
_BITS_PER_WORD = 62
"""Number of conditions whose bits fit into one int64."""
_MAX_SCHEMAS = 64
_MASK_CACHE: dict[tuple[MaskMaker, pa.Schema], dict[str, Mask]] = {}


def row_by_row(expression: Expression, schema: pa.Schema) -> Mask:
    """Return a mask that evaluates each row alone."""
    names = [name for name in schema.names if name in expression.names()]

    def mask(batch: pa.RecordBatch, _: MutableMapping[str, pa.BooleanArray]) -> Any:
        if not names:
            return pa.array([expression.matches({})] * batch.num_rows, pa.bool_())
        rows = batch.select(names).to_pylist()
        return pa.array([expression.matches(row) for row in rows], pa.bool_())

    return mask


def _cached_masks(maker: MaskMaker, schema: pa.Schema) -> dict[str, Mask]:
    """Return the cache of masks for a schema, by the texts of their expressions."""
    cached = _MASK_CACHE.get((maker, schema))
    if cached is None:
        if len(_MASK_CACHE) >= _MAX_SCHEMAS:
            _MASK_CACHE.clear()
        cached = _MASK_CACHE[maker, schema] = {}
    return cached


class Hits:
    """Rows that one automaton must process: ordered indices in the batch, and condition bits.

    Bits of conditions on the past are set if their local part holds.
    """

    __slots__ = ("bits", "rows")

    def __init__(self, rows: pa.Array, bits: list[int]) -> None:
        self.rows, self.bits = rows, bits


class ConditionMasks:
    """Masks of the conditions of all rules, by their texts, for one schema."""

    def __init__(
        self, rules: Iterable[CompiledRule], schema: pa.Schema, maker: MaskMaker = row_by_row
    ) -> None:
        cached = _cached_masks(maker, schema)
        self._masks: dict[str, Mask] = {}
        lookups: dict[str, dict[str, str]] = {}
        for each in rules:
            for text, part in zip(
                each.condition_texts, each.condition_bits.local_parts, strict=True
            ):
                if text is None or part is None or text in self._masks:
                    continue
                if text not in cached:
                    cached[text] = maker(part, schema)
                self._masks[text] = cached[text]
                _add_lookup(lookups, text, part, schema)
        self._lookups = {name: each for name, each in lookups.items() if len(each) >= _MIN_LOOKUPS}

    def evaluate(self, batch: pa.RecordBatch) -> BatchHits:
        """Return the hits of a batch, computed on demand."""
        return BatchHits(batch, self._masks, self._lookups)


def _add_lookup(
    lookups: dict[str, dict[str, str]], text: str, part: Expression, schema: pa.Schema
) -> None:
    node = part.tree
    if (
        isinstance(node, tree.Comparison)
        and node.op == "=="
        and isinstance(node.left, tree.Name)
        and isinstance(node.right, tree.Text)
        and node.left.name in schema.names
        and pa.types.is_string(schema.field(node.left.name).type)
    ):
        lookups.setdefault(node.left.name, {})[node.right.value] = text


class BatchHits:
    """Hits of one batch; a mask is evaluated on first use."""

    def __init__(
        self, batch: pa.RecordBatch, masks: dict[str, Mask], lookups: dict[str, dict[str, str]]
    ) -> None:
        self._batch, self._masks = batch, masks
        self._cache: dict[str, pa.BooleanArray] = {}
        self._evaluated: dict[str, pa.BooleanArray] = {}
        self._lookup_rows: dict[str, list[int]] = {}
        for name, texts in lookups.items():
            self._lookup_rows |= _find_lookup_rows(
                batch.column(batch.schema.get_field_index(name)), texts
            )

    def hits_for(self, rule: CompiledRule) -> Hits:
        """Return the rows that fulfil at least one condition of a rule, or all if it needs all."""
        texts = rule.condition_texts
        if rule.automaton.event_need == "all" or None in texts or not texts:
            rows = pa.arange(0, self._batch.num_rows)
            return Hits(rows, self._bits(texts, rows))
        return self.hits_of(texts)

    def hits_of(self, texts: tuple[str | None, ...]) -> Hits:
        """Return the rows that fulfil at least one of some conditions, with a bit for each."""
        if self._lookup_rows and all(text in self._lookup_rows for text in texts):
            return self._hits_from_lookups(texts)
        masks = [self._mask(text) for text in dict.fromkeys(texts) if text is not None]
        any_mask = masks[0]
        for mask in masks[1:]:
            any_mask = pc.or_(any_mask, mask)
        rows = pc.indices_nonzero(any_mask)
        return Hits(rows, self._bits(texts, rows))

    def _hits_from_lookups(self, texts: tuple[str | None, ...]) -> Hits:
        bits: dict[int, int] = {}
        for index, text in enumerate(texts):
            for row in self._lookup_rows[text or ""]:
                bits[row] = bits.get(row, 0) | 1 << index
        rows = sorted(bits)
        return Hits(pa.array(rows, pa.int64()), [bits[row] for row in rows])

    def _bits(self, texts: tuple[str | None, ...], rows: pa.Array) -> list[int]:
        """Return the condition bits of rows, in steps of 62 conditions."""
        bits: list[int] = [0] * len(rows)
        for low in range(0, len(texts), _BITS_PER_WORD):
            part = self._bits_as_integers(texts[low : low + _BITS_PER_WORD], rows).to_pylist()
            bits = (
                [one | other << low for one, other in zip(bits, part, strict=True)] if low else part
            )
        return bits

    def _bits_as_integers(self, texts: tuple[str | None, ...], rows: pa.Array) -> Any:
        always = sum(1 << index for index, text in enumerate(texts) if text is None)
        total = pa.repeat(pa.scalar(always, pa.int64()), len(rows))
        for index, text in enumerate(texts):
            if text is not None:
                holds = pc.cast(self._mask(text).take(rows), pa.int64())
                total = pc.bit_wise_or(total, pc.shift_left(holds, pa.scalar(index, pa.int64())))
        return total

    def _mask(self, text: str) -> Any:
        mask = self._evaluated.get(text)
        if mask is None:
            mask = self._evaluated[text] = self._masks[text](self._batch, self._cache)
        return mask


def _find_lookup_rows(column: Any, texts: dict[str, str]) -> dict[str, list[int]]:
    """Return, for each of many texts, the rows in which a column equals it, in one pass."""
    values = list(texts)
    rows_by_text: dict[str, list[int]] = {text: [] for text in texts.values()}
    numbers = pc.index_in(column, value_set=pa.array(values, column.type))
    rows = pc.indices_nonzero(pc.is_valid(numbers))
    for row, number in zip(rows.to_pylist(), numbers.take(rows).to_pylist(), strict=True):
        rows_by_text[texts[values[number]]].append(row)
    return rows_by_text
