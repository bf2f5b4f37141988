"""Look for what nobody forbids and nobody can mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias, TypeVar

from streambroker_core.board import Board
from streambroker_core.board.wait_cycles import RING, Ring
from streambroker_core.diagnose.contradictions import contradiction
from streambroker_core.diagnose.explain_port import Survey
from streambroker_core.diagnose.offered_properties import Offer, Offers, guess, types_text
from streambroker_core.diagnose.predicate_text import shown
from streambroker_core.errors import StreambrokerError
from streambroker_core.expression import Expression, Kind, tree
from streambroker_core.expression.evaluate import test_of
from streambroker_core.expression.filter_types import column_type
from streambroker_core.expression.printer import print_tree
from streambroker_core.matching import Match, Outcome
from streambroker_core.matching.decide import filter_problem, parsed
from streambroker_core.model import Export, Import, Resource, kind_of, resource_order
from streambroker_core.model.schema import Schema

R = TypeVar("R", Export, Import)

_FILTERS = 4_096

_Told: TypeAlias = "tuple[str, str]"
"""A code and a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that looks wrong.

    Attributes:
        code: the word for it.
        message: a sentence for people.
        about: the resource that it is about; None where it concerns many.
    """

    code: str
    message: str
    about: Resource | None = None

    @property
    def resource(self) -> str | None:
        """Kind and port, as ``import default/alerts/0/trades``."""
        return None if self.about is None else f"{kind_of(self.about).lower()} {self.about.key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """All resources with what they meet; a value, so it can be looked at anywhere.

    Attributes:
        known: all resources.
        met: matches and near refusals of each Import, by the Export's uid.
        rings: jobs that may wait for each other.
    """

    known: Survey
    met: Mapping[str, Mapping[str, Outcome]]
    rings: Sequence[Ring] = ()


def scene(board: Board, known: Survey) -> Scene:
    """Return what a board's resources meet now."""
    found = {import_.uid: board.outcomes("Import", import_.uid) for import_ in known.imports}
    return Scene(known=known, met=found, rings=board.rings())


def offers_of(known: Survey) -> Offers:
    """Return what all Exports that take part offer."""
    taking_part = (x for x in known.exports if x.uid not in known.taken_exports)
    return Offers(taking_part, whole=known.whole)


def lint_import(import_: Import, offers: Offers, *, matched: bool) -> list[Finding]:
    """Return what looks wrong with one Import, beside what its pairs say.

    Args:
        import_: the Import.
        offers: what there is to import.
        matched: whether it matches any Export; then its subscription can be true.
    """
    found = list(_filter(import_))
    if not matched or len(import_.streams) > 1:
        found = [*_subscription(import_), *found, *_wanted(import_, offers)]
    return [Finding(code=code, about=import_, message=message) for code, message in found]


def lint_export(export: Export, *, imported: bool) -> list[Finding]:
    """Return what looks wrong with one Export."""
    if imported:
        return []
    empty = export.properties is not None and not export.properties
    message = "its properties are empty, which matches nothing" if empty else "no import matches it"
    return [Finding(code="NobodyImports", about=export, message=message)]


def lint(scene: Scene) -> list[Finding]:
    """Return all that looks wrong, in order of the resources' ports.

    What resources of a scope say together is told only where all of them are known.
    """
    known = scene.known
    offers = offers_of(known)
    by_uid = {export.uid: export for export in known.exports}
    found: list[Finding] = []
    imported: set[str] = set()
    for import_ in _in_order(known.imports):
        met = scene.met.get(import_.uid, {})
        matched = [uid for uid, outcome in met.items() if isinstance(outcome, Match)]
        imported.update(matched)
        found += _taken(known, import_)
        found += lint_import(import_, offers, matched=bool(matched))
        found += _together(import_, met, [by_uid[uid] for uid in matched if uid in by_uid])
    for export in _in_order(known.exports):
        taken = _taken(known, export)
        found += taken or lint_export(export, imported=export.uid in imported)
    found = [*_rings(scene), *found]
    return [*_clashes(offers), *found] if known.whole else found


def _in_order(resources: Iterable[R]) -> list[R]:
    return sorted(resources, key=resource_order)


def _taken(known: Survey, resource: Export | Import) -> list[Finding]:
    taken = known.taken_exports if isinstance(resource, Export) else known.taken_imports
    obstacle = taken.get(resource.uid)
    if obstacle is None:
        return []
    return [Finding(code=obstacle.reason, about=resource, message=obstacle.message)]


# ---- what an Import says -----------------------------------------------------------------------


def _subscription(import_: Import) -> Iterator[_Told]:
    wanted = _read(import_.subscription, "subscription")
    if isinstance(wanted, StreambrokerError):
        yield wanted.code, str(wanted)
    elif wanted is not None and wanted.tree is not None:
        reason = contradiction(wanted.tree)
        if reason is not None:
            yield "SubscriptionContradicts", f"no properties can fit the subscription: {reason}"


def _filter(import_: Import) -> Iterator[_Told]:
    problem = filter_problem(import_.filter, import_.schema)
    if problem is not None:
        yield problem.code, str(problem)
    elif import_.filter is not None and import_.filter.strip():
        reason = _forbids_all(import_.filter, _integers(import_.schema))
        if reason is not None:
            yield "FilterForbidsAll", f"the filter lets no row pass: {reason}"


