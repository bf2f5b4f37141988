"""Explain everything that prevents a route between one Export and one Import.

`match` stops at the first failing rule; this module checks all of them. The first obstacle is the
one that `match` reports, except for ports that another resource holds.
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
    find_restriction,
    find_revocation,
    is_namespace_allowed,
    parse_cached,
    visible_schema,
    withheld_hint,
)
from streambroker_core.model import Export, Import, PortKey, Properties, StreamName
from streambroker_core.model.policies import PolicyDeniedError, Restriction
from streambroker_core.model.schema import find_missing_column

_MAX_PHRASES = 6
"""Maximum number of phrases of one kind in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """One reason why a pair has no route.

    Attributes:
        reason: the reason word, as in `match` or a status.
        message: a sentence or phrase.
        changes: number of necessary changes, at least 1.
    """

    reason: str
    message: str
    changes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One Export and one Import, and why they are connected or not.

    Attributes:
        obstacles: all reasons against a route; empty if there is one.
        predicates: each predicate of the subscription with its value; empty without a
            subscription or properties to evaluate it on.
        nearest: the ways to make the subscription true with the fewest changes.
        policies: names of the Export's policies for the Import, and what they do; None if there is
            none.
    """

    export: PortKey
    export_uid: str
    import_: PortKey
    import_uid: str
    obstacles: tuple[Obstacle, ...] = ()
    predicates: tuple[PredicateResult, ...] = ()
    nearest: tuple[Miss, ...] = ()
    policies: str | None = None

    @property
    def matched(self) -> bool:
        """Whether there is a route."""
        return not self.obstacles

    @property
    def reason(self) -> str | None:
        """Reason word of the first obstacle."""
        return self.obstacles[0].reason if self.obstacles else None

    @property
    def message(self) -> str:
        """Messages of all obstacles; empty if there is none."""
        return "; ".join(obstacle.message for obstacle in self.obstacles)

    @property
    def distance(self) -> int:
        """Number of changes that are necessary for a route."""
        return sum(obstacle.changes for obstacle in self.obstacles)


def explain_pair(
    export: Export,
    import_: Import,
    *,
    export_conflict: Obstacle | None = None,
    import_conflict: Obstacle | None = None,
) -> Pair:
    """Check every matching rule for one pair.

    A conflict is the reason why the Export or the Import takes no part.
    """
    conflicts = (
        obstacle for obstacle in (export_conflict, import_conflict) if obstacle is not None
    )
    interest = _check_interest(export, import_)
    restriction, denied = None, list[Obstacle]()
    try:
        restriction = find_restriction(export, import_.key)
    except PolicyDeniedError as error:
        denied = [Obstacle(reason=error.code, message=str(error))]
    return Pair(
        export=export.key,
        export_uid=export.uid,
        import_=import_.key,
        import_uid=import_.uid,
        obstacles=(
            *conflicts,
            *_check_audience(export, import_),
            *interest.obstacles,
            *_check_revoked(export, import_),
            *denied,
            *_check_filter(export, import_),
            *_check_columns(export, import_, restriction),
        ),
        policies=None if restriction is None else restriction.describe(),
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
    """Return the distance counter of a subscription that is not blank."""
    if expression.tree is None:
        raise ValueError("a blank subscription has no predicates")
    return SubscriptionDistance(expression.tree)


def _check_properties(properties: Properties, expression: Expression) -> _Interest:
    if expression.tree is None:
        raise ValueError("a blank subscription has no predicates")
    explanation = explain_tree(expression.tree, properties)
    if explanation.value is True:
        return _Interest(predicates=explanation.findings)
    if explanation.nearest:
        changes = len(explanation.nearest[0].wrong)
        message = "; or ".join(
            _join_phrases(describe_changes(miss, expression.tree, properties), "; ")
            for miss in explanation.nearest
            if len(miss.wrong) == changes
        )
    else:
        message = "no properties could make the subscription true"
        changes = distance_for(expression).count_changes(properties)
    reason = "SubscriptionUnknown" if explanation.value is None else "SubscriptionFalse"
    obstacle = Obstacle(reason=reason, message=message, changes=changes)
    return _Interest(
        obstacles=(obstacle,), predicates=explanation.findings, nearest=explanation.nearest
    )


def _check_names(export: Export, streams: tuple[StreamName, ...]) -> _Interest:
    ids = _join_phrases([format_value(name.stream_id) for name in streams], " or ")
    if export.stream_id is None:
        return _make_interest(
            "ExportedByProperties",
            f"is exported by properties, the import wants the stream id {ids}",
            2,
        )
    named = [name for name in streams if name.stream_id == export.stream_id]
    application = export.application.name
    if not named:
        return _make_interest(
            "StreamIdDiffers", f"needs the stream id {ids}, has {format_value(export.stream_id)}"
        )
    if any(name.application_name in (None, application) for name in named):
        return _Interest()
    wanted = _join_phrases([format_value(name.application_name) for name in named], " or ")
    actual = "none" if application is None else format_value(application)
    return _make_interest("ApplicationDiffers", f"needs the application {wanted}, has {actual}")


def _join_phrases(parts: list[str], between: str) -> str:
    """Join the first distinct phrases, and the number of omitted ones."""
    distinct = list(dict.fromkeys(parts))
    omitted = len(distinct) - _MAX_PHRASES
    phrases = distinct[:_MAX_PHRASES] + ([f"{omitted} more"] if omitted > 0 else [])
    return between.join(phrases)


def _check_revoked(export: Export, import_: Import) -> Iterator[Obstacle]:
    revoked = find_revocation(export, import_.key)
    if revoked is not None:
        yield Obstacle(reason="Revoked", message=f"has revoked {revoked}")


def _check_filter(export: Export, import_: Import) -> Iterator[Obstacle]:
    if import_.filter is None or not import_.filter.strip():
        return
    if not export.allow_filter:
        yield Obstacle(reason="FilterForbidden", message="allows no filters, the import has one")
    for message in filter_faults(export, import_):
        yield Obstacle(reason="FilterInvalid", message=message)


def filter_faults(export: Export, import_: Import) -> list[str]:
    """Return what is wrong with the filter for the columns of the Import and of the Export."""
    try:
        restriction = find_restriction(export, import_.key)
    except PolicyDeniedError:
        restriction = None
    problem = filter_problem(import_.filter, import_.schema)
    found = [] if problem is None else [str(problem)]
    problem = filter_problem(import_.filter, visible_schema(export.schema, restriction))
    if problem is not None and str(problem) not in found:
        found.append(f"{problem}{withheld_hint(restriction)}")
    return found


def _check_columns(
    export: Export, import_: Import, restriction: Restriction | None
) -> Iterator[Obstacle]:
    schema = visible_schema(export.schema, restriction)
    if import_.schema is None or schema is None:
        return
    for column in import_.schema:
        difference = find_missing_column(schema, (column,))
        if difference is not None:
            message = f"{difference}{withheld_hint(restriction)}"
            yield Obstacle(reason="SchemaMismatch", message=message)
