"""Generated expressions: trees as the parser makes them, typed filters, rows and batches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from pe_agent.datasource.schemas import as_arrow_schema
from streambroker_core.errors import FilterTypeError
from streambroker_core.expression import Expression, check_filter, tree
from streambroker_core.model.schema import Schema, parse_ddl, to_ddl

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
BITS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64, "j64": 64}
SCHEMA: Schema = parse_ddl(
    "i8 TINYINT, i16 SMALLINT, i32 INT, i64 BIGINT, j64 BIGINT, f32 FLOAT, f64 DOUBLE, g64 DOUBLE, "
    "s STRING, t STRING, topic STRING, b BOOLEAN, c BOOLEAN, "
    "il ARRAY<BIGINT>, kl ARRAY<TINYINT>, fl ARRAY<DOUBLE>, sl ARRAY<STRING>, bl ARRAY<BOOLEAN>"
)
ARROW = as_arrow_schema(to_ddl(SCHEMA))

_EDGES = [0, 1, -1, 2, 3, 7, 63, 64, 2**53, 2**53 + 1, -(2**53) - 1, 2**62, INT64_MAX - 1]
int64s = st.sampled_from([*_EDGES, INT64_MAX, INT64_MIN, INT64_MIN + 1]) | st.integers(
    INT64_MIN, INT64_MAX
)
small = st.integers(-4, 4)
_REALS = [0.0, -0.0, 1.0, 0.5, -2.0, 2.0**53, 2.0**53 + 2, 2.0**63, -(2.0**63), 1e308, 5e-324, 0.1]
finite = st.sampled_from(_REALS) | st.floats(allow_nan=False, allow_infinity=False)
doubles = finite | small.map(float) | st.floats() | st.sampled_from([float("inf"), float("nan")])
_TEXTS = ["", "a", "b", "ab", "é", "z", "\uffff", "\U0001f600", 'q"\\', "a/b", "a", "a//c", "\n"]
texts = st.sampled_from(_TEXTS) | st.text(max_size=4).filter(lambda text: "\x00" not in text)
plain = st.sampled_from(_TEXTS) | st.text(max_size=6)
topics = st.sampled_from(["a", "a/b", "a/b/c", "a/", "/", "", "b", "a/é/c", "a\n/b", "x.y/b"])
topic_filters = st.sampled_from(
    ["a", "#", "+", "a/#", "a/+", "+/b", "a/+/c", "a/+/#", "/", "+/+", "x.y/+", "a/b/#", "a/é/+"]
)


def joined(kind: type[tree.And | tree.Or], items: Sequence[tree.Predicate]) -> tree.Predicate:
    """Join with ``&&`` or ``||``, as flat as the parser does."""
    flat: list[tree.Predicate] = []
    for item in items:
        flat.extend(item.items if isinstance(item, kind) else [item])
    return kind(tuple(flat)) if len(flat) > 1 else flat[0]


def negated(operand: tree.Operand) -> tree.Operand:
    """Put a minus sign in front, as the parser does."""
    match operand:
        case tree.Integer(value=value) if value != INT64_MIN:
            return tree.Integer(-value)
        case tree.Float(value=real):
            return tree.Float(-real)
        case _:
            return tree.Negate(operand)


def _divides(op: str, right: tree.Operand) -> bool:
    return op in "/%" and isinstance(right, tree.Integer | tree.Float) and right.value == 0


def combined(parts: tuple[Any, tree.Operand, tree.Operand]) -> tree.Operand:
    """Join with an operator of arithmetic, never with the literal 0 as divisor."""
    op, left, right = parts
    return tree.Arithmetic(op, left, tree.Integer(1) if _divides(op, right) else right)


def predicates(leaves: st.SearchStrategy[tree.Predicate]) -> st.SearchStrategy[tree.Predicate]:
    """Join predicates with ``&&``, ``||`` and ``!``."""
    return st.recursive(
        leaves,
        lambda inner: (
            inner.map(tree.Not)
            | st.lists(inner, min_size=2, max_size=3).map(partial(joined, tree.And))
            | st.lists(inner, min_size=2, max_size=3).map(partial(joined, tree.Or))
        ),
        max_leaves=5,
    )


# --- any tree the parser can make -----------------------------------------------------------

COMPARISONS: list[tree.ComparisonOp] = ["==", "!=", "<", "<=", ">", ">="]
names = st.sampled_from(["a", "b", "_x1", "has", "topic", "contains", "inner", "l"])
_subscripts = st.builds(tree.Subscript, names, st.integers(-2, 5) | int64s)
_numbers = st.builds(tree.Integer, int64s) | st.builds(tree.Float, finite)
_strings = st.builds(tree.Text, plain)
_booleans = st.builds(tree.Boolean, st.booleans())
_references = st.builds(tree.Name, names) | _subscripts


def _operators(division: bool) -> st.SearchStrategy[str]:
    ops = ["+", "-", "*", "%", "&", "|", "^", "<<", ">>"]
    return st.sampled_from([*ops, "/"] if division else ops)


def _brackets(items: st.SearchStrategy[Any]) -> st.SearchStrategy[tree.ListLiteral]:
    return st.lists(items, min_size=1, max_size=4).map(tuple).map(tree.ListLiteral)


def any_tree(*, division: bool) -> st.SearchStrategy[tree.Predicate]:
    """Return trees without regard to types."""
    numeric = st.recursive(
        _numbers | _references,
        lambda inner: (
            inner.map(negated)
            | inner.map(tree.Invert)
            | st.tuples(_operators(division), inner, inner).map(combined)
        ),
        max_leaves=6,
    )
    operand = numeric | _strings | _booleans
    brackets = st.one_of(_brackets(_numbers), _brackets(_strings), _brackets(_booleans))
    leaves: st.SearchStrategy[tree.Predicate] = st.one_of(
        st.builds(tree.Comparison, st.sampled_from(COMPARISONS), operand, operand),
        st.builds(tree.Membership, operand, st.builds(tree.Name, names) | brackets),
        st.builds(tree.Has, names),
        st.builds(
            tree.StringTest,
            st.sampled_from(["startsWith", "endsWith", "contains"]),
            _references,
            plain,
        ),
        st.builds(tree.Topic, topic_filters),
        _references,
        _booleans,
    )
    return predicates(leaves)


# --- filters that fit SCHEMA ----------------------------------------------------------------


def _fitting(bits: int) -> st.SearchStrategy[tree.Operand]:
    """Return literals that a column of so many bits can be compared with."""
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    whole = st.builds(tree.Integer, st.integers(low, high) | st.integers(-4, 4))
    if bits > 32:
        whole |= st.builds(tree.Integer, int64s)
    real = st.integers(-9, 9).map(lambda value: tree.Float(float(value)))
    return whole | real


_integer_columns = st.sampled_from(list(BITS)).map(tree.Name) | st.sampled_from(
    [tree.Subscript("il", 0), tree.Subscript("il", 2), tree.Subscript("kl", 1)]
)
_float_columns = st.sampled_from(["f32", "f64", "g64"]).map(tree.Name) | st.just(
    tree.Subscript("fl", 1)
)
_string_columns = st.sampled_from(["s", "t", "topic"]).map(tree.Name) | st.just(
    tree.Subscript("sl", 0)
)
_boolean_columns = st.sampled_from(["b", "c"]).map(tree.Name) | st.just(tree.Subscript("bl", 0))
_INTEGER_OPS = ["+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"]
_integers = st.recursive(
    _integer_columns | st.builds(tree.Integer, int64s | small),
    lambda inner: (
        inner.map(negated)
        | inner.map(tree.Invert)
        | st.tuples(st.sampled_from(_INTEGER_OPS), inner, inner).map(combined)
    ),
    max_leaves=4,
)
_floats = st.recursive(
    _float_columns | st.builds(tree.Float, finite),
    lambda inner: (
        inner.map(negated)
        | st.tuples(st.sampled_from(["+", "-", "*", "/"]), inner, inner | _integers).map(combined)
        | st.tuples(st.sampled_from(["+", "-", "*", "/"]), _integers, inner).map(combined)
    ),
    max_leaves=3,
)
_ops = st.sampled_from(COMPARISONS)
_equalities = st.sampled_from(COMPARISONS[:2])


@st.composite
def _column_and_literal(draw: st.DrawFn) -> tree.Predicate:
    name = draw(st.sampled_from(list(BITS)))
    sides: list[tree.Operand] = [tree.Name(name), draw(_fitting(BITS[name]))]
    if draw(st.booleans()):
        sides.reverse()
    return tree.Comparison(draw(_ops), sides[0], sides[1])


def _wholes(items: Sequence[tree.Operand]) -> tree.ListLiteral:
    return tree.ListLiteral(tuple(items))  # type: ignore[arg-type]  # literals, by their makers


_small_lists = st.lists(_fitting(8), min_size=1, max_size=6).map(_wholes)
_real_lists = st.lists(
    st.builds(tree.Float, finite) | st.builds(tree.Integer, int64s | small), min_size=1, max_size=5
).map(_wholes)
_string_lists = st.lists(st.builds(tree.Text, texts), min_size=1, max_size=5).map(_wholes)
_boolean_lists = st.lists(_booleans, min_size=1, max_size=2).map(_wholes)

typed_atoms: st.SearchStrategy[tree.Predicate] = st.one_of(
    _column_and_literal(),
    st.builds(tree.Comparison, _ops, _integers, _integers),
    st.builds(tree.Comparison, _ops, _floats, _floats),
    st.builds(tree.Comparison, _ops, _integer_columns, _float_columns),
    st.builds(tree.Comparison, _ops, _float_columns, _integer_columns),
    st.builds(tree.Comparison, _ops, _float_columns, st.builds(tree.Integer, int64s | small)),
    st.builds(tree.Comparison, _ops, _string_columns, st.builds(tree.Text, texts)),
    st.builds(tree.Comparison, _ops, _string_columns, _string_columns),
    st.builds(tree.Comparison, _equalities, _boolean_columns, _boolean_columns | _booleans),
    st.builds(tree.Membership, _integer_columns, _small_lists),
    st.builds(tree.Membership, _float_columns, _real_lists),
    st.builds(tree.Membership, _string_columns, _string_lists),
    st.builds(tree.Membership, _boolean_columns, _boolean_lists),
    st.builds(
        tree.Membership,
        _fitting(8)
        | _integer_columns
        | _float_columns
        | _integers.filter(lambda node: not isinstance(node, tree.LITERALS)),
        st.sampled_from(["il", "kl"]).map(tree.Name),
    ),
    st.builds(tree.Membership, _integers | _floats, st.just(tree.Name("fl"))),
    st.builds(
        tree.Membership, _string_columns | st.builds(tree.Text, texts), st.just(tree.Name("sl"))
    ),
    st.builds(tree.Membership, _boolean_columns | _booleans, st.just(tree.Name("bl"))),
    st.builds(tree.Has, st.sampled_from([column.name for column in SCHEMA])),
    st.builds(
        tree.StringTest,
        st.sampled_from(["startsWith", "endsWith", "contains"]),
        _string_columns,
        texts,
    ),
    st.builds(tree.Topic, topic_filters),
    _boolean_columns,
    _booleans,
)


def _fits(expression: Expression) -> bool:
    """Tell whether the literals of a filter are within the range of the columns they meet."""
    try:
        check_filter(expression, SCHEMA)
    except FilterTypeError:
        return False
    return True


typed_filters: st.SearchStrategy[Expression] = (
    predicates(typed_atoms).map(lambda node: Expression(kind="filter", tree=node)).filter(_fits)
)

# --- rows of SCHEMA -------------------------------------------------------------------------


def _maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values | values | values


def _whole(bits: int) -> st.SearchStrategy[int]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return small | st.sampled_from([low, high]) | st.integers(low, high)


_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "i8": _whole(8),
    "i16": _whole(16),
    "i32": _whole(32),
    "i64": int64s | small,
    "j64": int64s | small,
    "f32": st.floats(width=32) | small.map(float),
    "f64": doubles,
    "g64": doubles,
    "s": texts,
    "t": texts,
    "topic": topics,
    "b": st.booleans(),
    "c": st.booleans(),
}
_LISTS = {"il": int64s | small, "kl": _whole(8), "fl": doubles, "sl": texts, "bl": st.booleans()}
rows: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {name: _maybe(values) for name, values in _VALUES.items()}
    | {name: _maybe(st.lists(_maybe(values), max_size=4)) for name, values in _LISTS.items()}
)


def batch_of(values: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(values), schema=ARROW)
