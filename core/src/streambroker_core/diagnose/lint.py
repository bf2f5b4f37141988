"""Lint: find resources that are allowed but are probably mistakes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias, TypeVar

from streambroker_core.board import BoardReader
from streambroker_core.board.wait_cycles import RING, Ring
from streambroker_core.diagnose.contradictions import contradiction
from streambroker_core.diagnose.explain_port import BoardSnapshot
from streambroker_core.diagnose.offered_properties import (
    OfferedProperties,
    VisibleExports,
    suggest_name,
    types_text,
)
from streambroker_core.diagnose.predicate_text import count_text, format_value
from streambroker_core.errors import StreambrokerError
from streambroker_core.expression import Expression, ExpressionKind, tree
from streambroker_core.expression.evaluate import compile_test
from streambroker_core.expression.filter_types import column_type
from streambroker_core.expression.printer import print_tree
from streambroker_core.matching import Match, MatchResult
from streambroker_core.matching.decide import filter_problem, parse_cached
from streambroker_core.model import Export, Import, Resource, kind_of, resource_order
from streambroker_core.model.schema import Schema, widens

R = TypeVar("R", Export, Import)

_FILTERS = 4_096

_CodeAndMessage: TypeAlias = "tuple[str, str]"


@dataclass(frozen=True, slots=True, kw_only=True)
class LintFinding:
    """A probable mistake in one resource, or in several if `about` is None."""

    code: str
    message: str
    about: Resource | None = None

    @property
    def resource(self) -> str | None:
        """Kind and port, such as ``import default/alerts/0/trades``."""
        return None if self.about is None else f"{kind_of(self.about).lower()} {self.about.key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LintInput:
    """All resources with their outcomes, as an immutable value: usable in any thread.

    Attributes:
        outcomes: matches and near misses of each Import, by the Export's uid.
        rings: jobs that may wait for each other.
    """

    snapshot: BoardSnapshot
    outcomes: Mapping[str, Mapping[str, MatchResult]]
    rings: Sequence[Ring] = ()


def collect_lint_input(board: BoardReader, snapshot: BoardSnapshot) -> LintInput:
    """Return the lint input for a board's current state."""
    outcomes = {import_.uid: board.outcomes("Import", import_.uid) for import_ in snapshot.imports}
    return LintInput(snapshot=snapshot, outcomes=outcomes, rings=board.wait_rings.list_all())


def collect_offered(snapshot: BoardSnapshot) -> OfferedProperties:
    """Return the properties that all accepted Exports offer."""
    taking_part = (x for x in snapshot.exports if x.uid not in snapshot.export_conflicts)
    return OfferedProperties(taking_part, is_complete=snapshot.is_complete)


def lint_import(import_: Import, offered: OfferedProperties, *, matched: bool) -> list[LintFinding]:
    """Return the findings of one Import, except those about its pairs.

    If it `matched` any Export, its subscription can be true and is not checked.
    """
    problems = list(_filter_problems(import_))
    if not matched or len(import_.streams) > 1:
        problems = [*_subscription_problems(import_), *problems, *_never_offered(import_, offered)]
    return [LintFinding(code=code, about=import_, message=message) for code, message in problems]


def lint_export(export: Export, *, imported: bool) -> list[LintFinding]:
    """Return the findings of one Export."""
    if imported:
        return []
    empty = export.properties is not None and not export.properties
    message = "its properties are empty, which matches nothing" if empty else "no import matches it"
    return [LintFinding(code="NobodyImports", about=export, message=message)]


