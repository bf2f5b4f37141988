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
from streambroker_core.cep.nfa.snapshot import RuleVersionKey, collect_nodes, read, write
from streambroker_core.cep.nfa.value_codec import (
    INTEGER_TAG,
    ValueReader,
    ValueWriter,
    encode_integer,
)
from streambroker_core.cep.pattern.match_buffer import Event, load_fields
from streambroker_core.control.operators.keyed_state import KeyedState, time_from_key, time_key
from streambroker_core.control.operators.operator import StateError

_HELD, _RUNS, _DUE, _BEHIND = b"h", b"k", b"t", b"u"
_HEAD = struct.Struct(">qq")
_NO_TIME = 2**63 - 1
"""Stands for never where times are kept."""


def encode_key(selector: tuple[str, ...], values: Iterable[Any]) -> bytes:
    """Return a key as bytes; equal keys have equal bytes, and so have 0.0 and -0.0."""
    given = list(values)
    if len(given) == 1 and type(given[0]) is int:
        return encode_integer(given[0], _integer_key_header(selector))
    out = ValueWriter(_key_header(selector))
    out.write_integer(len(given))
    for value in given:
        out.write_value(_normalize_float(value))
    return out.to_bytes()


@lru_cache(maxsize=1_024)
def _key_header(selector: tuple[str, ...]) -> bytes:
    out = ValueWriter()
    out.write_value(list(selector))
    return out.to_bytes()


@lru_cache(maxsize=1_024)
def _integer_key_header(selector: tuple[str, ...]) -> bytes:
    """Return all that stands before the value of a key that is one integer."""
    return encode_integer(1, _key_header(selector)) + INTEGER_TAG


def _normalize_float(value: Any) -> Any:
    if isinstance(value, float):
        return 0.0 if value == 0 else value if value == value else float("nan")
    return value


@lru_cache(maxsize=65_536)
def decode_key(key_bytes: bytes) -> tuple[Any, ...]:
    """Return the values of a key."""
    reader = ValueReader(key_bytes)
    reader.read_value()
    return tuple(reader.read_value() for _ in range(reader.read_integer()))


class _StoredKey:
    """What the state has of a key that was read.

    Attributes:
        due: when its index says that time ends something.
        held: the earliest time of a match that waits, as its index says.
        rules: the rules that have runs in it; None if they are others by now.
    """

    __slots__ = ("due", "held", "rules")

    def __init__(
        self,
        due: int = _NO_TIME,
        held: int = _NO_TIME,
        rules: tuple[RuleVersionKey, ...] | None = None,
    ) -> None:
        self.due, self.held, self.rules = due, held, rules


