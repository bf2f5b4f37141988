"""Read-only views of side inputs, passed to functions.

A view looks up one key, or a whole Arrow column of keys at once. ``SideInput.value`` defines its
values: one column gives that column's value, otherwise a mapping of names to values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.side.definition import SideInput
from streambroker_core.side.errors import NoValueError, ReadOnlyViewError, SideSchemaError
from streambroker_core.side.keys import equality_class, make_key, make_keys
from streambroker_core.side.state.pages import PagedMap
from streambroker_core.side.state.row_log import RowLog
from streambroker_core.side.state.sorted_runs import LookupResult, SortedRun, flatten

ONLY = pa.array([0], pa.int64())
"""Key of a singleton's value."""


class View:
    """Base class of all views.

    Attributes:
        name: name of the side input.
        version: version of the content: of a static table, or as named by ``SideComplete``.
    """

    __slots__ = ("_side", "name", "version")
    _side: SideInput
    name: str
    version: str | None

    def __init__(self, side: SideInput, version: str | None) -> None:
        for name, value in (("_side", side), ("name", side.name), ("version", version)):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise ReadOnlyViewError(self.name)

    def __delattr__(self, name: str) -> NoReturn:
        raise ReadOnlyViewError(self.name)

    def __setitem__(self, key: object, value: object) -> NoReturn:
        raise ReadOnlyViewError(self.name)

    def __delitem__(self, key: object) -> NoReturn:
        raise ReadOnlyViewError(self.name)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _field(self, name: str | None) -> str | None:
        """Return the value column that a name selects; None for all columns."""
        value = self._side.value
        return name if name is not None else value if isinstance(value, str) else None

    def _to_value(self, value: Mapping[str, Any]) -> Any:
        field = self._field(None)
        return value[field] if field is not None else dict(value)

    def _default(self, field: str | None) -> Any:
        default = self._side.default
        if isinstance(default, Mapping) and field is not None and self._field(None) is None:
            default = default.get(field)
        return deepcopy(default)  # a function may change its copy; later rows must not see that


class SingletonView(View):
    """View of at most one value."""

    __slots__ = ("_row",)
    _row: pa.StructScalar | None

    def __init__(self, side: SideInput, content: PagedMap, version: str | None) -> None:
        super().__init__(side, version)
        result = content.lookup(ONLY)
        self._set("_row", result.values[0] if result.has_value[0].as_py() else None)

    @property
    def empty(self) -> bool:
        """Whether there is no value; a default does not count as one."""
        return self._row is None

    @property
    def value(self) -> Any:
        """The value, or the default.

        Raises:
            NoValueError: there is no value and no default.
        """
        if self._row is not None:
            return self._to_value(self._row.as_py())
        if not self._side.has_default:
            raise NoValueError(self.name)
        return self._default(None)

    def get(self, default: Any = None) -> Any:
        """Return the value, else the side input's default, else ``default``."""
        return default if self.empty and not self._side.has_default else self.value


class ListView(View):
    """View of values in arrival order."""

    __slots__ = ("_values",)
    _values: pa.StructArray

    def __init__(self, side: SideInput, content: RowLog, version: str | None) -> None:
        super().__init__(side, version)
        self._set("_values", content.read_all()[0])

    @property
    def table(self) -> pa.Table:
        """All values, one column per name."""
        return pa.Table.from_batches([pa.RecordBatch.from_struct_array(self._values)])

    def column(self, name: str | None = None) -> pa.Array:
        """Return one value column as an array; without a name the only column, or structs."""
        field = self._field(name)
        return self._values if field is None else pc.struct_field(self._values, field)

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.column().to_pylist())

    def __getitem__(self, index: int) -> Any:
        return self.column()[index].as_py()


class _KeyedView(View):
    __slots__ = ("_content", "_types")
    _content: PagedMap
    _types: list[pa.DataType]

    def __init__(self, side: SideInput, content: PagedMap, version: str | None) -> None:
        super().__init__(side, version)
        self._set("_content", content)
        self._set("_types", [side.schema.field(name).type for name in side.key])

    def contains(self, *columns: pa.Array) -> pa.Array:
        """Return for each key whether it has a value.

        Args:
            columns: one column for each part of the key.

        Raises:
            SideSchemaError: such columns can never equal the key; every lookup raises it.
        """
        return self._lookup_columns(columns).has_value

    def keys(self) -> list[Any]:
        """Return the keys that have a value, in their comparison form, ascending."""
        keys: list[Any] = self._read_all().keys.to_pylist()
        return keys

    def __len__(self) -> int:
        return len(self._read_all().keys)

    def __contains__(self, key: object) -> bool:
        return bool(self._lookup_key(key).has_value[0].as_py())

    def _lookup_columns(self, columns: Sequence[pa.Array]) -> LookupResult:
        types = [column.type for column in columns]
        if list(map(equality_class, types)) != list(map(equality_class, self._types)):
            raise self._key_error(", ".join(map(str, types)) or "no column")
        return self._content.lookup(make_keys(columns))

    def _lookup_key(self, key: object) -> LookupResult:
        parts = key if isinstance(key, tuple) else (key,)
        if len(parts) != len(self._types):
            raise self._key_error(repr(key))
        return self._content.lookup(make_key(parts, self._types))

    def _key_error(self, actual: str) -> SideSchemaError:
        known = ", ".join(
            f"{name} {type_}" for name, type_ in zip(self._side.key, self._types, strict=True)
        )
        return SideSchemaError(
            self.name,
            f"they are looked up by {actual}, and their key is: {known}",
            "pass one value for each part of the key, cast to such a type",
        )

    def _read_all(self) -> SortedRun:
        return self._content.read_all()


