"""The rules of patterns that the broker wants the job to have, and what its queries say of them.

What is wanted comes with the view, and is kept with it: a broker that is away changes nothing. A
discoverer in the driver asks for it and waits for news; it says what has become of the rules, for
as long as it asks.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from pe_agent.agent.notifier import Notifier
from pe_agent.agent.state.store import Store
from streambroker_core.wire.broker.view import View
from streambroker_core.wire.broker.view_rules import write_view_rules
from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.reports.rule_status import (
    RuleStatus,
    RuleStatusMap,
    merge_statuses,
    read_statuses,
    write_statuses,
)

DISCOVERER_TIMEOUT_SECONDS = 60.0
"""How long a discoverer that is silent is taken to be there."""
LONGEST_WAIT = 10.0
PAGE_BYTES = 20_000
"""Of rules in one report; of more, the next reports have the others."""
MAX_QUERIES = 64
"""Of so many queries it is kept which rules were enabled in them."""
_ENABLED = "rules enabled"


@dataclass(slots=True)
class _DiscovererReport:
    """What a discoverer said last, and when it was heard of (monotonic)."""

    at: float
    rules: RuleStatusMap = field(default_factory=dict)


class RuleState:
    """Stands between the broker and the discoverers of the job; safe to call from any thread.

    Args:
        view: returns the last view.
        store: keeps which rules were enabled how often.
        notifier: wakes those who wait, as soon as there is another view.
        clock: a monotonic clock, in seconds.
        is_broker_away: says whether the broker does not answer.

    Attributes:
        on_report: called when a discoverer says another thing than before.
    """

    def __init__(
        self,
        view: Callable[[], View | None],
        store: Store,
        notifier: Notifier,
        clock: Callable[[], float] = time.monotonic,
        is_broker_away: Callable[[], bool] = lambda: False,
    ) -> None:
        self._view, self._store, self._notifier, self._clock = view, store, notifier, clock
        self._is_broker_away = is_broker_away
        self._lock = threading.Lock()
        self._reports: dict[str, _DiscovererReport] = {}
        self._page_start = 0
        # What the reports have told last, without counts.
        self._last_paged: RuleStatusMap = {}
        self.on_report: Callable[[], None] = lambda: None

    def wait_for_rules(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the rules as soon as they are others than the caller knows, else after a while.

        Args:
            body: ``discoverer``, its ``query`` (a name for good), ``known`` (the digest that it
                has, or null) and ``wait``, seconds.

        Returns:
            ``digest``, null while the broker has said nothing of rules; ``rules``, null where they
            are those that are known; ``enabled``, how often each was enabled that the query knows
            of; ``away``, whether they are the last ones of a broker that does not answer.
        """
        name = str(body["discoverer"])
        self._touch(name)
        known, wait = body.get("known"), min(LONGEST_WAIT, float(body.get("wait", 0)))

        def enough(now: tuple[str, Any] | None) -> bool:
            return name not in self._reports or (now is not None and now[0] != known)

        found = self._notifier.wait_for((), wait, self._current, enough)
        if found is None:
            return {"digest": None, "rules": None, "enabled": {}, "away": self._is_broker_away()}
        digest, rules = found
        kept = self._load_enabled()
        enabled = kept.get(str(body.get("query") or ""), kept.get("", {}))
        return {
            "digest": digest,
            "rules": None if digest == known else rules,
            "enabled": enabled,
            "away": self._is_broker_away(),
        }

    def _current(self) -> tuple[str, list[dict[str, Any]]] | None:
        view = self._view()
        if view is None or view.rules is None:
            return None
        return view.rules.digest, write_view_rules(view.rules)

    def report(self, body: dict[str, Any]) -> dict[str, Any]:
        """Take in what has become of the rules, and which were enabled.

        Args:
            body: ``discoverer``, ``rules`` as `read_statuses` reads them, ``enabled`` and ``query``
                as above.
        """
        told = read_statuses(Fields(body["rules"], "rules"))
        with self._lock:
            heard = self._reports.setdefault(
                str(body["discoverer"]), _DiscovererReport(self._clock())
            )
            changed = heard.rules != told
            heard.at, heard.rules = self._clock(), told
        if body.get("enabled"):
            self._save_enabled(str(body.get("query") or ""), body["enabled"])
        if changed:
            self.on_report()
        return {}

    def _save_enabled(self, query: str, counts: dict[str, int]) -> None:
        """Keep how often rules were enabled in a query, and forget those of long ago."""
        with self._lock:
            kept = self._load_enabled()
            others = [name for name in kept if name not in (query, "")]
            for name in others[: max(0, len(others) + 1 - MAX_QUERIES)]:
                del kept[name]
            kept.pop(query, None)
            self._store.set(_ENABLED, json.dumps({**kept, query: counts}))

    def _load_enabled(self) -> dict[str, dict[str, int]]:
        """Return how often rules were enabled, by query; without name those that say none."""
        kept: dict[str, Any] = json.loads(self._store.get(_ENABLED) or "{}")
        by_query = all(isinstance(counts, dict) for counts in kept.values())
        return kept if by_query else {"": kept}

    def _touch(self, discoverer: str) -> None:
        with self._lock:
            heard = self._reports.setdefault(discoverer, _DiscovererReport(self._clock()))
            heard.at = self._clock()

    def leave(self, body: dict[str, Any]) -> dict[str, Any]:
        """Forget a discoverer: its query ends."""
        with self._lock:
            gone = self._reports.pop(str(body["discoverer"]), None)
        self._notifier.notify()
        if gone is not None and gone.rules:
            self.on_report()
        return {}

    def rule_status(self) -> RuleStatusMap:
        """Return what all discoverers that are there say of the rules."""
        since = self._clock() - DISCOVERER_TIMEOUT_SECONDS
        with self._lock:
            self._reports = {name: one for name, one in self._reports.items() if one.at >= since}
            several = [one.rules for one in self._reports.values()]
        found: dict[str, RuleStatus] = {}
        for name in sorted({name for rules in several for name in rules}):
            rule = merge_statuses(rules[name] for rules in several if name in rules)
            if rule is not None:
                found[name] = rule
        return found

    def page(self) -> dict[str, Any]:
        """Return what is told, for one report: ``rules``, and whether there are ``more``.

        Of very many those come first of which more than counts is new, then the others in turn.
        """
        told = self.rule_status()
        names = list(told)
        first = self._page_start % max(1, len(names))
        turn = names[first:] + names[:first]
        news = [name for name in names if self._last_paged.get(name) != _without_counts(told[name])]
        found: dict[str, Any] = {}
        size = 0
        for name in dict.fromkeys(news + turn):
            written = write_statuses({name: told[name]})
            size += len(json.dumps(written))
            if found and size > PAGE_BYTES:
                break
            found |= written
        self._page_start = first + sum(1 for _ in takewhile(found.__contains__, turn))
        known = {name: rule for name, rule in self._last_paged.items() if name in told}
        self._last_paged = {**known, **{name: _without_counts(told[name]) for name in found}}
        return {"rules": dict(sorted(found.items())), "more": len(found) < len(names)}


def _without_counts(rule: RuleStatus) -> RuleStatus:
    """Return what is told of a rule without its counts."""
    return replace(rule, matches=0, errors=0)