def lint(scene: LintInput) -> list[LintFinding]:
    """Return all findings, in order of the resources' ports.

    Findings about a whole scope are included only if the snapshot is complete.
    """
    snapshot = scene.snapshot
    offered = collect_offered(snapshot)
    by_uid = {export.uid: export for export in snapshot.exports}
    findings: list[LintFinding] = []
    imported: set[str] = set()
    for import_ in _in_order(snapshot.imports):
        outcomes = scene.outcomes.get(import_.uid, {})
        matched = [uid for uid, outcome in outcomes.items() if isinstance(outcome, Match)]
        imported.update(matched)
        findings += _conflict_findings(snapshot, import_)
        findings += lint_import(import_, offered, matched=bool(matched))
        findings += _pair_findings(
            import_, outcomes, [by_uid[uid] for uid in matched if uid in by_uid]
        )
    for export in _in_order(snapshot.exports):
        conflicts = _conflict_findings(snapshot, export)
        findings += conflicts or lint_export(export, imported=export.uid in imported)
    findings = [*_ring_findings(scene), *findings]
    return [*_type_clashes(offered), *findings] if snapshot.is_complete else findings


def _in_order(resources: Iterable[R]) -> list[R]:
    return sorted(resources, key=resource_order)


def _conflict_findings(snapshot: BoardSnapshot, resource: Export | Import) -> list[LintFinding]:
    conflicts = (
        snapshot.export_conflicts if isinstance(resource, Export) else snapshot.import_conflicts
    )
    conflict = conflicts.get(resource.uid)
    if conflict is None:
        return []
    return [LintFinding(code=conflict.reason, about=resource, message=conflict.message)]


# ---- a single Import ---------------------------------------------------------------------------


def _subscription_problems(import_: Import) -> Iterator[_CodeAndMessage]:
    expression = _parse(import_.subscription, "subscription")
    if isinstance(expression, StreambrokerError):
        yield expression.code, str(expression)
    elif expression is not None and expression.tree is not None:
        reason = contradiction(expression.tree)
        if reason is not None:
            yield "SubscriptionContradicts", f"no properties can fit the subscription: {reason}"


def _filter_problems(import_: Import) -> Iterator[_CodeAndMessage]:
    problem = filter_problem(import_.filter, import_.schema)
    if problem is not None:
        yield problem.code, str(problem)
    elif import_.filter is not None and import_.filter.strip():
        reason = _forbids_all(import_.filter, _integers(import_.schema))
        if reason is not None:
            yield "FilterForbidsAll", f"the filter rejects every row: {reason}"


@lru_cache(maxsize=_FILTERS)
def _forbids_all(text: str, integers: frozenset[str]) -> str | None:
    expression = parse_cached(text, "filter")
    if isinstance(expression, StreambrokerError) or expression.tree is None:
        return None
    return contradiction(expression.tree, integers=integers, nan=True)


def _parse(text: str | None, kind: ExpressionKind) -> Expression | StreambrokerError | None:
    return None if text is None or not text.strip() else parse_cached(text, kind)


def _integers(schema: Schema | None) -> frozenset[str]:
    columns = schema or ()
    return frozenset(c.name for c in columns if column_type(c.type).kind == "integer")


def _never_offered(import_: Import, offered: OfferedProperties) -> Iterator[_CodeAndMessage]:
    """Yield why no Export could ever match, if so."""
    offer = offered.visible_from(import_.key.namespace, import_.application_scope)
    expression = _parse(import_.subscription, "subscription")
    if not import_.streams and not isinstance(expression, Expression):
        return
    if not offer.exports:
        yield "ScopeUnknown", _no_scope(import_, offered)
    elif import_.streams:
        yield from _unknown_streams(import_, offer)
    elif isinstance(expression, Expression) and expression.tree is not None:
        for atom, wanted in dict.fromkeys(offer.find_faults(expression.tree)):
            if tree.names(atom):
                yield _explain_never_true(atom, offer, desired=wanted)


def _no_scope(import_: Import, offered: OfferedProperties) -> str:
    message = (
        f"nothing in the scope {format_value(import_.application_scope)} may be imported from the "
        f"namespace {import_.key.namespace}"
    )
    scopes = ", ".join(format_value(scope) for scope in offered.scopes[:8])
    if not scopes:
        return f"{message}; nothing is exported at all" if offered.is_complete else message
    return f"{message}; exports are in {scopes}"


