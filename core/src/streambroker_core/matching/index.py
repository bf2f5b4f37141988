"""The `Matcher` that looks candidates up and lets `match` decide them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from streambroker_core.errors import StreambrokerError
from streambroker_core.expression.evaluate import Code, Literals, code_of
from streambroker_core.matching.decide import (
    Outcome,
    connect,
    expression_problem,
    in_reach,
    is_near,
    match,
    parsed,
)
from streambroker_core.matching.export_index import Offers
from streambroker_core.matching.import_index import Want, Wants
from streambroker_core.matching.property_conditions import (
    Alternatives,
    Facts,
    alternatives_of,
    facts_of,
)
from streambroker_core.matching.scan import Figures
from streambroker_core.model import Export, Import, Resource

_PREPARED = 256


class IndexMatcher:
    """The `Matcher` for many of both: it answers what `ScanMatcher` answers.

    It finds the pairs whose subscription is true, or whose stream ids are equal;
    all others are refused for reasons that are not `NEAR`. Each pair it finds is
    decided by `match`.
    """

    def __init__(self) -> None:
        self._offers = Offers()
        self._wants = Wants(self._offers.share)
        self._imports: dict[str, Want] = {}
        self._cut = 0
        self._newest: tuple[Export | None, Facts] = (None, {})

    def put_export(self, export: Export) -> None:
        """Add or replace an Export."""
        self._newest = export, self._offers.put(export)

    def remove_export(self, uid: str) -> None:
        """Take an Export away; an unknown one changes nothing."""
        self._offers.remove(uid)

    def put_import(self, import_: Import) -> None:
        """Add or replace an Import."""
        self.remove_import(import_.uid)
        subscription = _subscription(import_)
        if subscription is None:
            want = Want(import_, None, ())
            self._wants.file_by_name(want)
        else:
            want = Want(import_, subscription.code, subscription.literals)
            want.cut = subscription.alternatives.cut
            self._wants.file(want, subscription.alternatives.each)
        self._cut += want.cut
        self._imports[import_.uid] = want

    def remove_import(self, uid: str) -> None:
        """Take an Import away; an unknown one changes nothing."""
        want = self._imports.pop(uid, None)
        if want is not None:
            self._cut -= want.cut
            self._wants.remove(want)

    def matches_of_export(self, uid: str) -> Mapping[str, Outcome]:
        """Return the outcome per Import's uid; empty for an unknown Export."""
        export = self._offers.exports.get(uid)
        return {} if export is None else self._of_export(export)

    def matches_of_import(self, uid: str) -> Mapping[str, Outcome]:
        """Return the outcome per Export's uid; empty for an unknown Import."""
        want = self._imports.get(uid)
        return {} if want is None else self._of_import(want.import_)

    def outcomes_for(self, resource: Resource) -> Mapping[str, Outcome]:
        """Return the outcomes that a resource would have, put or not."""
        if isinstance(resource, Export):
            return self._of_export(resource)
        return self._of_import(resource)

    def figures(self) -> Figures:
        """Return how the index is filled."""
        return Figures(
            exports=len(self._offers.exports),
            imports=len(self._imports),
            places=self._wants.places,
            others=len(self._wants.others),
            cut=self._cut,
        )

    def _of_export(self, export: Export) -> dict[str, Outcome]:
        found: dict[str, Outcome] = {}
        properties = export.properties
        if properties is not None and self._imports:
            newest, facts = self._newest
            for want in self._wants.fitting(facts if newest is export else facts_of(properties)):
                # What this leaves out, `match` refuses, and not as a near miss.
                code, import_ = want.code, want.import_
                if (
                    code is not None
                    and code(properties, want.literals) is True
                    and in_reach(export, import_)
                ):
                    _keep(found, import_.uid, connect(export, import_))
        for want in self._wants.named(export.stream_id):
            _keep(found, want.import_.uid, match(export, want.import_))
        return found

    def _of_import(self, import_: Import) -> dict[str, Outcome]:
        exports = self._offers.exports
        found: dict[str, Outcome] = {}
        for uid in self._offers.named(import_.streams):
            _keep(found, uid, match(exports[uid], import_))
        subscription = _subscription(import_)
        if subscription is None:
            return found
        code, literals, alternatives = subscription
        for uid in self._offers.fitting(alternatives.each):
            export = exports[uid]
            properties = export.properties
            if (
                properties is not None
                and code(properties, literals) is True
                and in_reach(export, import_)
            ):
                _keep(found, uid, connect(export, import_))
        return found


def _keep(found: dict[str, Outcome], uid: str, outcome: Outcome) -> None:
    if is_near(outcome):
        found[uid] = outcome


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
    return _prepared(text)


@lru_cache(maxsize=_PREPARED)
def _prepared(text: str) -> _Subscription | None:
    """Make what both sides need; an Import is put and asked for at once, so a few are enough."""
    expression = parsed(text, "subscription")
    if isinstance(expression, StreambrokerError) or expression.tree is None:
        return None
    code, literals = code_of(expression.tree)
    return _Subscription(code, literals, alternatives_of(expression.tree))
