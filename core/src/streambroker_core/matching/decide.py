"""Decide one pair: whether an Export feeds an Import, and if not, why.

`match` is the definition. Faster matchers only select the pairs to call it on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

from streambroker_core.errors import StreambrokerError
from streambroker_core.expression import Expression, check_filter, parse
from streambroker_core.model import Export, Import, PeKey, Policy, PortKey, Properties
from streambroker_core.model.policies import PolicyDeniedError, Restriction, restrict
from streambroker_core.model.schema import Schema, find_missing_column

Reason: TypeAlias = Literal[
    "NamespaceNotAllowed",
    "ScopeDiffers",
    "NothingWanted",
    "ExportedByProperties",
    "ExportedByName",
    "StreamIdDiffers",
    "ApplicationDiffers",
    "SubscriptionInvalid",
    "SubscriptionFalse",
    "SubscriptionUnknown",
    "Revoked",
    "PolicyDenied",
    "FilterForbidden",
    "FilterInvalid",
    "SchemaMismatch",
]

NEAR: frozenset[Reason] = frozenset(
    {"Revoked", "PolicyDenied", "FilterForbidden", "FilterInvalid", "SchemaMismatch"}
)
"""Reasons of near misses, whose two sides want each other; users see them unprompted."""

_MAX_TREES = 2_048
_MAX_ANSWERS = 16_384
"""Cache sizes: a parsed tree takes kilobytes and is cheap to recreate, a result is small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The Export feeds the Import.

    Attributes:
        policy: ``drop`` if the Export or the Import states it, else ``wait``.
        filter: canonical text of the Import's filter, or None.
    """

    policy: Policy
    filter: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoMatch:
    """The Export does not feed the Import: a reason word for programs, a sentence for people."""

    reason: Reason
    message: str


MatchResult: TypeAlias = Match | NoMatch


_PLAIN = {policy: Match(policy=policy) for policy in get_args(Policy)}


def match(export: Export, import_: Import) -> MatchResult:
    """Decide one pair; the first failing rule is the reason.

    The order of the rules is part of the contract: visibility (namespace, scope), interest
    (names or subscription), then delivery (revocation, policies, filter, schema).
    """
    return (
        _check_audience(export, import_)
        or _check_interest(export, import_)
        or connect(export, import_)
    )


def connect(export: Export, import_: Import) -> MatchResult:
    """Decide a pair that is visible and of interest to the Import."""
    try:
        restriction = find_restriction(export, import_.key)
    except PolicyDeniedError as error:
        denied = NoMatch(reason="PolicyDenied", message=f"{export.key}: {error}")
        return _check_revoked(export, import_) or denied
    return (
        _check_revoked(export, import_)
        or _check_filter(export, import_, restriction)
        or _check_columns(export, import_, restriction)
        or _make_match(export, import_)
    )


def find_restriction(export: Export, importer: PeKey | PortKey) -> Restriction | None:
    """Return what an Export's policies leave to a job's imports; None if that is everything.

    Raises:
        PolicyDeniedError: they leave nothing.
    """
    if not export.policies:
        return None
    return restrict(export.policies, importer.namespace, importer.job)


def visible_schema(schema: Schema | None, restriction: Restriction | None) -> Schema | None:
    """Return the columns that a restriction leaves, if they are known."""
    return schema if restriction is None or schema is None else restriction.visible(schema)


def withheld_hint(restriction: Restriction | None) -> str:
    """Return the end of a message about columns that may be withheld; mostly nothing."""
    columns = None if restriction is None else restriction.columns
    return "" if columns is None else f" ({restriction} of the export leave out columns.)"


def is_reachable(export: Export, import_: Import) -> bool:
    """Return whether namespace and scope let an Import see an Export."""
    return export.application.scope == import_.application_scope and is_namespace_allowed(
        export, import_.key.namespace
    )


def is_namespace_allowed(export: Export, namespace: str) -> bool:
    """Return whether an Export may be imported from a namespace."""
    if namespace == export.key.namespace:
        return True
    return namespace in export.allowed_namespaces or "*" in export.allowed_namespaces


def find_revocation(export: Export, job: PeKey | PortKey) -> str | None:
    """Return the entry of an Export's `revoked` that applies to a job; None if there is none."""
    for entry in (job.namespace, f"{job.namespace}/{job.job}"):
        if entry in export.revoked:
            return entry
    return None


def _make_match(export: Export, import_: Import) -> Match:
    policy = choose_policy(export, import_)
    if import_.filter is None:
        return _PLAIN[policy]
    return Match(policy=policy, filter=canonical_filter(import_.filter))


def choose_policy(export: Export, import_: Import) -> Policy:
    """Return the policy of a route: either side may request ``drop``."""
    drops = export.congestion_policy == "drop" or import_.on_congestion == "drop"
    return "drop" if drops else "wait"


def canonical_filter(text: str | None) -> str | None:
    """Return a filter's canonical text; None if blank or absent, the text itself if invalid."""
    return None if text is None else _canonical(text)


@lru_cache(maxsize=_MAX_ANSWERS)
def _canonical(text: str) -> str | None:
    if not text.strip():
        return None
    expression = parse_cached(text, "filter")
    return text if isinstance(expression, StreambrokerError) else str(expression)


def expression_problem(
    text: str | None, kind: Literal["subscription", "filter"]
) -> StreambrokerError | None:
    """Return what is wrong with an expression's syntax, or None."""
    return None if text is None else _problem(text, kind)


@lru_cache(maxsize=_MAX_ANSWERS)
def _problem(text: str, kind: Literal["subscription", "filter"]) -> StreambrokerError | None:
    if not text.strip():
        return None
    expression = parse_cached(text, kind)
    return expression if isinstance(expression, StreambrokerError) else None