def _unknown_streams(import_: Import, offer: VisibleExports) -> Iterator[_CodeAndMessage]:
    streams = offer.streams
    for name in import_.streams:
        applications = streams.get(name.stream_id)
        if applications is None:
            suggestion = suggest_name(name.stream_id, streams)
            hint = f"; did you mean {format_value(suggestion)}?" if suggestion else ""
            message = f"no export has the stream id {format_value(name.stream_id)}{hint}"
            yield "StreamNeverExported", message
        elif name.application_name not in {None, *applications}:
            others = ", ".join(sorted(format_value(one) for one in applications if one is not None))
            yield (
                "ApplicationNeverExports",
                f"the stream id {format_value(name.stream_id)} is not exported by the application"
                f" {format_value(name.application_name)}, but by {others or 'one without a name'}",
            )


def _explain_never_true(
    atom: tree.Atom, offer: VisibleExports, *, desired: bool
) -> _CodeAndMessage:
    text = print_tree(atom)
    needed = f"`{text}`" if desired else f"`!({text})`"
    for name in sorted(tree.names(atom)):
        if not offer.property_values(name).values:
            return (
                "PropertyNeverOffered",
                f"{needed} is true of no export: {offer.describe_missing(name)}",
            )
    test, name = compile_test(atom), min(tree.names(atom))
    if all(test({name: value}) is None for value in offer.property_values(name).values):
        types = offer.describe_types(name)
        return "TypeNeverOffered", f"{needed} is true of no export: `{name}` is {types}"
    return (
        "ValueNeverOffered",
        f"{needed} is true of no export: `{name}` is {offer.describe_examples(name)}",
    )


# ---- several resources -------------------------------------------------------------------------


def _pair_findings(
    import_: Import, outcomes: Mapping[str, MatchResult], matched: list[Export]
) -> Iterator[LintFinding]:
    refused = Counter(o.reason for o in outcomes.values() if not isinstance(o, Match))
    if refused and not matched:
        reason, count = refused.most_common(1)[0]
        message = f"{count_text(count, 'export')} would match, except for {reason}; no other does"
        yield LintFinding(code=reason, about=import_, message=message)
    wanted = {c.name: c.type for c in import_.schema or ()}
    for export in matched:
        for column in export.schema or ():
            if widens(wanted.get(column.name, ""), column.type):
                message = (
                    f"column `{column.name}` is {wanted[column.name]} in the import and"
                    f" {column.type} in {export.key}: its query stops before rows of that type"
                )
                yield LintFinding(code="SchemaWidened", about=import_, message=message)
    types: dict[str, Counter[str]] = {}
    for schema, count in Counter(export.schema for export in matched if export.schema).items():
        for column in schema or ():
            types.setdefault(column.name, Counter())[column.type] += count
    for name, counts in sorted(types.items()):
        if len(counts) > 1:
            message = f"column `{name}` is {types_text(counts)} that it imports"
            yield LintFinding(code="ColumnTypesDiffer", about=import_, message=message)


def _ring_findings(scene: LintInput) -> Iterator[LintFinding]:
    """Yield the rings whose routes are all visible in the snapshot."""
    exports = {export.key: export for export in scene.snapshot.exports}
    imports = {import_.key for import_ in scene.snapshot.imports}
    for ring in scene.rings:
        if all(e.export in exports and e.import_ in imports for e in ring.cycle):
            about = exports[ring.cycle[0].export]
            yield LintFinding(code=RING, about=about, message=ring.describe())


def _type_clashes(offered: OfferedProperties) -> Iterator[LintFinding]:
    """Yield the properties that have several types within one scope."""
    for scope, offer in offered.by_scope():
        for name in sorted(offer.names):
            types = {
                kind: n
                for kind, n in offer.property_values(name).types.items()
                if kind != "empty list"
            }
            if len(types) > 1:
                yield LintFinding(
                    code="PropertyTypesDiffer", message=_describe_clash(scope, name, types)
                )


def _describe_clash(scope: str, name: str, types: dict[str, int]) -> str:
    numbers = types.keys() <= {"int64", "double"}
    what = "numbers are compared by value" if numbers else "no predicate is true of both"
    return f"property `{name}` is {types_text(types)} in the scope {format_value(scope)}; {what}"