@lru_cache(maxsize=_FILTERS)
def _forbids_all(text: str, integers: frozenset[str]) -> str | None:
    found = parsed(text, "filter")
    if isinstance(found, StreambrokerError) or found.tree is None:
        return None
    return contradiction(found.tree, integers=integers, nan=True)


def _read(text: str | None, kind: Kind) -> Expression | StreambrokerError | None:
    return None if text is None or not text.strip() else parsed(text, kind)


def _integers(schema: Schema | None) -> frozenset[str]:
    """Return the columns that hold whole numbers only."""
    columns = schema or ()
    return frozenset(c.name for c in columns if column_type(c.type).kind == "integer")


def _wanted(import_: Import, offers: Offers) -> Iterator[_Told]:
    """Look whether any export could ever fit."""
    offer = offers.seen_from(import_.key.namespace, import_.application_scope)
    expression = _read(import_.subscription, "subscription")
    if not import_.streams and not isinstance(expression, Expression):
        return
    if not offer.exports:
        yield "ScopeUnknown", _no_scope(import_, offers)
    elif import_.streams:
        yield from _names(import_, offer)
    elif isinstance(expression, Expression) and expression.tree is not None:
        for atom, wanted in dict.fromkeys(offer.faults(expression.tree)):
            if tree.names(atom):
                yield _never(atom, offer, wanted=wanted)


def _no_scope(import_: Import, offers: Offers) -> str:
    message = (
        f"nothing in the scope {shown(import_.application_scope)} may be imported from the "
        f"namespace {import_.key.namespace}"
    )
    known = ", ".join(shown(scope) for scope in offers.scopes[:8])
    if not known:
        return f"{message}; nothing is exported at all" if offers.whole else message
    return f"{message}; exports are in {known}"


def _names(import_: Import, offer: Offer) -> Iterator[_Told]:
    streams = offer.streams
    for name in import_.streams:
        applications = streams.get(name.stream_id)
        if applications is None:
            meant = guess(name.stream_id, streams)
            hint = f"; did you mean {shown(meant)}?" if meant else ""
            message = f"nobody exports the stream id {shown(name.stream_id)}{hint}"
            yield "StreamNeverExported", message
        elif name.application_name not in {None, *applications}:
            there = ", ".join(sorted(shown(one) for one in applications if one is not None))
            yield (
                "ApplicationNeverExports",
                f"the stream id {shown(name.stream_id)} is not exported by the application "
                f"{shown(name.application_name)}, but by {there or 'one without a name'}",
            )


def _never(atom: tree.Atom, offer: Offer, *, wanted: bool) -> _Told:
    """Say why no export gives a predicate the value that it needs."""
    text = print_tree(atom)
    needed = f"`{text}`" if wanted else f"`!({text})`"
    for name in sorted(tree.names(atom)):
        if not offer.of(name).values:
            return "PropertyNeverOffered", f"{needed} is true of no export: {offer.missing(name)}"
    test, name = test_of(atom), min(tree.names(atom))
    if all(test({name: value}) is None for value in offer.of(name).values):
        types = offer.described(name)
        return "TypeNeverOffered", f"{needed} is true of no export: `{name}` is {types}"
    return (
        "ValueNeverOffered",
        f"{needed} is true of no export: `{name}` is {offer.examples(name)}",
    )


# ---- what resources say together ---------------------------------------------------------------


def _together(
    import_: Import, met: Mapping[str, Outcome], matched: list[Export]
) -> Iterator[Finding]:
    refused = Counter(o.reason for o in met.values() if not isinstance(o, Match))
    if refused and not matched:
        reason, count = refused.most_common(1)[0]
        exports = f"{count} export{'' if count == 1 else 's'}"
        message = f"{exports} would match, but for {reason}; no other does"
        yield Finding(code=reason, about=import_, message=message)
    schemas = {export.schema for export in matched if export.schema}
    types: dict[str, set[str]] = {}
    for schema in schemas:
        for column in schema or ():
            types.setdefault(column.name, set()).add(column.type)
    for column_name in sorted(name for name, kinds in types.items() if len(kinds) > 1):
        counts = Counter(
            column.type
            for export in matched
            for column in export.schema or ()
            if column.name == column_name
        )
        message = f"column `{column_name}` is {types_text(counts)} that it imports"
        yield Finding(code="ColumnTypesDiffer", about=import_, message=message)


def _rings(scene: Scene) -> Iterator[Finding]:
    """Yield the rings of waiting jobs of which all routes may be seen."""
    exports = {export.key: export for export in scene.known.exports}
    imports = {import_.key for import_ in scene.known.imports}
    for ring in scene.rings:
        if all(e.export in exports and e.import_ in imports for e in ring.round):
            about = exports[ring.round[0].export]
            yield Finding(code=RING, about=about, message=ring.told())


def _clashes(offers: Offers) -> Iterator[Finding]:
    """Yield the properties that are of several types in one scope."""
    for scope, offer in offers.each():
        for name in sorted(offer.names):
            types = {kind: n for kind, n in offer.of(name).types.items() if kind != "empty list"}
            if len(types) > 1:
                yield Finding(code="PropertyTypesDiffer", message=_clash(scope, name, types))


def _clash(scope: str, name: str, types: dict[str, int]) -> str:
    numbers = types.keys() <= {"int64", "double"}
    what = "numbers are compared by value" if numbers else "no predicate is true of both"
    return f"property `{name}` is {types_text(types)} in the scope {shown(scope)}; {what}"
