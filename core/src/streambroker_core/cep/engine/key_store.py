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

from streambroker_core.cep.nfa.linear_group import LinearGroup
from streambroker_core.cep.nfa.matcher import Matcher, Run
from streambroker_core.cep.nfa.snapshot import (
    MAX_RULE_SETS,
    Rules,
    RuleVersionKey,
    SharedRuns,
    collect_nodes,
    read,
    write,
)
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


class KeyRuns:
    """Runs of one key.

    Attributes:
        matchers: those of rules by themselves.
        shared: runs that several rules have in common; a rule is in one place at most.
        changed: the shared runs differ from those in the state.
    """

    __slots__ = ("changed", "matchers", "shared")

    def __init__(self) -> None:
        self.matchers: dict[RuleVersionKey, Matcher] = {}
        self.shared: list[SharedRuns] = []
        self.changed = False

    @property
    def is_empty(self) -> bool:
        """Whether no rule has runs."""
        return not (self.matchers or self.shared)

    def replace(self, shared: SharedRuns, by: SharedRuns) -> None:
        """Replace shared runs by others, if there are any."""
        self.shared.remove(shared)
        if by.rules and by.runs:
            self.shared.append(by)
        self.changed = True

    def own(self, group: LinearGroup) -> list[RuleVersionKey]:
        """Return the rules of a group that have a matcher."""
        if len(group.numbers) < len(self.matchers):
            return [name for name in group.numbers if name in self.matchers]
        return [name for name in self.matchers if name in group.numbers]

    @property
    def due(self) -> int:
        """Time before which no run ends; `NEVER` without one."""
        due = NEVER
        for matcher in self.matchers.values():
            due = min(due, matcher.due)
        for shared in self.shared:
            due = min(due, shared.due)
        return due


