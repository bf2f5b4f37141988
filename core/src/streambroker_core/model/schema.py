"""Schemas: the columns of an export, and those that an import needs.

A type is written like Spark's ``simpleString``, in lower case: ``bigint``, ``array<double>``,
``struct<a:int>``, ``decimal(10,2)``. Types are equal if these texts are; nullability is ignored.
A type widens into another one that has all its values, such as ``int`` into ``bigint``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import combinations
from typing import Literal, NoReturn, TypeAlias

from streambroker_core.errors import SchemaError, locate


@dataclass(frozen=True, slots=True)
class Column:
    """Name (case-sensitive) and type of a column."""

    name: str
    type: str


Schema: TypeAlias = tuple[Column, ...]
SchemaPolicy: TypeAlias = Literal["none", "backward", "forward", "full"]
"""Which changes of its columns an export allows; see `streambroker_core.model.schema_changes`."""

_CHAINS = (
    ("tinyint", "smallint", "int", "bigint"),
    ("float", "double"),
    ("date", "timestamp_ntz"),
)
_WIDER = frozenset(pair for chain in _CHAINS for pair in combinations(chain, 2))
_SYNONYMS = {
    "byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint",
    "real": "float", "dec": "decimal", "numeric": "decimal", "character": "char",
    "timestamp_ltz": "timestamp", "null": "void",
}  # fmt: skip
_SIMPLE = frozenset({
    "tinyint", "smallint", "int", "bigint", "float", "double", "string", "boolean", "binary",
    "date", "timestamp", "timestamp_ntz", "variant", "void", "interval", "calendar_interval",
})  # fmt: skip
_SIZED = {"decimal": "10,0", "char": None, "varchar": None, "time": "6", "geometry": None,
          "geography": None}  # fmt: skip
_NESTED = frozenset({"array", "map", "struct"})
_IGNORED = ("not", "null", "comment", "default", "generated")
_UNITS = ("year", "month", "day", "hour", "minute", "second")
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<quoted>`(?:[^`]|``)+`)
    | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    | (?P<word>[^\W]+)
    | (?P<mark>[<>(),:])
    | (?P<other>\S)
    | (?P<end>\Z)
    )""",
    re.VERBOSE | re.DOTALL,
)
_BARE_NAME = re.compile(r"\w+\Z")
_MAX_NESTING = 64


def parse_ddl(text: str) -> Schema:
    """Parse the columns of a DDL text, such as ``price DOUBLE, `odd name` ARRAY<INT>``.

    A colon may separate name and type. ``NOT NULL``, ``COMMENT`` and ``DEFAULT`` are ignored. A
    blank text is the empty schema.

    Raises:
        SchemaError: the text is no list of columns, has a type unknown to Spark, or a name
            twice.
    """
    return _DdlReader(text).columns()


def to_ddl(schema: Schema) -> str:
    """Return a DDL text that `parse_ddl` and Spark can parse, with names in backquotes."""
    return ", ".join(f"{_quoted(column.name)} {column.type}" for column in schema)


def from_items(items: Iterable[Mapping[str, object]]) -> Schema:
    """Return the schema of ``{name, type}`` items, as in manifests and views.

    Raises:
        SchemaError: an item without name or type, a type unknown to Spark, or a name twice.
    """
    columns = []
    for number, item in enumerate(items):
        name, kind = item.get("name"), item.get("type")
        if not isinstance(name, str) or not name or not isinstance(kind, str):
            raise SchemaError(f"column {number} needs a name and a type, both text")
        try:
            columns.append(Column(name, _DdlReader(kind).only_type()))
        except SchemaError as error:
            raise SchemaError(f"column `{name}`: {error.problem}") from error
    _check_unique(columns)
    return tuple(columns)


def to_items(schema: Schema) -> list[dict[str, str]]:
    """Return a schema as ``{name, type}`` items."""
    return [{"name": column.name, "type": column.type} for column in schema]


def widens(narrow: str, wide: str) -> bool:
    """Return whether the other type ``wide`` has each value of type ``narrow``."""
    return (narrow, wide) in _WIDER


def find_missing_column(exported: Schema, desired: Schema) -> str | None:
    """Return a sentence about the first desired column that is missing or has another type.

    Returns:
        None if every desired column is exported with an equal type, or with one that widens into
        the other. An export with the wider type may have earlier rows that the import can read.
    """
    types = {column.name: column.type for column in exported}
    for column in desired:
        if column.name not in types:
            close = get_close_matches(column.name, sorted(types), n=1)
            guess = f"; did you mean `{close[0]}`?" if close else "."
            return f"The export has no column `{column.name}`{guess}"
        pair = types[column.name], column.type
        if pair[0] != pair[1] and not widens(*pair) and not widens(*reversed(pair)):
            return (
                f"Column `{column.name}` is {pair[0]} in the export, but {column.type} is wanted."
            )
    return None


def nested_name(name: str) -> str:
    """Return the name of a field in a struct type, in backquotes if it is no word."""
    return name if _BARE_NAME.match(name) else _quoted(name)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _check_unique(columns: list[Column]) -> None:
    seen: set[str] = set()
    for column in columns:
        if column.name in seen:
            raise SchemaError(f"column `{column.name}` appears twice")
        seen.add(column.name)


