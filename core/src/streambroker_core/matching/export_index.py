"""Index of Exports by the properties that subscriptions test."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set
from typing import Any, TypeAlias

from streambroker_core.matching.property_conditions import (
    Alternative,
    Attribute,
    Between,
    Facts,
    PropertyCondition,
    ValueIn,
    extract_facts,
)
from streambroker_core.matching.sorted_numbers import SortedNumbers
from streambroker_core.model import Export, StreamName

_MIN_EXPORTS = 32
"""With fewer Exports, selectivity is a guess."""
_MAX_PENDING = 256
"""Maximum number of Exports that are not indexed yet, so that a lookup has little to index."""
_MAX_COUNTED = 16
"""Up to this many numbers in a range are counted exactly; beyond, by their average uses."""
_DEFAULT_SELECTIVITY = 0.05
_BOOLEAN_SELECTIVITY = 0.5
_RANGE_SELECTIVITY = 0.1

_Uids: TypeAlias = "str | set[str]"
"""One uid, or several; most values belong to one Export."""


class ExportIndex:
    """Index of Exports by the values of their attributes.

    Lists are indexed by their elements, and numbers also in order. A new Export is indexed at
    the next lookup: its own matches do not depend on this index.
    """

    def __init__(self) -> None:
        self.exports: dict[str, Export] = {}
        self._holders: dict[Attribute, dict[Any, _Uids]] = {}
        self._numbers: dict[str, SortedNumbers] = {}
        self._streams: dict[str, set[str]] = {}
        self._pending: dict[str, Facts] = {}

    def put(self, export: Export) -> Facts:
        """Add or replace an Export; return its facts."""
        self.remove(export.uid)
        self.exports[export.uid] = export
        if export.stream_id is not None:
            self._streams.setdefault(export.stream_id, set()).add(export.uid)
        facts = extract_facts(export.properties or {})
        self._pending[export.uid] = facts
        if len(self._pending) > _MAX_PENDING:
            self._flush_pending()
        return facts

    def remove(self, uid: str) -> None:
        """Remove an Export; an unknown one changes nothing."""
        export = self.exports.pop(uid, None)
        if export is None:
            return
        if export.stream_id is not None:
            uids = self._streams[export.stream_id]
            uids.discard(uid)
            if not uids:
                del self._streams[export.stream_id]
        if self._pending.pop(uid, None) is not None:
            return
        for attribute, values in extract_facts(export.properties or {}).items():
            for value in values:
                self._drop(attribute, value, uid)

    def _flush_pending(self) -> None:
        for uid, facts in self._pending.items():
            self._add(facts, uid)
        self._pending.clear()

    def _add(self, facts: Facts, uid: str) -> None:
        for attribute, values in facts.items():
            holders = self._holders.get(attribute)
            if holders is None:
                holders = self._holders[attribute] = {}
                if attribute[1] == "number":
                    self._numbers[attribute[0]] = SortedNumbers()
            numbers = self._numbers[attribute[0]] if attribute[1] == "number" else None
            if numbers is not None:
                numbers.uses += len(values)
            for value in values:
                known = holders.get(value)
                if known is None:
                    holders[value] = uid
                    if numbers is not None:
                        numbers.add(value)
                elif isinstance(known, set):
                    known.add(uid)
                else:
                    holders[value] = {known, uid}

    def _drop(self, attribute: Attribute, value: Any, uid: str) -> None:
        holders = self._holders[attribute]
        uids = holders[value]
        if attribute[1] == "number":
            self._numbers[attribute[0]].uses -= 1
        if isinstance(uids, set):
            uids.discard(uid)
            if len(uids) == 1:
                holders[value] = uids.pop()
            return
        del holders[value]
        if attribute[1] == "number":
            self._numbers[attribute[0]].remove(value)
        if not holders:
            del self._holders[attribute]
            self._numbers.pop(attribute[0] if attribute[1] == "number" else "", None)

    # ---- lookup ----------------------------------------------------------

    def find_by_stream(self, names: Iterable[StreamName]) -> set[str]:
        """Return the uids of the Exports that have one of the stream ids."""
        return {uid for name in names for uid in self._streams.get(name.stream_id, ())}

    def find_candidates(self, alternatives: Iterable[Alternative]) -> Collection[str]:
        """Return a superset of the Exports that satisfy one of the alternatives, as uids."""
        self._flush_pending()
        found: Set[str] | None = None
        for alternative in alternatives:
            if not alternative:
                return self.exports.keys()
            fitting = self._find_for(alternative)
            found = fitting if found is None else found | fitting
        return found or frozenset()

    def selectivity(self, condition: PropertyCondition) -> float:
        """Return the approximate share of Exports that satisfy a condition."""
        if len(self.exports) >= _MIN_EXPORTS:
            self._flush_pending()
            return (1 + self._count(condition)) / (1 + len(self.exports))
        if isinstance(condition, Between):
            return _RANGE_SELECTIVITY
        guess = (
            _BOOLEAN_SELECTIVITY if condition.attribute[1] == "boolean" else _DEFAULT_SELECTIVITY
        )
        return min(1.0, guess * len(condition.values))

    def _find_for(self, alternative: Alternative) -> Set[str]:
        """Look up the rarest condition and intersect with the other single-value conditions."""
        measured = sorted(
            ((self._count(condition), index) for index, condition in enumerate(alternative)),
        )
        (fewest, first), *rest = measured
        if fewest == 0:
            return frozenset()
        found = self._find_uids(alternative[first])
        for _, index in rest:
            condition = alternative[index]
            if isinstance(condition, ValueIn) and len(condition.values) == 1:
                found = found & self._find_uids(condition)
        return found

    def _count(self, condition: PropertyCondition) -> float:
        """Return how many Exports satisfy a condition; approximate for many."""
        holders = self._holders.get(condition.attribute)
        if holders is None:
            return 0
        if isinstance(condition, ValueIn):
            return sum(_count_uids(holders.get(value)) for value in condition.values)
        numbers = self._numbers[condition.name]
        count = numbers.count(condition.low, condition.high)
        if count > _MAX_COUNTED:
            return count * numbers.uses / numbers.size
        values = numbers.iter_between(condition.low, condition.high)
        return sum(_count_uids(holders[value]) for value in values)

    def _find_uids(self, condition: PropertyCondition) -> Set[str]:
        """Return the uids of the Exports that satisfy a condition; must not be changed."""
        holders = self._holders.get(condition.attribute, {})
        if isinstance(condition, ValueIn):
            values: Iterable[Any] = condition.values
            if len(condition.values) == 1:
                return _as_set(holders.get(condition.values[0]))
        else:
            values = self._numbers[condition.name].iter_between(condition.low, condition.high)
        found: set[str] = set()
        for value in values:
            uids = holders.get(value)
            if isinstance(uids, str):
                found.add(uids)
            elif uids is not None:
                found |= uids
        return found


def _count_uids(uids: _Uids | None) -> int:
    if uids is None:
        return 0
    return 1 if isinstance(uids, str) else len(uids)


def _as_set(uids: _Uids | None) -> Set[str]:
    if uids is None:
        return frozenset()
    return frozenset((uids,)) if isinstance(uids, str) else uids
