"""Pattern rules from the broker, and their status reports from the job's queries.

Rules come with the view and are stored with it, so that they survive an absence of the broker. A
discoverer in the driver waits for changes and reports the status of the rules while it runs.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from pe_agent.agent.notifier import Notifier
from pe_agent.agent.state.store import Store
from streambroker_core.wire.agent_rpc.job import CurrentRules, RulesReport, RulesWanted
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
"""Time after which a silent discoverer is dropped."""
LONGEST_WAIT = 10.0
PAGE_BYTES = 20_000
"""Maximum bytes of rules in one report; the next reports have the others."""
MAX_QUERIES = 64
"""Maximum queries for which enable counts are stored."""
_ENABLED = "rules enabled"


@dataclass(slots=True)
class _DiscovererReport:
    """Last report of a discoverer and its receive time (monotonic)."""

    at: float
    rules: RuleStatusMap = field(default_factory=dict)


class RuleState:
    """Passes rules from the broker to the job's discoverers, and their reports back; thread-safe.

    The notifier wakes waiting discoverers on each new view.

    Attributes:
        on_report: called when a discoverer's report changes.
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
        # The last reported status, without counts.
        self._last_paged: RuleStatusMap = {}
        self.on_report: Callable[[], None] = lambda: None

    def wait_for_rules(self, request: RulesWanted) -> CurrentRules:
        """Return the rules as soon as they differ from those the caller knows, else after a while.

        The wait is at most `LONGEST_WAIT`.
        """
        name, known = request.discoverer, request.known
        self._touch(name)

        def enough(now: tuple[str, Any] | None) -> bool:
            return name not in self._reports or (now is not None and now[0] != known)

        wait = min(LONGEST_WAIT, request.wait)
        current = self._notifier.wait_for((), wait, self._current, enough)
        if current is None:
            return CurrentRules(digest=None, rules=None, away=self._is_broker_away())
        digest, rules = current
        by_query = self._load_enabled()
        return CurrentRules(
            digest=digest,
            rules=None if digest == known else rules,
            enabled=by_query.get(request.query or "", by_query.get("", {})),
            away=self._is_broker_away(),
        )

    def _current(self) -> tuple[str, list[dict[str, Any]]] | None:
        view = self._view()
        if view is None or view.rules is None:
            return None
        return view.rules.digest, write_view_rules(view.rules)

    def report(self, request: RulesReport) -> None:
        """Record the status of a discoverer's rules, and the enable counts of its query."""
        reported = read_statuses(Fields(request.rules, "rules"))
        with self._lock:
            report = self._reports.setdefault(request.discoverer, _DiscovererReport(self._clock()))
            changed = report.rules != reported
            report.at, report.rules = self._clock(), reported
        if request.enabled:
            self._save_enabled(request.query or "", request.enabled)
        if changed:
            self.on_report()

    def _save_enabled(self, query: str, counts: Mapping[str, int]) -> None:
        """Store a query's enable counts; forget the oldest beyond `MAX_QUERIES`."""
        with self._lock:
            by_query = self._load_enabled()
            others = [name for name in by_query if name not in (query, "")]
            for name in others[: max(0, len(others) + 1 - MAX_QUERIES)]:
                del by_query[name]
            by_query.pop(query, None)
            self._store.set(_ENABLED, json.dumps({**by_query, query: counts}))

    def _load_enabled(self) -> dict[str, dict[str, int]]:
        """Return enable counts by query; counts without a query are under the empty name."""
        counts_by_query: dict[str, Any] = json.loads(self._store.get(_ENABLED) or "{}")
        is_by_query = all(isinstance(counts, dict) for counts in counts_by_query.values())
        return counts_by_query if is_by_query else {"": counts_by_query}

    def _touch(self, discoverer: str) -> None:
        with self._lock:
            report = self._reports.setdefault(discoverer, _DiscovererReport(self._clock()))
            report.at = self._clock()

    def leave(self, discoverer: str) -> None:
        """Forget a discoverer whose query ends."""
        with self._lock:
            removed = self._reports.pop(discoverer, None)
        self._notifier.notify()
        if removed is not None and removed.rules:
            self.on_report()

    def rule_status(self) -> RuleStatusMap:
        """Return the merged rule status of all active discoverers."""
        since = self._clock() - DISCOVERER_TIMEOUT_SECONDS
        with self._lock:
            self._reports = {name: one for name, one in self._reports.items() if one.at >= since}
            statuses = [one.rules for one in self._reports.values()]
        merged: dict[str, RuleStatus] = {}
        for name in sorted({name for rules in statuses for name in rules}):
            rule = merge_statuses(rules[name] for rules in statuses if name in rules)
            if rule is not None:
                merged[name] = rule
        return merged

    def page(self) -> dict[str, Any]:
        """Return one report: ``rules``, and whether there are ``more``.

        Rules whose status changed in more than counts come first, then the others in turn.
        """
        reported = self.rule_status()
        names = list(reported)
        first = self._page_start % max(1, len(names))
        rotated = names[first:] + names[:first]
        changed = [
            name for name in names if self._last_paged.get(name) != _without_counts(reported[name])
        ]
        page_rules: dict[str, Any] = {}
        size = 0
        for name in dict.fromkeys(changed + rotated):
            written = write_statuses({name: reported[name]})
            size += len(json.dumps(written))
            if page_rules and size > PAGE_BYTES:
                break
            page_rules |= written
        self._page_start = first + sum(1 for _ in takewhile(page_rules.__contains__, rotated))
        known = {name: rule for name, rule in self._last_paged.items() if name in reported}
        self._last_paged = {
            **known,
            **{name: _without_counts(reported[name]) for name in page_rules},
        }
        return {"rules": dict(sorted(page_rules.items())), "more": len(page_rules) < len(names)}


def _without_counts(rule: RuleStatus) -> RuleStatus:
    return replace(rule, matches=0, errors=0)