def filter_problem(text: str | None, schema: Schema | None) -> StreambrokerError | None:
    """Return what is wrong with a filter for a schema; without a schema, only its syntax."""
    if text is None or not text.strip():
        return None
    return _check_typed(text, schema)


def import_filter_problem(import_: Import, exports: Iterable[Export]) -> StreambrokerError | None:
    """Return why an Import's filter can never work, or None.

    If the Import has a schema, that decides. Otherwise the filter is wrong if it is wrong for
    every Export that the Import matches without it. With no such Export, only syntax counts.
    """
    problem = filter_problem(import_.filter, import_.schema)
    if problem is not None or import_.filter is None or import_.schema is not None:
        return problem
    unfiltered = replace(import_, filter=None)
    problems = [
        filter_problem(
            import_.filter, visible_schema(export.schema, find_restriction(export, import_.key))
        )
        for export in exports
        if export.allow_filter and isinstance(match(export, unfiltered), Match)
    ]
    failures = [problem for problem in problems if problem is not None]
    return failures[0] if failures and len(failures) == len(problems) else None


def _check_audience(export: Export, import_: Import) -> NoMatch | None:
    if is_reachable(export, import_):
        return None
    namespace = import_.key.namespace
    if not is_namespace_allowed(export, namespace):
        return NoMatch(
            reason="NamespaceNotAllowed",
            message=f"{export.key} does not allow the namespace {namespace}",
        )
    return NoMatch(
        reason="ScopeDiffers",
        message=f"{export.key} is in the scope {export.application.scope!r}, "
        f"the import looks in {import_.application_scope!r}",
    )


def _check_interest(export: Export, import_: Import) -> NoMatch | None:
    if import_.streams:
        return _check_names(export, import_)
    text = import_.subscription
    if text is None or not text.strip():
        return NoMatch(
            reason="NothingWanted", message=f"{import_.key} has neither subscription nor streams"
        )
    if export.properties is None:
        return NoMatch(
            reason="ExportedByName",
            message=f"{export.key} is exported by name, the import has a subscription",
        )
    return _check_properties(export, export.properties, text)


def _check_names(export: Export, import_: Import) -> NoMatch | None:
    if export.stream_id is None:
        return NoMatch(
            reason="ExportedByProperties",
            message=f"{export.key} is exported by properties, the import names streams",
        )
    named = [name for name in import_.streams if name.stream_id == export.stream_id]
    if not named:
        return NoMatch(
            reason="StreamIdDiffers",
            message=f"{export.key} has the stream id {export.stream_id!r}, "
            "which the import does not name",
        )
    if any(name.application_name in (None, export.application.name) for name in named):
        return None
    return NoMatch(
        reason="ApplicationDiffers",
        message=f"{export.key} is of the application {export.application.name!r}, "
        f"the import wants {named[0].application_name!r}",
    )


def _check_properties(export: Export, properties: Properties, text: str) -> NoMatch | None:
    expression = parse_cached(text, "subscription")
    if isinstance(expression, StreambrokerError):
        return NoMatch(reason="SubscriptionInvalid", message=str(expression))
    value = expression.test(properties)
    if value is True:
        return None
    if value is False:
        return NoMatch(
            reason="SubscriptionFalse",
            message=f"the subscription is false for the properties of {export.key}",
        )
    return NoMatch(
        reason="SubscriptionUnknown",
        message=f"the subscription is unknown for {export.key}: a property is missing or of "
        "another type",
    )


def _check_revoked(export: Export, import_: Import) -> NoMatch | None:
    entry = find_revocation(export, import_.key)
    if entry is None:
        return None
    return NoMatch(reason="Revoked", message=f"{export.key} has revoked {entry}")


def _check_filter(
    export: Export, import_: Import, restriction: Restriction | None
) -> NoMatch | None:
    text = import_.filter
    if text is None or not text.strip():
        return None
    if not export.allow_filter:
        return NoMatch(reason="FilterForbidden", message=f"{export.key} allows no filters")
    schema = visible_schema(export.schema, restriction)
    problem = filter_problem(text, import_.schema) or filter_problem(text, schema)
    if problem is None:
        return None
    return NoMatch(reason="FilterInvalid", message=f"{problem}{withheld_hint(restriction)}")


def _check_columns(
    export: Export, import_: Import, restriction: Restriction | None
) -> NoMatch | None:
    schema = visible_schema(export.schema, restriction)
    if import_.schema is None or schema is None:
        return None
    difference = find_missing_column(schema, import_.schema)
    if difference is None:
        return None
    difference += withheld_hint(restriction)
    return NoMatch(reason="SchemaMismatch", message=f"{export.key}: {difference}")


@lru_cache(maxsize=_MAX_TREES)
def parse_cached(
    text: str, kind: Literal["subscription", "filter"]
) -> Expression | StreambrokerError:
    """Return a parsed expression, or what is wrong with it; cached by the text."""
    try:
        return parse(text, kind=kind)
    except StreambrokerError as error:
        return error.with_traceback(None)


@lru_cache(maxsize=_MAX_ANSWERS)
def _check_typed(text: str, schema: Schema | None) -> StreambrokerError | None:
    expression = parse_cached(text, "filter")
    if isinstance(expression, StreambrokerError):
        return expression
    if schema is None:
        return None
    try:
        check_filter(expression, schema)
    except StreambrokerError as error:
        return error.with_traceback(None)
    return None


def is_near(outcome: MatchResult) -> bool:
    """Return whether an outcome is a match or a near miss (`NEAR`)."""
    return isinstance(outcome, Match) or outcome.reason in NEAR