class _StoredKey:
    """Stored state of a key that was read.

    Attributes:
        due, held: times in the indexes: next due time, and earliest time of a held match.
        rules: rules with matchers in it; None if loading may have removed or handed over runs.
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
    """Runs of all keys of a bucket.

    Args:
        make_matcher: returns a matcher without runs for a rule, or None for a removed rule.
        is_active: returns whether a rule is in force.
    """

    def __init__(
        self,
        state: KeyedState,
        make_matcher: Callable[[RuleVersionKey], Matcher | None],
        is_active: Callable[[RuleVersionKey], bool],
    ) -> None:
        self._state, self._make_matcher, self._is_active = state, make_matcher, is_active
        self._loaded: dict[bytes, KeyRuns] = {}
        self._written: dict[bytes, _StoredKey] = {}
        self._active_rules: dict[Rules, Rules] = {}

    def runs_of(self, key_bytes: bytes) -> KeyRuns:
        """Return the runs of a key; the caller may change them."""
        found = self._loaded.get(key_bytes)
        return self._load(key_bytes, {}) if found is None else found

    def matchers_for(self, key_bytes: bytes) -> dict[RuleVersionKey, Matcher]:
        """Return a matcher for each rule with runs in a key, to read them."""
        found = self.runs_of(key_bytes)
        matchers = dict(found.matchers)
        for shared in found.shared:
            matchers.update(self._separate_matchers(shared))
        return matchers

    def matcher_of(self, found: KeyRuns, name: RuleVersionKey) -> Matcher | None:
        """Return the matcher of a rule, which the caller may change; None without runs."""
        for shared in found.shared:
            if name in shared.rules:
                self.separate(found, shared)
                break
        return found.matchers.get(name)

    def separate(self, found: KeyRuns, shared: SharedRuns) -> None:
        """Give each rule its own matcher in place of shared runs."""
        found.matchers.update(self._separate_matchers(shared))
        found.replace(shared, shared._replace(runs=[]))

    def _separate_matchers(self, shared: SharedRuns) -> Iterator[tuple[RuleVersionKey, Matcher]]:
        for name in sorted(shared.rules):
            matcher = self._make_matcher(name)
            if matcher is not None:
                matcher.set_runs(shared.runs)
                yield name, matcher

    def take(self, found: KeyRuns, group: LinearGroup) -> list[tuple[int, list[Run]]]:
        """Return the runs of a group of rules in a key, with the masks of their rules."""
        if found.is_empty:
            return []
        parts: list[tuple[int, list[Run]]] = []
        for shared in tuple(found.shared):
            mask = group.mask_of(shared.rules)
            if mask is None:
                self.separate(found, shared)
            elif mask:
                parts.append((mask, shared.runs))
        own = found.own(group)
        return [*parts, *((1 << group.numbers[name], found.matchers[name].runs) for name in own)]

    def put(self, found: KeyRuns, group: LinearGroup, parts: list[tuple[int, list[Run]]]) -> None:
        """Replace the runs of a group in a key, after `take`."""
        if found.shared:
            kept = [shared for shared in found.shared if not group.mask_of(shared.rules)]
            found.shared, found.changed = kept, found.changed or len(kept) < len(found.shared)
        before = set(found.own(group))
        for mask, runs in parts:
            if mask & mask - 1:
                due = min(run.due for run in runs)
                found.shared.append(SharedRuns(group.rules_in(mask), runs, due))
                found.changed = True
                continue
            name = group.names[mask.bit_length() - 1]
            matcher = found.matchers.get(name) or self._make_matcher(name)
            if matcher is not None:
                matcher.set_runs(runs)
                found.matchers[name] = matcher
                before.discard(name)
        for name in before:
            del found.matchers[name]

    def _load(
        self, key_bytes: bytes, successors: Mapping[RuleVersionKey, RuleVersionKey]
    ) -> KeyRuns:
        data = self._state.get(_RUNS + key_bytes)
        found = KeyRuns()
        if data is not None:
            if len(data) < _HEAD.size:
                raise StateError("state of patterns is damaged: it ends within a time.")
            stored = read(data[_HEAD.size :], self._make_matcher, successors)
            found.matchers = stored.matchers
            if stored.shared:
                parts = map(self._active_part, stored.shared)
                found.shared = [part for part in parts if part.rules]
            due, held = _HEAD.unpack_from(data)
            rules_changed = stored.removed or successors or stored.shared != found.shared
            self._written[key_bytes] = _StoredKey(
                due, held, None if rules_changed else tuple(found.matchers)
            )
        self._loaded[key_bytes] = found
        return found

    def _active_part(self, shared: SharedRuns) -> SharedRuns:
        """Return shared runs without removed rules."""
        rules = self._active_rules.get(shared.rules)
        if rules is None:
            if len(self._active_rules) >= MAX_RULE_SETS:
                self._active_rules.clear()
            rules = self._active_rules[shared.rules] = frozenset(
                filter(self._is_active, shared.rules)
            )
        return shared if rules == shared.rules else shared._replace(rules=rules)

    def list_keys(self) -> list[bytes]:
        """Return the keys that have runs, in order."""
        stored = {key[len(_RUNS) :] for key, _ in self._state.scan(_RUNS, _DUE)}
        return sorted(
            stored | {key_bytes for key_bytes, each in self._loaded.items() if not each.is_empty}
        )

    def due_keys(self, time: int) -> list[bytes]:
        """Return the keys with a run that is due by `time`, the earliest first."""
        due = []
        end = _DUE + time_key(time + 1) if time < _NO_TIME else _BEHIND
        for key, _ in self._state.scan(_DUE, end):
            key_bytes = key[len(_DUE) + 8 :]
            if key_bytes not in self._loaded:
                due.append((time_from_key(key[len(_DUE) :]), key_bytes))
        for key_bytes, found in self._loaded.items():
            first = found.due
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

    def rules_changed(self) -> None:
        """Note that other rules are in force than before."""
        self._active_rules.clear()

    def forget(
        self,
        removed: Collection[RuleVersionKey],
        successors: Mapping[RuleVersionKey, RuleVersionKey],
    ) -> None:
        """Free the runs of removed rules in all keys, or hand them over."""
        self.rules_changed()
        for key_bytes in self.list_keys():
            if key_bytes not in self._loaded:
                self._load(key_bytes, successors)
                continue
            found = self._loaded[key_bytes]
            for name in [name for name in found.matchers if name in removed]:
                old = found.matchers.pop(name)
                successor = self._make_matcher(successors[name]) if name in successors else None
                if successor is not None:
                    successor.runs, successor.held, successor.due = old.runs, old.held, old.due
                    successor.released, successor.changed = old.released, True
                    found.matchers[successors[name]] = successor
            for shared in [each for each in found.shared if not each.rules.isdisjoint(removed)]:
                for name in sorted(shared.rules & successors.keys()):
                    successor = self._make_matcher(successors[name])
                    if successor is not None:
                        successor.set_runs(shared.runs)
                        found.matchers[successors[name]] = successor
                found.replace(shared, shared._replace(rules=shared.rules.difference(removed)))

    def save(self) -> None:
        """Write changed keys to the state, and unload all keys."""
        changed = sorted(
            key_bytes
            for key_bytes, found in self._loaded.items()
            if (key_bytes in self._written or not found.is_empty) and self._has_changed(key_bytes)
        )
        nodes = {
            key_bytes: collect_nodes(found.matchers.values(), found.shared)
            for key_bytes, found in ((each, self._loaded[each]) for each in changed)
        }
        load_fields(_iter_events(nodes.values()))
        for key_bytes in changed:
            found = self._loaded[key_bytes]
            self._save(key_bytes, write(found.matchers, nodes[key_bytes], found.shared))
        self._loaded.clear()
        self._written.clear()

    def _has_changed(self, key_bytes: bytes) -> bool:
        found, written = self._loaded[key_bytes], self._written.get(key_bytes)
        if written is None:
            return not found.is_empty
        if (
            found.changed
            or written.rules != tuple(found.matchers)
            or written.due != min(found.due, _NO_TIME)
        ):
            return True
        return any(matcher.changed for matcher in found.matchers.values())

    def _save(self, key_bytes: bytes, blob: bytes | None) -> None:
        state, old = self._state, self._written.get(key_bytes) or _StoredKey()
        due = held = _NO_TIME
        if blob is not None:
            found = self._loaded[key_bytes]
            due, held = min(found.due, _NO_TIME), _earliest_held(found.matchers)
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


def _earliest_held(matchers: Mapping[RuleVersionKey, Matcher]) -> int:
    first = _NO_TIME
    for each in matchers.values():
        for run in each.waiting:
            first = min(first, run.node.event.time)
    return first