class _DdlReader:
    """Token-based parser of a DDL text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._offset = 0
        self._depth = 0
        self._advance()

    def columns(self) -> Schema:
        columns: list[Column] = []
        while self._kind != "end":
            name = self._name()
            self._skip(":")
            columns.append(Column(name, self._type()))
            self._skip_ignored()
            if self._kind != "end" and not self._skip(","):
                self._refuse(f"found `{self._value}`, expected `,`")
        _check_unique(columns)
        return tuple(columns)

    def only_type(self) -> str:
        kind = self._type()
        if self._kind != "end":
            self._refuse(f"found `{self._value}` after the type")
        return kind

    def _advance(self) -> None:
        token = _TOKEN.match(self._text, self._offset)
        if token is None:  # pragma: no cover - the last two alternatives match anything
            raise SchemaError("unreadable text")
        self._kind = token.lastgroup or "end"
        self._value = token[self._kind]
        self._start = token.start(self._kind)
        self._offset = token.end()

    def _refuse(self, problem: str) -> NoReturn:
        raise SchemaError(problem, position=locate(self._text, self._start))

    def _is_word(self, *words: str) -> bool:
        return self._kind == "word" and self._value.lower() in words

    def _skip(self, mark: str) -> bool:
        if self._kind == "mark" and self._value == mark:
            self._advance()
            return True
        return False

    def _expect(self, mark: str) -> None:
        if not self._skip(mark):
            found = f"`{self._value}`" if self._kind != "end" else "the end of the text"
            self._refuse(f"found {found}, expected `{mark}`")

    def _name(self) -> str:
        if self._kind == "quoted":
            name = self._value[1:-1].replace("``", "`")
        elif self._kind == "word":
            name = self._value
        else:
            found = f"`{self._value}`" if self._kind != "end" else "the end of the text"
            self._refuse(f"found {found}, expected a name; odd names go in backquotes")
        self._advance()
        return name

    def _type(self) -> str:
        if self._kind != "word":
            found = f"`{self._value}`" if self._kind != "end" else "the end of the text"
            self._refuse(f"found {found}, expected a type")
        start, written = self._start, self._value.lower()
        word = _SYNONYMS.get(written, written)
        self._advance()
        if word in _NESTED:
            return self._nested(word)
        if word in _SIZED:
            return word + self._size(_SIZED[word])
        if word in _SIMPLE:
            return word + self._suffix(word)
        self._start = start
        known = [*_SIMPLE, *_SIZED, *_NESTED, *_SYNONYMS]
        close = get_close_matches(word, sorted(known), n=1)
        hint = f"; did you mean `{close[0]}`?" if close else ""
        return self._refuse(f"unknown type `{written}`{hint}")

    def _nested(self, word: str) -> str:
        self._depth += 1
        if self._depth > _MAX_NESTING:
            self._refuse(f"types nested deeper than {_MAX_NESTING} levels")
        self._expect("<")
        if word == "struct":
            inner = ",".join(self._fields())
        else:
            inner = self._type()
            if word == "map":
                self._expect(",")
                inner = f"{inner},{self._type()}"
        self._expect(">")
        self._depth -= 1
        return f"{word}<{inner}>"

    def _fields(self) -> list[str]:
        fields: list[str] = []
        while not (self._kind == "mark" and self._value == ">"):
            if fields:
                self._expect(",")
            name = self._name()
            self._skip(":")
            fields.append(f"{nested_name(name)}:{self._type()}")
            self._skip_ignored()
        return fields

    def _size(self, default: str | None) -> str:
        if not self._skip("("):
            return f"({default})" if default else ""
        parts = []
        while self._kind == "word":
            parts.append(self._value.lower())
            self._advance()
            self._skip(",")
        if len(parts) == 1 and default == "10,0":
            parts.append("0")
        self._expect(")")
        return f"({','.join(parts)})"

    def _suffix(self, word: str) -> str:
        """Parse what may follow a plain type: the units of an interval, a collation."""
        if word == "interval" and self._is_word(*_UNITS):
            return " " + " ".join(self._words(*_UNITS, "to"))
        if word == "string" and self._is_word("collate"):
            self._advance()
            return f" collate {self._name().lower()}"
        return ""

    def _words(self, *accepted: str) -> list[str]:
        words = []
        while self._is_word(*accepted):
            words.append(self._value.lower())
            self._advance()
        return words

    def _skip_ignored(self) -> None:
        """Skip NOT NULL, NULL, COMMENT and DEFAULT, up to the end of this column."""
        ends = self._kind == "end" or (self._kind == "mark" and self._value in (",", ">"))
        if not ends and not self._is_word(*_IGNORED):
            self._refuse(f"found `{self._value}`, expected `,`")
        depth = 0
        while self._kind != "end":
            if self._kind == "mark":
                if depth == 0 and self._value in (",", ">"):
                    return
                depth += {"(": 1, ")": -1}.get(self._value, 0)
            self._advance()
