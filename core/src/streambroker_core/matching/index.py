"""The indexed `Matcher`: looks up candidates and decides them like `match`."""

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
from streambroker_core.model import Export, Import, Kind, Resource

_MAX_PREPARED = 256


class IndexMatcher:
    """The `Matcher` for many Exports and Imports; it returns what `ScanMatcher` returns.

    It finds the pairs whose subscription is true or whose stream ids are equal. `match` refuses
    all others for reasons that are not in `NEAR`.
    """

    def __init__(self) -> None:
        self._export_index = ExportIndex()
        self._import_index = ImportIndex(self._export_index.selectivity)
        self._imports: dict[str, IndexedImport] = {}
        self._truncated_count = 0
        self._last_export: tuple[Export | None, Facts] = (None, {})

    def put(self, resource: Resource) -> None:
        """Add or replace a resource."""
        if isinstance(resource, Export):
            self._last_export = resource, self._export_index.put(resource)
            return
        self.remove("Import", resource.uid)
        subscription = _subscription(resource)
        if subscription is None:
            indexed = IndexedImport(resource, None, ())
            self._import_index.add_by_name(indexed)
        else:
            indexed = IndexedImport(resource, subscription.code, subscription.literals)
            indexed.is_truncated = subscription.alternatives.is_truncated
            self._import_index.add(indexed, subscription.alternatives.items)
        self._truncated_count += indexed.is_truncated
        self._imports[resource.uid] = indexed

    def remove(self, kind: Kind, uid: str) -> None:
        """Remove a resource; an unknown one changes nothing."""
        if kind == "Export":
            self._export_index.remove(uid)
            return
        indexed = self._imports.pop(uid, None)
        if indexed is not None:
            self._truncated_count -= indexed.is_truncated
            self._import_index.remove(indexed)

    def matches_of(self, kind: Kind, uid: str) -> Mapping[str, MatchResult]:
        """Return outcomes by the other side's uid; empty for an unknown resource."""
        if kind == "Export":
            export = self._export_index.exports.get(uid)
            return {} if export is None else self._match_export(export)
        indexed = self._imports.get(uid)
        return {} if indexed is None else self._match_import(indexed.import_)

    def outcomes_for(self, resource: Resource) -> Mapping[str, MatchResult]:
        """Return the outcomes that a resource has or would have."""
        if isinstance(resource, Export):
            return self._match_export(resource)
        return self._match_import(resource)

    def stats(self) -> IndexStats:
        """Return the size of the index."""
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
            for candidate in self._import_index.find_candidates(
                facts if newest is export else extract_facts(properties)
            ):
                # Candidates that fail these tests are not near misses.
                code, import_ = candidate.code, candidate.import_
                if (
                    code is not None
                    and code(properties, candidate.literals) is True
                    and is_reachable(export, import_)
                ):
                    _add_if_near(found, import_.uid, connect(export, import_))
        for candidate in self._import_index.find_by_stream(export.stream_id):
            _add_if_near(found, candidate.import_.uid, match(export, candidate.import_))
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
    """A subscription, compiled for the index and for evaluation."""

    code: Code
    literals: Literals
    alternatives: Alternatives


def _subscription(import_: Import) -> _Subscription | None:
    """Return an Import's subscription; None if it names streams, is blank or is invalid."""
    text = import_.subscription
    if import_.streams or text is None or expression_problem(text, "subscription") is not None:
        return None
    return _prepare(text)


@lru_cache(maxsize=_MAX_PREPARED)
def _prepare(text: str) -> _Subscription | None:
    """Compile a subscription. A small cache suffices: an Import is put and matched at once."""
    expression = parse_cached(text, "subscription")
    if isinstance(expression, StreambrokerError) or expression.tree is None:
        return None
    code, literals = compile_code(expression.tree)
    return _Subscription(code, literals, to_alternatives(expression.tree))
