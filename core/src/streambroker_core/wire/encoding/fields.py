"""Checked access to JSON-like data; errors name the path of the wrong value.

`Fields` wraps one object. Each reader checks the value of a key. It raises `ManifestError` if the
value has the wrong type, is out of bounds, or is missing without a default. The error has the path
from the root of the document.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

from streambroker_core.errors import ManifestError

_T = TypeVar("_T")


def json_type(value: object) -> str:
    """Return the type of a decoded JSON value in a user's words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int):
        return "an integer"
    if isinstance(value, float):
        return "a number"
    if isinstance(value, str):
        return "a text"
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, Sequence) else type(value).__name__


class Fields:
    """One object of a document and its path.

    ``loose`` ignores unknown keys, which a newer release may have written.
    """

    __slots__ = ("_data", "_loose", "path")

    def __init__(self, data: object, path: str = "", *, loose: bool = False) -> None:
        if not isinstance(data, Mapping):
            raise ManifestError(path=path, reason=f"has to be an object, not {json_type(data)}")
        for key in data:
            if not isinstance(key, str):
                raise ManifestError(path=path, reason=f"has the key {key!r}, which is not a text")
        self._data: Mapping[str, Any] = data
        self._loose = loose
        self.path = path

    def path_to(self, key: str) -> str:
        """Return the path of a key."""
        return f"{self.path}.{key}" if self.path else key

    def error_at(self, key: str, reason: str) -> ManifestError:
        """Return an error for a key."""
        return ManifestError(path=self.path_to(key), reason=reason)

    def has(self, key: str) -> bool:
        """Return whether a key is present and not null."""
        return self._data.get(key) is not None

    def get(self, key: str) -> Any:
        """Return a raw value; None if it is absent or null."""
        return self._data.get(key)

    def raw(self) -> Mapping[str, Any]:
        """Return the object itself."""
        return self._data

    def names(self) -> list[str]:
        """Return the object's keys, sorted."""
        return sorted(self._data)

    def allow_only(self, allowed: Collection[str]) -> None:
        """Raise `ManifestError` on a key that is not allowed, unless ``loose``."""
        for key in () if self._loose else self._data:
            if key not in allowed:
                known = sorted(allowed)
                near = get_close_matches(key, known, n=1)
                hint = f"; did you mean {near[0]}? Known" if near else "; known"
                raise self.error_at(key, f"is not known here{hint} are {', '.join(known)}")

    def text(
        self,
        key: str,
        default: str | None = None,
        *,
        longest: int = 253,
        check: Callable[[str], bool] | None = None,
        expected: str = "",
    ) -> str:
        """Return a non-empty text of at most ``longest`` UTF-8 bytes."""
        value = self._data.get(key)
        if value is None:
            if default is None:
                raise self.error_at(key, "is required")
            return default
        if not isinstance(value, str):
            raise self.error_at(key, f"has to be a text, not {json_type(value)}")
        self._check_text(key, value, longest)
        if check is not None and not check(value):
            raise self.error_at(key, f"is {value!r}, which is not {expected}")
        return value

    def _check_text(self, key: str, value: str, longest: int) -> None:
        if not value:
            raise self.error_at(key, "is empty")
        if len(value) <= longest and value.isascii():
            return
        try:
            size = len(value.encode())
        except UnicodeEncodeError as error:
            raise self.error_at(key, "holds half of a surrogate pair") from error
        if size > longest:
            raise self.error_at(key, f"has {size} bytes, the limit is {longest}")

    def optional_text(self, key: str, *, longest: int = 253) -> str | None:
        """Return a non-empty text, or None if it is absent."""
        return self.text(key, longest=longest) if self.has(key) else None

    def integer(self, key: str, default: int | None = None, *, low: int = 0, high: int) -> int:
        """Return an integer from ``low`` to ``high``."""
        value = self._data.get(key)
        if value is None:
            if default is None:
                raise self.error_at(key, "is required")
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error_at(key, f"has to be an integer, not {json_type(value)}")
        if not low <= value <= high:
            raise self.error_at(key, f"is {value}, which is not from {low} to {high}")
        return value

    def optional_integer(self, key: str, *, low: int = 0, high: int) -> int | None:
        """Return an integer, or None if it is absent."""
        return self.integer(key, low=low, high=high) if self.has(key) else None

    def boolean(self, key: str, default: bool) -> bool:
        """Return a boolean; the texts ``"true"`` and ``"false"`` are errors."""
        value = self._data.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error_at(key, f"has to be true or false, not {json_type(value)}")
        return value

    def word(self, key: str, words: Mapping[str, _T], default: _T) -> _T:
        """Return the value of a word, which has to be in ``words``."""
        value = self._data.get(key)
        if value is None:
            return default
        if not isinstance(value, str) or value not in words:
            raise self.error_at(key, f"is {value!r}; it has to be {' or '.join(words)}")
        return words[value]

    def child(self, key: str) -> Fields:
        """Return an object; an empty one if it is absent."""
        value = self._data.get(key)
        return Fields({} if value is None else value, self.path_to(key), loose=self._loose)

    def entry(self, key: str, index: int, item: object) -> Fields:
        """Return an object in a list, with its path."""
        return Fields(item, f"{self.path_to(key)}[{index}]", loose=self._loose)

    def entries(self, key: str, *, max_items: int) -> Iterator[Fields]:
        """Yield the objects of a list of at most ``max_items`` entries."""
        for index, item in enumerate(self.items(key, max_items=max_items)):
            yield self.entry(key, index, item)

    def items(self, key: str, *, max_items: int) -> list[Any]:
        """Return a list of at most ``max_items`` entries; an empty one if it is absent."""
        value = self._data.get(key)
        if value is None:
            return []
        if not isinstance(value, list | tuple):
            raise self.error_at(key, f"has to be a list, not {json_type(value)}")
        if len(value) > max_items:
            raise self.error_at(key, f"has {len(value)} entries, the limit is {max_items}")
        return list(value)
