"""Which rows of a batch fulfil which conditions; what several rules share is asked once.

A compiler of masks is given from outside; without one every row is asked by itself. Of a condition
that asks about the past of a run only what it demands of the event is asked here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.cep.nfa.compiled import CompiledRule
from streambroker_core.expression import Expression, tree

Mask: TypeAlias = "Callable[[pa.RecordBatch, MutableMapping[str, pa.BooleanArray]], Any]"
"""Takes rows and the masks of predicates on them so far; returns a boolean for each row."""
MaskMaker: TypeAlias = "Callable[[Expression, pa.Schema], Mask]"

_MIN_LOOKUPS = 4
"""From so many comparisons of one column with texts on, they are looked up together."""
_BITS_PER_WORD = 62
"""So many conditions have their bits in one int64."""
_MAX_SCHEMAS = 64
_MASK_CACHE: dict[tuple[MaskMaker, pa.Schema], dict[str, Mask]] = {}


def row_by_row(expression: Expression, schema: pa.Schema) -> Mask:
    """Return a mask that asks every row by itself."""
    names = [name for name in schema.names if name in expression.names()]

    def mask(batch: pa.RecordBatch, _: MutableMapping[str, pa.BooleanArray]) -> Any:
        if not names:
            return pa.array([expression.matches({})] * batch.num_rows, pa.bool_())
        rows = batch.select(names).to_pylist()
        return pa.array([expression.matches(row) for row in rows], pa.bool_())

    return mask


def _cached_masks(maker: MaskMaker, schema: pa.Schema) -> dict[str, Mask]:
    """Return the masks that were made for a schema so far, by the texts of their expressions."""
    known = _MASK_CACHE.get((maker, schema))
    if known is None:
        if len(_MASK_CACHE) >= _MAX_SCHEMAS:
            _MASK_CACHE.clear()
        known = _MASK_CACHE[maker, schema] = {}
    return known


class Hits:
    """The rows that one automaton has to see, and what holds of them.

    Attributes:
        rows: their places in the batch, in order.
        bits: for each the bits of what holds; those of conditions on the past may still be false.
    """

    __slots__ = ("bits", "rows")

    def __init__(self, rows: pa.Array, bits: list[int]) -> None:
        self.rows, self.bits = rows, bits


class ConditionMasks:
    """The conditions of all rules, by their texts; made for one schema.

    Args:
        rules: all of them.
        schema: of the batches.
        maker: makes a mask of an expression.
    """

    def __init__(
        self, rules: Iterable[CompiledRule], schema: pa.Schema, maker: MaskMaker = row_by_row
    ) -> None:
        known = _cached_masks(maker, schema)
        self._masks: dict[str, Mask] = {}
        lookups: dict[str, dict[str, str]] = {}
        for each in rules:
            for text, part in zip(
                each.condition_texts, each.condition_bits.local_parts, strict=True
            ):
                if text is None or part is None or text in self._masks:
                    continue
                if text not in known:
                    known[text] = maker(part, schema)
                self._masks[text] = known[text]
                _add_lookup(lookups, text, part, schema)
        self._lookups = {name: each for name, each in lookups.items() if len(each) >= _MIN_LOOKUPS}

    def evaluate(self, batch: pa.RecordBatch) -> BatchHits:
        """Return who has to see which rows of a batch."""
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
    """The answers for one batch; a mask is computed when it is first asked for."""

    def __init__(
        self, batch: pa.RecordBatch, masks: dict[str, Mask], lookups: dict[str, dict[str, str]]
    ) -> None:
        self._batch, self._masks = batch, masks
        self._cache: dict[str, pa.BooleanArray] = {}
        self._evaluated: dict[str, Any] = {}
        self._lookup_rows: dict[str, list[int]] = {}
        for name, texts in lookups.items():
            self._lookup_rows |= _find_lookup_rows(
                batch.column(batch.schema.get_field_index(name)), texts
            )

    def hits_for(self, rule: CompiledRule) -> Hits:
        """Return the rows that fulfil at least one condition of a rule, or all if it sees all."""
        texts = rule.condition_texts
        if rule.automaton.event_need == "all" or None in texts or not texts:
            rows = pa.arange(0, self._batch.num_rows)
        elif self._lookup_rows and all(text in self._lookup_rows for text in texts):
            return self._hits_from_lookups(texts)
        else:
            masks = [self._mask(text) for text in dict.fromkeys(texts) if text is not None]
            some = masks[0]
            for mask in masks[1:]:
                some = pc.or_(some, mask)
            rows = pc.indices_nonzero(some)
        return Hits(rows, self._bits(texts, rows))

    def _hits_from_lookups(self, texts: tuple[str | None, ...]) -> Hits:
        bits: dict[int, int] = {}
        for place, text in enumerate(texts):
            for row in self._lookup_rows[text or ""]:
                bits[row] = bits.get(row, 0) | 1 << place
        rows = sorted(bits)
        return Hits(pa.array(rows, pa.int64()), [bits[row] for row in rows])

    def _bits(self, texts: tuple[str | None, ...], rows: pa.Array) -> list[int]:
        """Return the bits of rows, up to 62 conditions at once."""
        bits: list[int] = [0] * len(rows)
        for low in range(0, len(texts), _BITS_PER_WORD):
            part = self._bits_as_integers(texts[low : low + _BITS_PER_WORD], rows).to_pylist()
            bits = (
                [one | other << low for one, other in zip(bits, part, strict=True)] if low else part
            )
        return bits

    def _bits_as_integers(self, texts: tuple[str | None, ...], rows: pa.Array) -> Any:
        always = sum(1 << place for place, text in enumerate(texts) if text is None)
        total = pa.repeat(pa.scalar(always, pa.int64()), len(rows))
        for place, text in enumerate(texts):
            if text is not None:
                holds = pc.cast(self._mask(text).take(rows), pa.int64())
                total = pc.bit_wise_or(total, pc.shift_left(holds, pa.scalar(place, pa.int64())))
        return total

    def _mask(self, text: str) -> Any:
        made = self._evaluated.get(text)
        if made is None:
            made = self._evaluated[text] = self._masks[text](self._batch, self._cache)
        return made


def _find_lookup_rows(column: Any, texts: dict[str, str]) -> dict[str, list[int]]:
    """Return the rows in which a column has each of many texts, in one pass."""
    values = list(texts)
    found: dict[str, list[int]] = {text: [] for text in texts.values()}
    numbers = pc.index_in(column, value_set=pa.array(values, column.type))
    rows = pc.indices_nonzero(pc.is_valid(numbers))
    for row, number in zip(rows.to_pylist(), numbers.take(rows).to_pylist(), strict=True):
        found[texts[values[number]]].append(row)
    return found
