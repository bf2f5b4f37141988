"""Say all that stands between one Export and one Import.

`match` stops at the first rule that fails; here every rule is looked at. What is
said first is what `match` says, but for ports that are another resource's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from streambroker_core.diagnose.distance import SubscriptionDistance
from streambroker_core.diagnose.predicate_text import describe_changes, format_value
from streambroker_core.errors import StreambrokerError
from streambroker_core.expression import Expression, Miss, PredicateResult
from streambroker_core.expression.explain import explain_tree
from streambroker_core.matching import (
    filter_problem,
    find_revocation,
    is_namespace_allowed,
    parse_cached,
)
from streambroker_core.model import Export, Import, PortKey, Properties, StreamName
from streambroker_core.model.schema import find_missing_column

_MAX_PHRASES = 6
"""Phrases of one kind in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """One thing in the way.

    Attributes:
        reason: the word for it, as `match` or a status gives it.
        message: a sentence or phrase for people.
        changes: how many things would have to change, at least 1.
    """

    reason: str
    message: str
    changes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One Export and one Import, and why they are connected or not.

    Attributes:
        obstacles: all that stands in the way; empty if there is a route.
        predicates: each predicate of the subscription with its value; empty
            where there is no subscription or nothing that it could be asked of.
        nearest: the ways to make the subscription true with the fewest changes.
    """

    export: PortKey
    export_uid: str
    import_: PortKey
    import_uid: str
    obstacles: tuple[Obstacle, ...] = ()
    predicates: tuple[PredicateResult, ...] = ()
    nearest: tuple[Miss, ...] = ()

    @property
    def matched(self) -> bool:
        """Whether there is a route."""
        return not self.obstacles

    @property
    def reason(self) -> str | None:
        """The word for the first thing in the way."""
        return self.obstacles[0].reason if self.obstacles else None

    @property
    def message(self) -> str:
        """All that stands in the way, in words; empty if nothing does."""
        return "; ".join(obstacle.message for obstacle in self.obstacles)

    @property
    def distance(self) -> int:
        """How many things would have to change before there is a route."""
        return sum(obstacle.changes for obstacle in self.obstacles)


def explain_pair(
    export: Export,
    import_: Import,
    *,
    export_conflict: Obstacle | None = None,
    import_conflict: Obstacle | None = None,
) -> Pair:
    """Look at every rule of matching for one pair.

    Args:
        export: the one side.
        import_: the other.
        export_conflict: why the Export does not take part, if it does not.
        import_conflict: why the Import does not.
    """
    taken = (obstacle for obstacle in (export_conflict, import_conflict) if obstacle is not None)
    interest = _check_interest(export, import_)
    return Pair(
        export=export.key,
        export_uid=export.uid,
        import_=import_.key,
        import_uid=import_.uid,
        obstacles=(
            *taken,
            *_check_audience(export, import_),
            *interest.obstacles,
            *_check_revoked(export, import_),
            *_check_filter(export, import_),
            *_check_columns(export, import_),
        ),
        predicates=interest.predicates,
        nearest=interest.nearest,
    )


def _check_audience(export: Export, import_: Import) -> Iterator[Obstacle]:
    namespace = import_.key.namespace
    if not is_namespace_allowed(export, namespace):
        yield Obstacle(
            reason="NamespaceNotAllowed", message=f"does not allow the namespace {namespace}"
        )
    scope, wanted = export.application.scope, import_.application_scope
    if scope != wanted:
        yield Obstacle(reason="ScopeDiffers", message=f"needs the scope {wanted}, has {scope}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Interest:
    obstacles: tuple[Obstacle, ...] = ()
    predicates: tuple[PredicateResult, ...] = ()
    nearest: tuple[Miss, ...] = ()


def _make_interest(reason: str, message: str, changes: int = 1) -> _Interest:
    return _Interest(obstacles=(Obstacle(reason=reason, message=message, changes=changes),))


def _check_interest(export: Export, import_: Import) -> _Interest:
    if import_.streams:
        return _check_names(export, import_.streams)
    text = import_.subscription
    if text is None or not text.strip():
        return _make_interest("NothingWanted", "the import has neither subscription nor streams")
    expression = parse_cached(text, "subscription")
    if isinstance(expression, StreambrokerError):
        invalid = Obstacle(reason="SubscriptionInvalid", message=str(expression))
        by_name = [_exported_by_name(export)] if export.properties is None else []
        return _Interest(obstacles=(*by_name, invalid))
    if export.properties is None:
        needed = distance_for(expression).count_changes({})
        return _Interest(obstacles=(_exported_by_name(export, needed),))
    return _check_properties(export.properties, expression)


def _exported_by_name(export: Export, needed: int = 0) -> Obstacle:
    return Obstacle(
        reason="ExportedByName",
        message=f"is exported by name, as {format_value(export.stream_id)}, the import wants"
        f" properties",
        changes=1 + needed,
    )


def distance_for(expression: Expression) -> SubscriptionDistance:
    """Return the nearness of a subscription that is not blank."""
    if expression.tree is None:
        raise ValueError("a blank subscription has no predicates")
    return SubscriptionDistance(expression.tree)


def _check_properties(properties: Properties, expression: Expression) -> _Interest:
    if expression.tree is None:
        raise ValueError("a blank subscription has no predicates")
    found = explain_tree(expression.tree, properties)
    if found.value is True:
        return _Interest(predicates=found.findings)
    if found.nearest:
        changes = len(found.nearest[0].wrong)
        message = "; or ".join(
            _join_phrases(describe_changes(miss, expression.tree, properties), "; ")
            for miss in found.nearest
            if len(miss.wrong) == changes
        )
    else:
        message = "no properties could make the subscription true"
        changes = distance_for(expression).count_changes(properties)
    reason = "SubscriptionUnknown" if found.value is None else "SubscriptionFalse"
    obstacle = Obstacle(reason=reason, message=message, changes=changes)
    return _Interest(obstacles=(obstacle,), predicates=found.findings, nearest=found.nearest)


def _check_names(export: Export, streams: tuple[StreamName, ...]) -> _Interest:
    ids = _join_phrases([format_value(name.stream_id) for name in streams], " or ")
    if export.stream_id is None:
        return _make_interest(
            "ExportedByProperties",
            f"is exported by properties, the import wants the stream id {ids}",
            2,
        )
    named = [name for name in streams if name.stream_id == export.stream_id]
    has = export.application.name
    if not named:
        return _make_interest(
            "StreamIdDiffers", f"needs the stream id {ids}, has {format_value(export.stream_id)}"
        )
    if any(name.application_name in (None, has) for name in named):
        return _Interest()
    wanted = _join_phrases([format_value(name.application_name) for name in named], " or ")
    held = "none" if has is None else format_value(has)
    return _make_interest("ApplicationDiffers", f"needs the application {wanted}, has {held}")


def _join_phrases(parts: list[str], between: str) -> str:
    """Return the first of many phrases, each once, and how many more there are."""
    distinct = list(dict.fromkeys(parts))
    left = len(distinct) - _MAX_PHRASES
    shown_ = distinct[:_MAX_PHRASES] + ([f"{left} more"] if left > 0 else [])
    return between.join(shown_)


def _check_revoked(export: Export, import_: Import) -> Iterator[Obstacle]:
    named = find_revocation(export, import_.key)
    if named is not None:
        yield Obstacle(reason="Revoked", message=f"has revoked {named}")


def _check_filter(export: Export, import_: Import) -> Iterator[Obstacle]:
    if import_.filter is None or not import_.filter.strip():
        return
    if not export.allow_filter:
        yield Obstacle(reason="FilterForbidden", message="allows no filters, the import has one")
    for message in filter_faults(export, import_):
        yield Obstacle(reason="FilterInvalid", message=message)


def filter_faults(export: Export, import_: Import) -> list[str]:
    """Return what is wrong with the filter, for the Import's own columns and the Export's."""
    schemas = (import_.schema, export.schema)
    problems = (filter_problem(import_.filter, schema) for schema in schemas)
    return list(dict.fromkeys(str(problem) for problem in problems if problem is not None))


def _check_columns(export: Export, import_: Import) -> Iterator[Obstacle]:
    if import_.schema is None or export.schema is None:
        return
    for column in import_.schema:
        difference = find_missing_column(export.schema, (column,))
        if difference is not None:
            yield Obstacle(reason="SchemaMismatch", message=difference)
