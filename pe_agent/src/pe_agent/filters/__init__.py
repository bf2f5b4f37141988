"""Filters on record batches: compile a typed expression to a row mask.

Every mask equals the result of the scalar evaluator for each row. Where Arrow's kernels differ,
`pe_agent.filters.kernels` guards them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from pe_agent.filters import kernels
from streambroker_core.errors import SchemaError
from streambroker_core.expression import Expression, check_filter, tree
from streambroker_core.expression.evaluate import compile_fetch, compile_test
from streambroker_core.expression.filter_types import ColumnType, column_type
from streambroker_core.expression.printer import print_tree
from streambroker_core.model.schema import Column, Schema

MaskCache: TypeAlias = MutableMapping[str, pa.BooleanArray]
_Array: TypeAlias = "Callable[[_TypedBatch], pa.Array]"

_ARROW = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
}
_SPARK = {arrow: spark for spark, arrow in _ARROW.items()} | {
    pa.uint8(): "smallint",
    pa.uint16(): "int",
    pa.uint32(): "bigint",
    pa.float16(): "float",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.date32(): "date",
}
_MATCHES = {
    "startsWith": pc.starts_with,
    "endsWith": pc.ends_with,
    "contains": pc.match_substring,
}
_UNKNOWN = pa.scalar(None, pa.bool_())
# Above this number of equality kernels, one set lookup is cheaper.
_MAX_COMPARISONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledFilter:
    """A filter compiled for one schema.

    Attributes:
        text: canonical text; equal texts give equal masks.
        columns: names of the columns it reads, sorted.
    """

    text: str
    columns: tuple[str, ...]
    _mask: _Mask

    def mask(self, batch: pa.RecordBatch, cache: MaskCache | None = None) -> pa.BooleanArray:
        """Return which rows pass.

        Args:
            batch: has at least the columns of the filter.
            cache: masks of predicates on this batch by their canonical text, shared by several
                filters; each filter adds its own.

        Returns:
            One value per row, never null: unknown does not pass.

        Raises:
            SchemaError: a column is missing or cannot be read as its type.
        """
        result = self._mask(_TypedBatch(batch, {} if cache is None else cache))
        if not isinstance(result, pa.Array):
            return pa.repeat(pa.scalar(result is True), batch.num_rows)
        return result.fill_null(False) if result.null_count else result


def compile_filter(expression: Expression, schema: pa.Schema | Schema) -> CompiledFilter:
    """Compile a filter for the batches of one schema; a blank filter lets every row pass.

    Raises:
        FilterTypeError: the filter does not fit the schema.
    """
    columns = to_spark_schema(schema) if isinstance(schema, pa.Schema) else schema
    check_filter(expression, columns)
    types = {column.name: column_type(column.type) for column in columns}
    mask: _Mask = _constant(True)
    if expression.tree is not None:
        mask = _Compiler(types).predicate(expression.tree)
    return CompiledFilter(
        text=str(expression), columns=tuple(sorted(expression.names())), _mask=mask
    )


def to_spark_schema(schema: pa.Schema) -> Schema:
    """Return an Arrow schema as columns with Spark types.

    A type without a counterpart keeps Arrow's name. A filter can only test whether such a column
    has a value.
    """
    return tuple(Column(field.name, _spark_type(field.type)) for field in schema)


def _spark_type(arrow: pa.DataType) -> str:
    if arrow in _SPARK:
        return _SPARK[arrow]
    if pa.types.is_dictionary(arrow):
        return _spark_type(arrow.value_type)
    if _is_list(arrow):
        return f"array<{_spark_type(arrow.value_type)}>"
    if pa.types.is_struct(arrow):
        return f"struct<{','.join(f'{one.name}:{_spark_type(one.type)}' for one in arrow)}>"
    return f"arrow {arrow}"


def _is_list(arrow: pa.DataType) -> bool:
    kinds = pa.types
    return bool(
        kinds.is_list(arrow)
        or kinds.is_large_list(arrow)
        or kinds.is_fixed_size_list(arrow)
        or kinds.is_list_view(arrow)
        or kinds.is_large_list_view(arrow)
    )


class _TypedBatch:
    def __init__(self, batch: pa.RecordBatch, cache: MaskCache) -> None:
        self.cache = cache
        self.rows = batch.num_rows
        self._batch = batch
        self._columns: dict[str, pa.Array] = {}

    def raw(self, name: str) -> pa.Array:
        index = self._batch.schema.get_field_index(name)
        if index < 0:
            raise SchemaError(f"the batch has no column `{name}`, or has it twice")
        return self._batch.column(index)

    def column(self, name: str, expected: ColumnType) -> pa.Array:
        if name not in self._columns:
            array = self.raw(name)
            try:
                self._columns[name] = _cast_for_kernels(array, expected)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise SchemaError(
                    f"column `{name}` is {array.type} in the batch, not {expected.name}"
                ) from error
        return self._columns[name]


def _cast_for_kernels(array: pa.Array, expected: ColumnType) -> pa.Array:
    if _is_kernel_type(array.type, expected):
        return array
    if pa.types.is_list_view(array.type) or pa.types.is_large_list_view(array.type):
        return _cast_for_kernels(kernels.contiguous(array), expected)
    return array.cast(_kernel_type(expected))


def _is_kernel_type(arrow: pa.DataType, expected: ColumnType) -> bool:
    if expected.element is not None:
        is_list = pa.types.is_list(arrow) or pa.types.is_large_list(arrow)
        return is_list and _is_kernel_type(arrow.value_type, expected.element)
    if expected.kind == "string":
        return bool(pa.types.is_string(arrow) or pa.types.is_large_string(arrow))
    return bool(arrow == _ARROW[expected.name])


def _kernel_type(expected: ColumnType) -> pa.DataType:
    if expected.element is not None:
        return pa.list_(_kernel_type(expected.element))
    return pa.string() if expected.kind == "string" else _ARROW[expected.name]


# A mask is an array with nulls for unknown, or one result for all rows.
_Mask: TypeAlias = "Callable[[_TypedBatch], pa.BooleanArray | bool | None]"


def _constant(answer: bool | None) -> _Mask:
    return lambda batch: answer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operand:
    """An operand: an array from each batch, or one value for all rows.

    Attributes:
        kind: as in `ColumnType`.
        value: the value, if ``array`` is None; None is unknown.
        array: creates the array.
    """

    kind: str
    value: Any = None
    array: _Array | None = None

    def values(self, batch: _TypedBatch) -> pa.Array:
        """Return the array; numbers as int64 or double."""
        if self.array is None:
            arrow = pa.float64() if isinstance(self.value, float) else pa.int64()
            return pa.repeat(pa.scalar(self.value, arrow), batch.rows)
        return _widen(self.array(batch))


def _widen(array: pa.Array) -> pa.Array:
    if pa.types.is_integer(array.type):
        return array.cast(pa.int64())
    return array.cast(pa.float64()) if pa.types.is_floating(array.type) else array


class _Compiler:
    def __init__(self, types: dict[str, ColumnType]) -> None:
        self._types = types

    def predicate(self, node: tree.Predicate) -> _Mask:
        match node:
            case tree.And():
                return _join(node.items, self, pc.and_kleene, absorbing=False)
            case tree.Or():
                return _join(node.items, self, pc.or_kleene, absorbing=True)
            case tree.Not():
                return _invert(self.predicate(node.operand))
            case _:
                if not tree.names(node):
                    return _constant(compile_test(node)({}))
                return _cache_mask(print_tree(node), self._atom(node))

    def _atom(self, node: tree.Atom) -> _Mask:
        match node:
            case tree.Comparison():
                return _comparison(node.op, self.operand(node.left), self.operand(node.right))
            case tree.Membership():
                return self._membership(node)
            case tree.Has():
                return lambda batch: batch.raw(node.name).is_valid()
            case tree.StringTest():
                subject, kernel = self._array(node.subject), _MATCHES[node.function]
                return lambda batch: kernel(subject(batch), pattern=node.text)
            case tree.Topic():
                return _topic(self._array(tree.Name(tree.TOPIC_PROPERTY)), node.filter)
            case _:
                return self._array(node)

    def operand(self, node: tree.Operand) -> _Operand:
        """Compile an operand; without columns the evaluator computes it now."""
        if not tree.names(node):
            value = compile_fetch(node)({})
            return _Operand(kind=_value_kind(value), value=value)
        match node:
            case tree.Name():
                wanted = self._types[node.name]
                return _Operand(
                    kind=wanted.kind, array=lambda batch: batch.column(node.name, wanted)
                )
            case tree.Subscript():
                return self._element(node)
            case tree.Negate():
                inner = self.operand(node.operand)
                return _Operand(
                    kind=inner.kind, array=lambda batch: kernels.negate(inner.values(batch))
                )
            case tree.Invert():
                inner = self.operand(node.operand)
                return _Operand(
                    kind=inner.kind, array=lambda batch: pc.bit_wise_not(inner.values(batch))
                )
            case tree.Arithmetic():
                return _arithmetic(node.op, self.operand(node.left), self.operand(node.right))
            case _:
                raise TypeError(f"a literal reads no column: {node!r}")

    def _array(self, node: tree.Operand) -> _Array:
        array = self.operand(node).array
        if array is None:
            raise TypeError(f"reads no column: {node!r}")
        return array

    def _element(self, node: tree.Subscript) -> _Operand:
        wanted = self._types[node.name]
        kind = wanted.element.kind if wanted.element else wanted.kind
        return _Operand(
            kind=kind,
            array=lambda batch: kernels.element(batch.column(node.name, wanted), node.index),
        )

    def _membership(self, node: tree.Membership) -> _Mask:
        item = self.operand(node.item)
        container = node.container
        if isinstance(container, tree.ListLiteral):
            return _in_literals(item, [element.value for element in container.items])
        wanted = self._types[container.name]

        def lists(batch: _TypedBatch) -> pa.Array:
            return batch.column(container.name, wanted)

        return _in_column(item, lists)


def _value_kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    return "float" if isinstance(value, float) else "integer"


def _cache_mask(text: str, mask: _Mask) -> _Mask:
    def run(batch: _TypedBatch) -> Any:
        cached = batch.cache.get(text)
        if cached is None:
            result = mask(batch)
            if not isinstance(result, pa.Array):
                return result
            batch.cache[text] = cached = result
        return cached

    return run


def _invert(inner: _Mask) -> _Mask:
    def run(batch: _TypedBatch) -> Any:
        result = inner(batch)
        if isinstance(result, pa.Array):
            return pc.invert(result)
        return None if result is None else not result

    return run


def _join(
    items: tuple[tree.Predicate, ...],
    compiler: _Compiler,
    kernel: Callable[[Any, Any], Any],
    *,
    absorbing: bool,
) -> _Mask:
    masks = [compiler.predicate(item) for item in items]

    def run(batch: _TypedBatch) -> Any:
        result: Any = not absorbing
        for mask in _skip_neutral(masks, batch, neutral=not absorbing):
            if mask is absorbing:
                return absorbing
            result = mask if result is (not absorbing) else _join_two(kernel, result, mask)
            if isinstance(result, pa.Array) and _is_decided(result, absorbing):
                return result
        return result

    return run


def _skip_neutral(masks: list[_Mask], batch: _TypedBatch, *, neutral: bool) -> Iterator[Any]:
    for mask in masks:
        result = mask(batch)
        if result is not neutral:
            yield result


def _join_two(kernel: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    if left is None and right is None:
        return None
    return kernel(_UNKNOWN if left is None else left, _UNKNOWN if right is None else right)


def _is_decided(mask: pa.BooleanArray, absorbing: bool) -> bool:
    if mask.null_count:
        return False
    return bool(mask.true_count == (len(mask) if absorbing else 0))


def _comparison(op: str, left: _Operand, right: _Operand) -> _Mask:
    if left.array is None:
        left, right, op = right, left, kernels.MIRRORED[op]
    array, other = left.array, right.array
    if array is None:
        raise TypeError("one side of a comparison has to read a column")
    if other is not None:
        return lambda batch: kernels.compare(op, array(batch), other(batch))
    if right.value is None:
        return _constant(None)
    value = right.value
    return lambda batch: kernels.compare_with(op, array(batch), value)


def _in_literals(item: _Operand, values: list[Any]) -> _Mask:
    array = item.array
    if array is None:
        raise TypeError("an item that reads no column is computed by the evaluator")
    if item.kind in ("integer", "string") and len(values) > _MAX_COMPARISONS:
        return lambda batch: _is_in(array(batch), values)

    def run(batch: _TypedBatch) -> Any:
        column = array(batch)
        result = kernels.compare_with("==", column, values[0])
        for value in values[1:]:
            result = pc.or_(result, kernels.compare_with("==", column, value))
        return result

    return run


def _is_in(column: pa.Array, values: list[Any]) -> pa.BooleanArray:
    if pa.types.is_integer(column.type):
        column = column.cast(pa.int64())
        values = [int(value) for value in values if float(value).is_integer()]
        values = [value for value in values if -(2**63) <= value < 2**63]
    result = pc.is_in(column, value_set=pa.array(values, column.type))
    if column.null_count == 0:
        return result
    return pc.if_else(column.is_valid(), result, _UNKNOWN)


def _in_column(item: _Operand, lists: _Array) -> _Mask:
    array = item.array
    if array is None:
        if item.value is None:
            return _constant(None)
        value = item.value
        return lambda batch: kernels.member(
            lists(batch), lambda elements, places: kernels.compare_with("==", elements, value)
        )

    def run(batch: _TypedBatch) -> Any:
        items = array(batch)

        def equal(elements: pa.Array, places: pa.Array) -> pa.Array:
            rows = kernels.parent_rows(places, len(elements))
            return kernels.compare("==", elements, items.take(rows))

        result = kernels.member(lists(batch), equal)
        return pc.if_else(items.is_valid(), result, _UNKNOWN) if items.null_count else result

    return run


def _arithmetic(op: str, left: _Operand, right: _Operand) -> _Operand:
    is_int = left.kind == right.kind == "integer"
    wanted = pa.int64() if is_int else pa.float64()
    kind = "integer" if is_int else "float"
    if (left.array is None and left.value is None) or (right.array is None and right.value is None):
        return _Operand(kind=kind, array=lambda batch: pa.nulls(batch.rows, wanted))

    def run(batch: _TypedBatch) -> pa.Array:
        numbers = left.values(batch).cast(wanted, safe=False)
        if right.array is None:
            value = right.value if is_int else float(right.value)
            return kernels.compute_with(op, numbers, value)
        return kernels.compute(op, numbers, right.values(batch).cast(wanted, safe=False))

    return _Operand(kind=kind, array=run)


def _topic(column: _Array, topic_filter: str) -> _Mask:
    if "+" in topic_filter:
        pattern = _topic_pattern(topic_filter)
        return lambda batch: pc.match_substring_regex(column(batch), pattern=pattern)
    if topic_filter == "#":
        return lambda batch: kernels.where_valid(column(batch), answer=True)
    if not topic_filter.endswith("/#"):
        return lambda batch: kernels.compare_with("==", column(batch), topic_filter)
    parent = topic_filter[:-2]

    def run(batch: _TypedBatch) -> Any:
        topics = column(batch)
        below = pc.starts_with(topics, pattern=f"{parent}/")
        return pc.or_(below, kernels.compare_with("==", topics, parent))

    return run


def _topic_pattern(topic_filter: str) -> str:
    levels = topic_filter.split("/")
    below = levels[-1] == "#"
    if below:
        levels.pop()
    text = "/".join("[^/]*" if level == "+" else _escape_regex(level) for level in levels)
    return rf"(?s)\A{text}{'(?:/.*)?' if below else ''}\z"


def _escape_regex(text: str) -> str:
    return "".join(char if char.isalnum() else rf"\x{{{ord(char):x}}}" for char in text)
