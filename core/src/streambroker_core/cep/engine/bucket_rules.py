"""Rule set of a bucket, with its stored form: the blob ``rules``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from streambroker_core.cep.engine.engine import Engine
from streambroker_core.cep.engine.sent_filters import SentFilters
from streambroker_core.cep.nfa.compiled import compile_rule
from streambroker_core.cep.nfa.snapshot import RuleVersionKey
from streambroker_core.cep.pattern.key_selectors import Selector
from streambroker_core.cep.rules.document import Functions
from streambroker_core.cep.rules.rule_set import RuleSet
from streambroker_core.control.operators.operator import OperatorError

_MAX_RULE_SETS = 16
_RULE_SETS: dict[tuple[object, ...], tuple[RuleSet, Functions]] = {}


class BucketRules:
    """The set in force, the first windows of its rules, and the filters that rows have passed.

    The arguments are those of `PatternOperator`.

    Attributes:
        current: the set in force.
        changed: whether it differs from the stored set.
    """

    def __init__(
        self,
        rules: RuleSet | None,
        *,
        key: Selector,
        functions: Functions | None,
        fixed: bool,
        relevant: str | None,
    ) -> None:
        self.current, self.changed = rules or RuleSet(), True
        self._key, self._functions = key, functions or {}
        self._fixed, self._relevant = self.current if fixed else None, relevant
        self._since: dict[RuleVersionKey, int] = {}
        self._visible_from: dict[RuleVersionKey, int] = {}
        self._filters = SentFilters([] if relevant is None else [(0, relevant)])

    def restore(self, blob: bytes) -> None:
        """Restore the stored set."""
        stored = json.loads(blob)
        self._since = {(name, number): window for name, number, window in stored["since"]}
        visible_from = stored.get("sees", stored["since"])  # earlier releases hid older rows
        self._visible_from = {(name, number): window for name, number, window in visible_from}
        self._filters = SentFilters(stored.get("filters", ()))
        self.current, self.changed = _read_rules(stored["rules"], self._functions), False

    def start(self, engine: Engine, window: int) -> None:
        """Put the set in force in a new engine."""
        engine.set_rules(
            self.current,
            window,
            since=self._since,
            visible_from=lambda active: self._visible_from.get(active.name, 0),
        )

    def apply_fixed(self, engine: Engine, window: int, oldest: int | None) -> None:
        """Replace a restored set by the fixed one, if they differ in more than what is off."""
        if (
            self._fixed is None
            or self._fixed.document()["rules"] == self.current.document()["rules"]
        ):
            return
        if any((rule.id, rule.version) in engine.active for rule in self._fixed):
            engine.set_rules(RuleSet(), window)  # equal ids, other content
        self.apply_sent(engine, self._fixed, self._relevant, window, oldest)

    def read(self, document: Mapping[str, Any]) -> RuleSet:
        """Return the set of a document, whose rules can be compiled."""
        rules = _read_rules(to_json(document), self._functions)
        for rule in rules:
            compile_rule(rule)
        return rules

    def apply_sent(
        self, engine: Engine, rules: RuleSet, relevant: str | None, since: int, oldest: int | None
    ) -> None:
        """Replace the set from a window on; `oldest` is the earliest window whose rows wait."""
        self.current, self.changed = rules, True
        self._filters.add(since, relevant, oldest)
        engine.set_rules(rules, since, visible_from=partial(self._filters.first_visible, since))

    def update(self, rules: RuleSet) -> None:
        """Record the set without expired versions, or with a disabled one."""
        if rules is not self.current:
            self.current, self.changed = rules, True

    def selectors(self) -> list[Selector]:
        """Return the keys of the rules."""
        return self.current.selectors(self._key)

    def check_keys(self, rules: RuleSet, buckets: int) -> None:
        """Reject rules whose rows are distributed over several buckets."""
        for selector in rules.selectors(self._key):
            if not selector or selector != self._key:
                what = f"the key {', '.join(selector)}" if selector else "one key for all rows"
                raise OperatorError(
                    f"a rule has {what}, and rows are distributed over {buckets}"
                    f" buckets by {', '.join(self._key) or 'nothing'}: copy the rows for each"
                    " key, and pass copied=True."
                )

    def dump(self, engine: Engine) -> bytes:
        """Return the blob."""
        active, filters = engine.active.items(), self._filters.filters
        document = {
            "rules": to_json(self.current.document()),
            "since": sorted([*name, one.since] for name, one in active),
            "sees": sorted([*name, one.visible_from] for name, one in active if one.visible_from),
            **({"filters": filters} if filters else {}),
        }
        return to_json(document).encode()


def _read_rules(text: str, functions: Functions) -> RuleSet:
    """Return a set of rules; equal texts share one object, so rules are compiled once."""
    cache_key = (text, *sorted((name, id(each)) for name, each in functions.items()))
    cached = _RULE_SETS.get(cache_key)
    if cached is None:
        if len(_RULE_SETS) >= _MAX_RULE_SETS:
            _RULE_SETS.clear()
        functions = dict(functions)  # kept alive: the key has their ids
        cached = _RULE_SETS[cache_key] = RuleSet.read(json.loads(text), functions), functions
    return cached[0]


def to_json(value: Any) -> str:
    """Return the JSON text of a value; equal values have equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
