"""The `Matcher` that looks candidates up and lets `match` decide them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from streambroker_core.errors import StreambrokerError
from streambroker_core.expression.evaluate import Code, Literals, compile_code
from streambroker_core.matching.decide import (
    MatchResult,
    connect,
    expression_problem,
    is_near,
    is_reachable,
    match,
    parse_cached,
)
from streambroker_core.matching.export_index import ExportIndex
from streambroker_core.matching.import_index import ImportIndex, IndexedImport
from streambroker_core.matching.property_conditions import (
    Alternatives,
    Facts,
    extract_facts,
    to_alternatives,
)
from streambroker_core.matching.scan import IndexStats
from streambroker_core.model import Export, Import, Resource

_MAX_PREPARED = 256


class IndexMatcher:
    """The `Matcher` for many of both: it answers what `ScanMatcher` answers.

    It finds the pairs whose subscription is true, or whose stream ids are equal;
    all others are refused for reasons that are not `NEAR`. Each pair it finds is
    decided by `match`.
    """

    def __init__(self) -> None:
        self._export_index = ExportIndex()
        self._import_index = ImportIndex(self._export_index.selectivity)
        self._imports: dict[str, IndexedImport] = {}
        self._truncated_count = 0
        self._last_export: tuple[Export | None, Facts] = (None, {})

    def put_export(self, export: Export) -> None:
        """Add or replace an Export."""
        self._last_export = export, self._export_index.put(export)

    def remove_export(self, uid: str) -> None:
        """Take an Export away; an unknown one changes nothing."""
        self._export_index.remove(uid)

    def put_import(self, import_: Import) -> None:
        """Add or replace an Import."""
        self.remove_import(import_.uid)
        subscription = _subscription(import_)
        if subscription is None:
            want = IndexedImport(import_, None, ())
            self._import_index.add_by_name(want)
        else:
            want = IndexedImport(import_, subscription.code, subscription.literals)
            want.is_truncated = subscription.alternatives.is_truncated
            self._import_index.add(want, subscription.alternatives.items)
        self._truncated_count += want.is_truncated
        self._imports[import_.uid] = want

    def remove_import(self, uid: str) -> None:
        """Take an Import away; an unknown one changes nothing."""
        want = self._imports.pop(uid, None)
        if want is not None:
            self._truncated_count -= want.is_truncated
            self._import_index.remove(want)

    def matches_of_export(self, uid: str) -> Mapping[str, MatchResult]:
        """Return the outcome per Import's uid; empty for an unknown Export."""
        export = self._export_index.exports.get(uid)
        return {} if export is None else self._match_export(export)

    def matches_of_import(self, uid: str) -> Mapping[str, MatchResult]:
        """Return the outcome per Export's uid; empty for an unknown Import."""
        want = self._imports.get(uid)
        return {} if want is None else self._match_import(want.import_)

    def outcomes_for(self, resource: Resource) -> Mapping[str, MatchResult]:
        """Return the outcomes that a resource would have, put or not."""
        if isinstance(resource, Export):
            return self._match_export(resource)
        return self._match_import(resource)

    def stats(self) -> IndexStats:
        """Return how the index is filled."""
        return IndexStats(
            exports=len(self._export_index.exports),
            imports=len(self._imports),
            entries=self._import_index.entry_count,
            unindexed=len(self._import_index.unindexed),
            truncated=self._truncated_count,
        )

    def _match_export(self, export: Export) -> dict[str, MatchResult]:
        found: dict[str, MatchResult] = {}
        properties = export.properties
        if properties is not None and self._imports:
            newest, facts = self._last_export
            for want in self._import_index.find_candidates(
                facts if newest is export else extract_facts(properties)
            ):
                # What this leaves out, `match` refuses, and not as a near miss.
                code, import_ = want.code, want.import_
                if (
                    code is not None
                    and code(properties, want.literals) is True
                    and is_reachable(export, import_)
                ):
                    _add_if_near(found, import_.uid, connect(export, import_))
        for want in self._import_index.find_by_stream(export.stream_id):
            _add_if_near(found, want.import_.uid, match(export, want.import_))
        return found

    def _match_import(self, import_: Import) -> dict[str, MatchResult]:
        exports = self._export_index.exports
        found: dict[str, MatchResult] = {}
        for uid in self._export_index.find_by_stream(import_.streams):
            _add_if_near(found, uid, match(exports[uid], import_))
        subscription = _subscription(import_)
        if subscription is None:
            return found
        code, literals, alternatives = subscription
        for uid in self._export_index.find_candidates(alternatives.items):
            export = exports[uid]
            properties = export.properties
            if (
                properties is not None
                and code(properties, literals) is True
                and is_reachable(export, import_)
            ):
                _add_if_near(found, uid, connect(export, import_))
        return found


def _add_if_near(results: dict[str, MatchResult], uid: str, outcome: MatchResult) -> None:
    if is_near(outcome):
        results[uid] = outcome


class _Subscription(NamedTuple):
    """A subscription, ready to be filed and to be tested."""

    code: Code
    literals: Literals
    alternatives: Alternatives


def _subscription(import_: Import) -> _Subscription | None:
    """Return what an Import subscribes to; None if it names streams, wants nothing or is wrong."""
    text = import_.subscription
    if import_.streams or text is None or expression_problem(text, "subscription") is not None:
        return None
    return _prepare(text)


@lru_cache(maxsize=_MAX_PREPARED)
def _prepare(text: str) -> _Subscription | None:
    """Make what both sides need; an Import is put and asked for at once, so a few are enough."""
    expression = parse_cached(text, "subscription")
    if isinstance(expression, StreambrokerError) or expression.tree is None:
        return None
    code, literals = compile_code(expression.tree)
    return _Subscription(code, literals, to_alternatives(expression.tree))