class MapView(_KeyedView):
    """View of one value by key."""

    __slots__ = ()

    def lookup(self, *columns: pa.Array, name: str | None = None) -> pa.Array:
        """Return the value of each key, in the order of the keys.

        Args:
            columns: a column for each part of the key; keys may repeat and be null.
            name: the value column to return; default: the column of ``value="…"``, or structs of
                all.

        Returns:
            An array of the same length. Keys without a value have the default, else null.
        """
        return self.columns(*columns, names=(self._field(name),))[1][0]

    def columns(
        self, *columns: pa.Array, names: Sequence[str | None]
    ) -> tuple[pa.Array, list[pa.Array]]:
        """Return for each key whether it has a value, and several of its values, in one lookup.

        Args:
            columns: as for ``lookup``.
            names: the value columns to return; None selects structs of all.
        """
        result = self._lookup_columns(columns)
        has_value = result.has_value
        structs = result.values
        values = [structs if name is None else pc.struct_field(structs, name) for name in names]
        if self._side.has_default or result.has_deleted:
            values = [
                pc.if_else(has_value, column, self._filler(name, column.type))
                for name, column in zip(names, values, strict=True)
            ]
        return has_value, values

    def _filler(self, name: str | None, type_: pa.DataType) -> pa.Scalar:
        return pa.scalar(self._default(name) if self._side.has_default else None, type_)

    def get(self, key: object, default: Any = None) -> Any:
        """Return the value of a key, else its default, else ``default``.

        A key of several parts is a tuple.
        """
        result = self._lookup_key(key)
        if result.has_value[0].as_py():
            return self._to_value(result.values[0].as_py())
        return self._default(None) if self._side.has_default else default

    def __getitem__(self, key: object) -> Any:
        if key not in self and not self._side.has_default:
            raise KeyError(key)
        return self.get(key)

    def items(self) -> list[tuple[Any, Any]]:
        """Return keys and values, ascending by key."""
        level = self._read_all()
        values = [self._to_value(value) for value in level.values.to_pylist()]
        return list(zip(level.keys.to_pylist(), values, strict=True))


class MultimapView(_KeyedView):
    """View of any number of values by key, in arrival order."""

    __slots__ = ()

    def lookup(self, *columns: pa.Array, name: str | None = None) -> pa.Array:
        """Return the values of each key, in the order of the keys, as an array of lists."""
        return self.columns(*columns, names=(self._field(name),))[1][0]

    def columns(
        self, *columns: pa.Array, names: Sequence[str | None]
    ) -> tuple[pa.Array, list[pa.Array]]:
        """Return for each key whether it has values, and several of its values, as lists."""
        result = self._lookup_columns(columns)
        lists = result.values
        structs = flatten(lists)
        lengths = pc.fill_null(pc.cast(pc.list_value_length(lists), pa.int64()), 0)
        offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])
        return result.has_value, [
            pa.ListArray.from_arrays(
                pc.cast(offsets, pa.int32()),
                structs if name is None else pc.struct_field(structs, name),
            )
            for name in names
        ]

    def get(self, key: object) -> list[Any]:
        """Return the values of a key; empty if there are none.

        A key of several parts is a tuple.
        """
        values = self._lookup_key(key).values[0].as_py() or []
        return [self._to_value(value) for value in values]

    def __getitem__(self, key: object) -> list[Any]:
        return self.get(key)

    def items(self) -> list[tuple[Any, list[Any]]]:
        """Return keys and their values, ascending by key."""
        level = self._read_all()
        values = [
            [self._to_value(value) for value in several] for several in level.values.to_pylist()
        ]
        return list(zip(level.keys.to_pylist(), values, strict=True))


class Views(Mapping[str, View]):
    """Views of one call, by name of the side input.

    Attributes:
        window: first instant of the main window, and first instant after it, in microseconds; None
            if main rows have no windows.
        key: values of the main key if rows are grouped; else empty.
    """

    __slots__ = ("_views", "key", "window")
    _views: Mapping[str, View]
    window: tuple[int, int] | None
    key: tuple[Any, ...]

    def __init__(
        self,
        views: Mapping[str, View],
        window: tuple[int, int] | None,
        key: tuple[Any, ...] = (),
    ) -> None:
        for name, value in (("_views", views), ("window", window), ("key", key)):
            object.__setattr__(self, name, value)

    def of_key(self, key: tuple[Any, ...]) -> Views:
        """Return the same views for the rows of one key."""
        return Views(self._views, self.window, key)

    def __getitem__(self, name: str) -> Any:
        return self._views[name]

    def __setitem__(self, name: str, value: object) -> NoReturn:
        raise ReadOnlyViewError(name)

    def __delitem__(self, name: str) -> NoReturn:
        raise ReadOnlyViewError(name)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise ReadOnlyViewError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)


def make_view(side: SideInput, content: PagedMap | RowLog, version: str | None) -> View:
    """Return the view of a side input's content in one window."""
    if isinstance(content, RowLog):
        return ListView(side, content, version)
    if not side.key:
        return SingletonView(side, content, version)
    return (MultimapView if side.many else MapView)(side, content, version)
