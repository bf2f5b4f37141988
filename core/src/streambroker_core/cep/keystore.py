"""What keys keep: their matchers, read when a key is touched, written when the window ends.

A key is a *place*: the names of its columns and their values, as bytes. Beside the runs stands an
index of when time ends some of them. A key without runs has no entry.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any

from streambroker_core.cep.codec import Reader, Writer
from streambroker_core.cep.matcher import NEVER, Matcher
from streambroker_core.cep.snapshot import RuleKey, read, write
from streambroker_core.control.keyed import KeyedState, time_key, time_of

_RUNS, _DUE, _BEHIND = b"k", b"t", b"u"


def place_of(columns: tuple[str, ...], values: Iterable[Any]) -> bytes:
    """Return a key as bytes; equal keys have equal bytes, and so have 0.0 and -0.0."""
    out = Writer()
    out.value(list(columns))
    out.value([_plain(value) for value in values])
    return out.done()


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return 0.0 if value == 0 else value if value == value else float("nan")
    return value


@lru_cache(maxsize=65_536)
def values_of(place: bytes) -> tuple[Any, ...]:
    """Return the values of a key's columns."""
    reader = Reader(place)
    reader.value()
    return tuple(reader.value())


class KeyStore:
    """The matchers of all keys of a bucket.

    Args:
        state: where they are kept.
        new: returns a matcher without runs; None for a rule that is gone.
    """

    def __init__(self, state: KeyedState, new: Callable[[RuleKey], Matcher | None]) -> None:
        self._state, self._new = state, new
        self._loaded: dict[bytes, dict[RuleKey, Matcher]] = {}
        self._written: dict[bytes, int] = {}
        """When the written index says that time ends something; by place, of loaded ones."""

    def of(self, place: bytes) -> dict[RuleKey, Matcher]:
        """Return the matchers of a key; they may be changed."""
        matchers = self._loaded.get(place)
        return self._load(place, {}) if matchers is None else matchers

    def _load(self, place: bytes, heirs: Mapping[RuleKey, RuleKey]) -> dict[RuleKey, Matcher]:
        data = self._state.get(_RUNS + place)
        matchers: dict[RuleKey, Matcher] = {}
        if data is not None:
            due, blob = Reader(data).number(), data
            head = Writer()
            head.number(due)
            self._written[place] = due
            matchers = read(blob[len(head.done()) :], self._new, heirs)
        self._loaded[place] = matchers
        return matchers

    def places(self) -> list[bytes]:
        """Return the keys that have runs, in order."""
        found = {key[len(_RUNS) :] for key, _ in self._state.scan(_RUNS, _DUE)}
        return sorted(found | {place for place, each in self._loaded.items() if each})

    def due(self, time: int) -> list[bytes]:
        """Return the keys in which time ends something by then, the earliest first."""
        found = []
        below = _DUE + time_key(time + 1) if time + 1 < 2**63 else _BEHIND
        for key, _ in self._state.scan(_DUE, below):
            place = key[len(_DUE) + 8 :]
            if place not in self._loaded:
                found.append((time_of(key[len(_DUE) :]), place))
        for place, matchers in self._loaded.items():
            first = _first(matchers)
            if first <= time:
                found.append((first, place))
        return [place for _, place in sorted(found)]

    def first_due(self) -> int | None:
        """Return when time next ends something, once all is saved; None for never."""
        for key, _ in self._state.scan(_DUE, _BEHIND):
            return time_of(key[len(_DUE) :])
        return None

    def forget(self, gone: Collection[RuleKey], heirs: Mapping[RuleKey, RuleKey]) -> int:
        """Free the runs of rules in all keys, or hand them over; return how many were freed."""
        freed = 0
        for place in self.places():
            if place not in self._loaded:
                self._load(place, heirs)
                continue
            matchers = self._loaded[place]
            for name in [name for name in matchers if name in gone]:
                old = matchers.pop(name)
                heir = self._new(heirs[name]) if name in heirs else None
                if heir is None:
                    freed += len(old.runs)
                else:
                    heir.runs, heir.held, heir.due = old.runs, old.held, old.due
                    matchers[heirs[name]] = heir
        return freed

    def save(self) -> None:
        """Write what was loaded back into the state."""
        for place in sorted(self._loaded):
            matchers = self._loaded[place]
            blob = write(matchers)
            old = self._written.pop(place, NEVER)
            due = NEVER if blob is None else _first(matchers)
            if old not in (NEVER, due):
                self._state.delete(_DUE + time_key(old) + place)
            if blob is None:
                self._state.delete(_RUNS + place)
                continue
            head = Writer()
            head.number(due)
            self._state.put(_RUNS + place, head.done() + blob)
            if due != NEVER:
                self._state.put(_DUE + time_key(due) + place, b"")
        self._loaded.clear()


def _first(matchers: Mapping[RuleKey, Matcher]) -> int:
    return min((each.due for each in matchers.values()), default=NEVER)
