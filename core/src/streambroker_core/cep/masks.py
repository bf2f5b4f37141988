"""Which rows of a batch fulfil which conditions; what several rules share is asked once.

A compiler of masks is given from outside; without one every row is asked by itself. Of a condition
that asks about the past of a run only what it demands of the event is asked here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.cep.automaton import Automaton
from streambroker_core.cep.conditions import local_part
from streambroker_core.expression import Expression, tree

Mask: TypeAlias = "Callable[[pa.RecordBatch, MutableMapping[str, pa.BooleanArray]], Any]"
"""Takes rows and the masks of predicates on them so far; returns a boolean for each row."""
MaskMaker: TypeAlias = "Callable[[Expression, pa.Schema], Mask]"

_FEW = 4
"""From so many comparisons of one column with texts on, they are looked up together."""


def row_by_row(expression: Expression, schema: pa.Schema) -> Mask:
    """Return a mask that asks every row by itself."""
    names = [name for name in schema.names if name in expression.names()]

    def mask(batch: pa.RecordBatch, _: MutableMapping[str, pa.BooleanArray]) -> Any:
        if not names:
            return pa.array([expression.matches({})] * batch.num_rows, pa.bool_())
        rows = batch.select(names).to_pylist()
        return pa.array([expression.matches(row) for row in rows], pa.bool_())

    return mask


class Hits:
    """The rows that one automaton has to see, and what holds of them.

    Attributes:
        rows: their numbers, in order.
        bits: for each the bits of what holds; those of conditions on the past may still be false.
    """

    __slots__ = ("bits", "rows")

    def __init__(self, rows: list[int], bits: list[int]) -> None:
        self.rows, self.bits = rows, bits


class Conditions:
    """The conditions of all rules, by their texts; made for one schema.

    Args:
        automata: of all rules.
        schema: of the batches.
        maker: makes a mask of an expression.
    """

    def __init__(
        self, automata: Iterable[Automaton], schema: pa.Schema, maker: MaskMaker = row_by_row
    ) -> None:
        self._masks: dict[str, tuple[Expression, Mask]] = {}
        self._lookups: dict[str, dict[str, str]] = {}
        self._parts: dict[int, list[str | None]] = {}
        for automaton in automata:
            parts = [local_part(each) for each in automaton.conditions]
            self._parts[id(automaton)] = [None if part is None else str(part) for part in parts]
            for part in parts:
                if part is not None and str(part) not in self._masks:
                    self._masks[str(part)] = (part, maker(part, schema))
                    self._look_up(str(part), part, schema)
        self._lookups = {name: each for name, each in self._lookups.items() if len(each) >= _FEW}

    def _look_up(self, text: str, part: Expression, schema: pa.Schema) -> None:
        node = part.tree
        if (
            isinstance(node, tree.Comparison)
            and node.op == "=="
            and isinstance(node.left, tree.Name)
            and isinstance(node.right, tree.Text)
            and pa.types.is_string(schema.field(node.left.name).type)
        ):
            self._lookups.setdefault(node.left.name, {})[node.right.value] = text

    def of(self, batch: pa.RecordBatch) -> BatchHits:
        """Return who has to see which rows of a batch."""
        return BatchHits(batch, self._masks, self._lookups, self._parts)


class BatchHits:
    """The answers for one batch; a mask is computed when it is first asked for."""

    def __init__(
        self,
        batch: pa.RecordBatch,
        masks: dict[str, tuple[Expression, Mask]],
        lookups: dict[str, dict[str, str]],
        parts: dict[int, list[str | None]],
    ) -> None:
        self._batch, self._masks, self._parts = batch, masks, parts
        self._cache: dict[str, pa.BooleanArray] = {}
        self._made: dict[str, Any] = {}
        self._found: dict[str, list[int]] = {}
        for name, texts in lookups.items():
            self._found |= _found(batch.column(batch.schema.get_field_index(name)), texts)

    def of(self, automaton: Automaton) -> Hits:
        """Return the rows that fulfil at least one condition of an automaton."""
        parts = self._parts[id(automaton)]
        if automaton.appetite == "all" or None in parts or not parts:
            rows: list[int] = list(range(self._batch.num_rows))
            return Hits(rows, self._bits(parts, rows))
        if all(part in self._found for part in parts):
            return self._few(parts)
        masks = [self._mask(part) for part in dict.fromkeys(parts) if part is not None]
        any_ = masks[0]
        for mask in masks[1:]:
            any_ = pc.or_(any_, mask)
        indices = pc.indices_nonzero(any_)
        rows = indices.to_pylist()
        if len(parts) > 62:
            return Hits(rows, self._bits(parts, rows))
        total: Any = None
        for place, part in enumerate(parts):
            bit = pc.shift_left(
                pc.cast(self._mask(part or "").take(indices), pa.int64()), pa.scalar(place)
            )
            total = bit if total is None else pc.bit_wise_or(total, bit)
        return Hits(rows, total.to_pylist())

    def _few(self, parts: list[str | None]) -> Hits:
        bits: dict[int, int] = {}
        for place, part in enumerate(parts):
            for row in self._found[part or ""]:
                bits[row] = bits.get(row, 0) | 1 << place
        rows = sorted(bits)
        return Hits(rows, [bits[row] for row in rows])

    def _bits(self, parts: list[str | None], rows: list[int]) -> list[int]:
        bits = [0] * len(rows)
        indices = pa.array(rows, pa.int64())
        for place, part in enumerate(parts):
            if part is None:
                bits = [each | 1 << place for each in bits]
                continue
            for row, holds in enumerate(self._mask(part).take(indices).to_pylist()):
                if holds:
                    bits[row] |= 1 << place
        return bits

    def _mask(self, text: str) -> Any:
        made = self._made.get(text)
        if made is None:
            _, mask = self._masks[text]
            made = self._made[text] = mask(self._batch, self._cache)
        return made


def _found(column: Any, texts: dict[str, str]) -> dict[str, list[int]]:
    """Return the rows in which a column has each of many texts, in one pass."""
    values = list(texts)
    found: dict[str, list[int]] = {text: [] for text in texts.values()}
    numbers = pc.index_in(column, value_set=pa.array(values, column.type))
    rows = pc.indices_nonzero(pc.is_valid(numbers))
    for row, number in zip(rows.to_pylist(), numbers.take(rows).to_pylist(), strict=True):
        found[texts[values[number]]].append(row)
    return found
