"""What keys keep: their matchers, read when a key is touched, written when the window ends.

A key is a *place*: what it is made of and the values, as bytes. Beside the runs stand an index of
when time ends some of them, and one of the times of matches that wait for others. A key without
runs has no entry.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from streambroker_core.cep.nfa.matcher import NEVER, Matcher
from streambroker_core.cep.nfa.snapshot import RuleKey, nodes_of, read, write
from streambroker_core.cep.nfa.value_codec import KIND_OF_INTEGER, Reader, Writer, integer
from streambroker_core.cep.pattern.match_buffer import Event, fill
from streambroker_core.control.operators.keyed_state import KeyedState, time_key, time_of
from streambroker_core.control.operators.operator import StateError

_HELD, _RUNS, _DUE, _BEHIND = b"h", b"k", b"t", b"u"
_HEAD = struct.Struct(">qq")
_LAST = 2**63 - 1
"""Stands for never where times are kept."""


def place_of(selector: tuple[str, ...], values: Iterable[Any]) -> bytes:
    """Return a key as bytes; equal keys have equal bytes, and so have 0.0 and -0.0."""
    given = list(values)
    if len(given) == 1 and type(given[0]) is int:
        return integer(given[0], _head_of_integer(selector))
    out = Writer(_head_of(selector))
    out.number(len(given))
    for value in given:
        out.value(_plain(value))
    return out.done()


@lru_cache(maxsize=1_024)
def _head_of(selector: tuple[str, ...]) -> bytes:
    out = Writer()
    out.value(list(selector))
    return out.done()


@lru_cache(maxsize=1_024)
def _head_of_integer(selector: tuple[str, ...]) -> bytes:
    """Return all that stands before the value of a key that is one integer."""
    return integer(1, _head_of(selector)) + KIND_OF_INTEGER


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return 0.0 if value == 0 else value if value == value else float("nan")
    return value


@lru_cache(maxsize=65_536)
def values_of(place: bytes) -> tuple[Any, ...]:
    """Return the values of a key."""
    reader = Reader(place)
    reader.value()
    return tuple(reader.value() for _ in range(reader.number()))


class _Written:
    """What the state has of a key that was read.

    Attributes:
        due: when its index says that time ends something.
        held: the earliest time of a match that waits, as its index says.
        rules: the rules that have runs in it; None if they are others by now.
    """

    __slots__ = ("due", "held", "rules")

    def __init__(
        self, due: int = _LAST, held: int = _LAST, rules: tuple[RuleKey, ...] | None = None
    ) -> None:
        self.due, self.held, self.rules = due, held, rules


class KeyStore:
    """The matchers of all keys of a bucket.

    Args:
        state: where they are kept.
        new: returns a matcher without runs; None for a rule that is gone.
    """

    def __init__(self, state: KeyedState, new: Callable[[RuleKey], Matcher | None]) -> None:
        self._state, self._new = state, new
        self._loaded: dict[bytes, dict[RuleKey, Matcher]] = {}
        self._written: dict[bytes, _Written] = {}

    def of(self, place: bytes) -> dict[RuleKey, Matcher]:
        """Return the matchers of a key; they may be changed."""
        matchers = self._loaded.get(place)
        return self._load(place, {}) if matchers is None else matchers

    def _load(self, place: bytes, heirs: Mapping[RuleKey, RuleKey]) -> dict[RuleKey, Matcher]:
        data = self._state.get(_RUNS + place)
        matchers: dict[RuleKey, Matcher] = {}
        if data is not None:
            if len(data) < _HEAD.size:
                raise StateError("state of patterns is damaged: it ends within a time.")
            gone: list[RuleKey] = []
            matchers = read(data[_HEAD.size :], self._new, heirs, gone)
            due, held = _HEAD.unpack_from(data)
            others = bool(gone or heirs)
            self._written[place] = _Written(due, held, None if others else tuple(matchers))
        self._loaded[place] = matchers
        return matchers

    def places(self) -> list[bytes]:
        """Return the keys that have runs, in order."""
        found = {key[len(_RUNS) :] for key, _ in self._state.scan(_RUNS, _DUE)}
        return sorted(found | {place for place, each in self._loaded.items() if each})

    def due(self, time: int) -> list[bytes]:
        """Return the keys in which time ends something by then, the earliest first."""
        found = []
        below = _DUE + time_key(time + 1) if time < _LAST else _BEHIND
        for key, _ in self._state.scan(_DUE, below):
            place = key[len(_DUE) + 8 :]
            if place not in self._loaded:
                found.append((time_of(key[len(_DUE) :]), place))
        for place, matchers in self._loaded.items():
            if matchers:
                first = _first(matchers)
                if first <= time:
                    found.append((first, place))
        return [place for _, place in sorted(found)]

    def first_due(self) -> int | None:
        """Return when time next ends something, once all is saved; None for never."""
        return self._first_of(_DUE, _BEHIND)

    def first_held(self) -> int | None:
        """Return the earliest time of a match that waits, once all is saved; None for none."""
        return self._first_of(_HELD, _RUNS)

    def _first_of(self, index: bytes, below: bytes) -> int | None:
        for key, _ in self._state.scan(index, below):
            return time_of(key[len(index) :])
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
                    heir.changed = True
                    matchers[heirs[name]] = heir
        return freed

    def save(self) -> None:
        """Write back into the state what has changed of what was loaded."""
        changed = sorted(
            place
            for place, matchers in self._loaded.items()
            if (matchers or place in self._written) and self._has_changed(place)
        )
        nodes = {place: nodes_of(self._loaded[place].values()) for place in changed}
        fill(_events(nodes.values()))
        for place in changed:
            self._save(place, write(self._loaded[place], nodes[place]))
        self._loaded.clear()
        self._written.clear()

    def _has_changed(self, place: bytes) -> bool:
        matchers, written = self._loaded[place], self._written.get(place)
        if written is None:
            return bool(matchers)
        if written.rules != tuple(matchers) or written.due != min(_first(matchers), _LAST):
            return True
        return any(matcher.changed for matcher in matchers.values())

    def _save(self, place: bytes, blob: bytes | None) -> None:
        state, old = self._state, self._written.get(place) or _Written()
        matchers = self._loaded[place] if blob is not None else {}
        due, held = min(_first(matchers), _LAST), _first_held(matchers)
        for index, before, now in ((_DUE, old.due, due), (_HELD, old.held, held)):
            if before == now:
                continue
            if before != _LAST:
                state.delete(index + time_key(before) + place)
            if now != _LAST:
                state.put(index + time_key(now) + place, b"")
        if blob is None:
            state.delete(_RUNS + place)
        else:
            state.put(_RUNS + place, _HEAD.pack(due, held) + blob)


def _events(nodes: Iterable[Mapping[int, Any]]) -> Iterator[Event]:
    return (node.event for each in nodes for node in each.values())


def _first(matchers: Mapping[RuleKey, Matcher]) -> int:
    first = NEVER
    for each in matchers.values():
        first = min(first, each.due)
    return first


def _first_held(matchers: Mapping[RuleKey, Matcher]) -> int:
    """Return the earliest time of a match that waits for runs that began before it."""
    first = _LAST
    for each in matchers.values():
        for run in each.held:
            first = min(first, run.node.event.time)
    return first