class KeyStore:
    """The matchers of all keys of a bucket.

    Args:
        state: where they are kept.
        make_matcher: returns a matcher without runs; None for a rule that is gone.
    """

    def __init__(
        self, state: KeyedState, make_matcher: Callable[[RuleVersionKey], Matcher | None]
    ) -> None:
        self._state, self._make_matcher = state, make_matcher
        self._loaded: dict[bytes, dict[RuleVersionKey, Matcher]] = {}
        self._written: dict[bytes, _StoredKey] = {}

    def matchers_for(self, key_bytes: bytes) -> dict[RuleVersionKey, Matcher]:
        """Return the matchers of a key; they may be changed."""
        matchers = self._loaded.get(key_bytes)
        return self._load(key_bytes, {}) if matchers is None else matchers

    def _load(
        self, key_bytes: bytes, successors: Mapping[RuleVersionKey, RuleVersionKey]
    ) -> dict[RuleVersionKey, Matcher]:
        data = self._state.get(_RUNS + key_bytes)
        matchers: dict[RuleVersionKey, Matcher] = {}
        if data is not None:
            if len(data) < _HEAD.size:
                raise StateError("state of patterns is damaged: it ends within a time.")
            gone: list[RuleVersionKey] = []
            matchers = read(data[_HEAD.size :], self._make_matcher, successors, gone)
            due, held = _HEAD.unpack_from(data)
            others = bool(gone or successors)
            self._written[key_bytes] = _StoredKey(due, held, None if others else tuple(matchers))
        self._loaded[key_bytes] = matchers
        return matchers

    def list_keys(self) -> list[bytes]:
        """Return the keys that have runs, in order."""
        found = {key[len(_RUNS) :] for key, _ in self._state.scan(_RUNS, _DUE)}
        return sorted(found | {place for place, each in self._loaded.items() if each})

    def due_keys(self, time: int) -> list[bytes]:
        """Return the keys in which time ends something by then, the earliest first."""
        found = []
        below = _DUE + time_key(time + 1) if time < _NO_TIME else _BEHIND
        for key, _ in self._state.scan(_DUE, below):
            place = key[len(_DUE) + 8 :]
            if place not in self._loaded:
                found.append((time_from_key(key[len(_DUE) :]), place))
        for place, matchers in self._loaded.items():
            if matchers:
                first = _earliest_due(matchers)
                if first <= time:
                    found.append((first, place))
        return [place for _, place in sorted(found)]

    def next_due(self) -> int | None:
        """Return when time next ends something, once all is saved; None for never."""
        return self._first_time(_DUE, _BEHIND)

    def first_held(self) -> int | None:
        """Return the earliest time of a match that waits, once all is saved; None for none."""
        return self._first_time(_HELD, _RUNS)

    def _first_time(self, index: bytes, below: bytes) -> int | None:
        for key, _ in self._state.scan(index, below):
            return time_from_key(key[len(index) :])
        return None

    def forget(
        self,
        removed: Collection[RuleVersionKey],
        successors: Mapping[RuleVersionKey, RuleVersionKey],
    ) -> int:
        """Free the runs of rules in all keys, or hand them over; return how many were freed."""
        freed = 0
        for place in self.list_keys():
            if place not in self._loaded:
                self._load(place, successors)
                continue
            matchers = self._loaded[place]
            for name in [name for name in matchers if name in removed]:
                old = matchers.pop(name)
                heir = self._make_matcher(successors[name]) if name in successors else None
                if heir is None:
                    freed += len(old.runs)
                else:
                    heir.runs, heir.held, heir.due = old.runs, old.held, old.due
                    heir.changed = True
                    matchers[successors[name]] = heir
        return freed

    def save(self) -> None:
        """Write back into the state what has changed of what was loaded."""
        changed = sorted(
            place
            for place, matchers in self._loaded.items()
            if (matchers or place in self._written) and self._has_changed(place)
        )
        nodes = {place: collect_nodes(self._loaded[place].values()) for place in changed}
        load_fields(_iter_events(nodes.values()))
        for place in changed:
            self._save(place, write(self._loaded[place], nodes[place]))
        self._loaded.clear()
        self._written.clear()

    def _has_changed(self, key_bytes: bytes) -> bool:
        matchers, written = self._loaded[key_bytes], self._written.get(key_bytes)
        if written is None:
            return bool(matchers)
        if written.rules != tuple(matchers) or written.due != min(
            _earliest_due(matchers), _NO_TIME
        ):
            return True
        return any(matcher.changed for matcher in matchers.values())

    def _save(self, key_bytes: bytes, blob: bytes | None) -> None:
        state, old = self._state, self._written.get(key_bytes) or _StoredKey()
        matchers = self._loaded[key_bytes] if blob is not None else {}
        due, held = min(_earliest_due(matchers), _NO_TIME), _earliest_held(matchers)
        for index, before, now in ((_DUE, old.due, due), (_HELD, old.held, held)):
            if before == now:
                continue
            if before != _NO_TIME:
                state.delete(index + time_key(before) + key_bytes)
            if now != _NO_TIME:
                state.put(index + time_key(now) + key_bytes, b"")
        if blob is None:
            state.delete(_RUNS + key_bytes)
        else:
            state.put(_RUNS + key_bytes, _HEAD.pack(due, held) + blob)


def _iter_events(nodes: Iterable[Mapping[int, Any]]) -> Iterator[Event]:
    return (node.event for each in nodes for node in each.values())


def _earliest_due(matchers: Mapping[RuleVersionKey, Matcher]) -> int:
    first = NEVER
    for each in matchers.values():
        first = min(first, each.due)
    return first


def _earliest_held(matchers: Mapping[RuleVersionKey, Matcher]) -> int:
    """Return the earliest time of a match that waits for runs that began before it."""
    first = _NO_TIME
    for each in matchers.values():
        for run in each.held:
            first = min(first, run.node.event.time)
    return first
