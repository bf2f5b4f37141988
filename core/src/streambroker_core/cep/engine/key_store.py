"""Matchers by key: read when a key is first used, written when the window ends.

Key bytes encode the selector and the values of a key. The state has the runs by key and two
indexes: one of the next due time of each key, and one of the earliest time of its held matches.
A key without runs has no entry, unless a rule numbers its matches.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from streambroker_core.cep.nfa.matcher import Matcher
from streambroker_core.cep.nfa.snapshot import RuleVersionKey, collect_nodes, read, write
from streambroker_core.cep.nfa.value_codec import (
    INTEGER_TAG,
    ValueReader,
    ValueWriter,
    encode_integer,
)
from streambroker_core.cep.pattern.match_buffer import Event, load_fields
from streambroker_core.cep.pattern.run_limits import NEVER
from streambroker_core.control.operators.keyed_state import KeyedState, time_from_key, time_key
from streambroker_core.control.operators.operator import StateError

_HELD, _RUNS, _DUE, _BEHIND = b"h", b"k", b"t", b"u"
_HEAD = struct.Struct(">qq")
_NO_TIME = 2**63 - 1
"""Stored in place of a time for never."""


def encode_key(selector: tuple[str, ...], values: Iterable[Any]) -> bytes:
    """Encode a key; equal keys have equal bytes, also 0.0 and -0.0."""
    items = list(values)
    if len(items) == 1 and type(items[0]) is int:
        return encode_integer(items[0], _integer_key_header(selector))
    out = ValueWriter(_key_header(selector))
    out.write_integer(len(items))
    for value in items:
        out.write_value(_normalize_float(value))
    return out.to_bytes()


@lru_cache(maxsize=1_024)
def _key_header(selector: tuple[str, ...]) -> bytes:
    out = ValueWriter()
    out.write_value(list(selector))
    return out.to_bytes()


@lru_cache(maxsize=1_024)
def _integer_key_header(selector: tuple[str, ...]) -> bytes:
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
    """Stored state of a key that was read.

    Attributes:
        due, held: times in the indexes: next due time, and earliest time of a held match.
        rules: rules with runs in it; None if loading may have removed or handed over runs.
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
    """Matchers of all keys of a bucket; `make_matcher` returns None for a removed rule."""

    def __init__(
        self, state: KeyedState, make_matcher: Callable[[RuleVersionKey], Matcher | None]
    ) -> None:
        self._state, self._make_matcher = state, make_matcher
        self._loaded: dict[bytes, dict[RuleVersionKey, Matcher]] = {}
        self._written: dict[bytes, _StoredKey] = {}

    def matchers_for(self, key_bytes: bytes) -> dict[RuleVersionKey, Matcher]:
        """Return the matchers of a key; the caller may change them."""
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
            removed: list[RuleVersionKey] = []
            matchers = read(data[_HEAD.size :], self._make_matcher, successors, removed)
            due, held = _HEAD.unpack_from(data)
            rules_changed = bool(removed or successors)
            self._written[key_bytes] = _StoredKey(
                due, held, None if rules_changed else tuple(matchers)
            )
        self._loaded[key_bytes] = matchers
        return matchers

    def list_keys(self) -> list[bytes]:
        """Return the keys that have runs, in order."""
        stored = {key[len(_RUNS) :] for key, _ in self._state.scan(_RUNS, _DUE)}
        return sorted(stored | {key_bytes for key_bytes, each in self._loaded.items() if each})

    def due_keys(self, time: int) -> list[bytes]:
        """Return the keys with a run that is due by `time`, the earliest first."""
        due = []
        end = _DUE + time_key(time + 1) if time < _NO_TIME else _BEHIND
        for key, _ in self._state.scan(_DUE, end):
            key_bytes = key[len(_DUE) + 8 :]
            if key_bytes not in self._loaded:
                due.append((time_from_key(key[len(_DUE) :]), key_bytes))
        for key_bytes, matchers in self._loaded.items():
            if matchers:
                first = _earliest_due(matchers)
                if first <= time:
                    due.append((first, key_bytes))
        return [key_bytes for _, key_bytes in sorted(due)]

    def next_due(self) -> int | None:
        """Return the earliest due time in the saved state; None for never."""
        return self._first_time(_DUE, _BEHIND)

    def first_held(self) -> int | None:
        """Return the earliest time of a held match in the saved state; None for none."""
        return self._first_time(_HELD, _RUNS)

    def _first_time(self, index: bytes, below: bytes) -> int | None:
        for key, _ in self._state.scan(index, below):
            return time_from_key(key[len(index) :])
        return None

    def forget(
        self,
        removed: Collection[RuleVersionKey],
        successors: Mapping[RuleVersionKey, RuleVersionKey],
    ) -> None:
        """Free the runs of removed rules in all keys, or hand them over."""
        for key_bytes in self.list_keys():
            if key_bytes not in self._loaded:
                self._load(key_bytes, successors)
                continue
            matchers = self._loaded[key_bytes]
            for name in [name for name in matchers if name in removed]:
                old = matchers.pop(name)
                successor = self._make_matcher(successors[name]) if name in successors else None
                if successor is not None:
                    successor.runs, successor.held, successor.due = old.runs, old.held, old.due
                    successor.released, successor.changed = old.released, True
                    matchers[successors[name]] = successor

    def save(self) -> None:
        """Write changed keys to the state, and unload all keys."""
        changed = sorted(
            key_bytes
            for key_bytes, matchers in self._loaded.items()
            if (matchers or key_bytes in self._written) and self._has_changed(key_bytes)
        )
        nodes = {
            key_bytes: collect_nodes(self._loaded[key_bytes].values()) for key_bytes in changed
        }
        load_fields(_iter_events(nodes.values()))
        for key_bytes in changed:
            self._save(key_bytes, write(self._loaded[key_bytes], nodes[key_bytes]))
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
    first = _NO_TIME
    for each in matchers.values():
        for run in each.waiting:
            first = min(first, run.node.event.time)
    return first
