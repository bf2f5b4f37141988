"""The set of rules of a query: what is taken in, what it replaces, and what is refused and why.

A set never changes; an update gives the next one. The whole list of wanted rules is given each
time, so the same list twice is the same set. What is wrong with one rule concerns that one alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from streambroker_core.cep.compiler import compile_pattern
from streambroker_core.cep.conditions import fields_of
from streambroker_core.cep.document import Functions, read_rule, write_rule
from streambroker_core.cep.processor import PatternProcessor
from streambroker_core.cep.refusals import PatternError, RuleError
from streambroker_core.cep.selectors import Selector, key_expression
from streambroker_core.errors import (
    ExpressionError,
    FilterError,
    FormatTooNewError,
    ManifestError,
)

FORMAT = 1
Change: TypeAlias = Literal["added", "kept", "replaced", "scheduled", "removed", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one rule of an update.

    Attributes:
        rule: its id, or its place in the list if it has none.
        version: its version, if it has one.
        change: what was done.
        reason: why it was refused: Invalid, VersionTooLow, ContentDiffers, KeyUnknown, KeyInvalid,
            KeyNotCopied, FieldUnknown, FunctionUnknown; empty if it was not.
        message: a sentence, for what was refused.
        warnings: what is allowed and hardly meant.
    """

    rule: str
    version: int | None
    change: Change
    reason: str = ""
    message: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A rule that its source has and cannot read; it is refused alone.

    Attributes:
        rule: its id, or where it stands.
        problem: why.
        version: its version, if that is known.
    """

    rule: str
    problem: str
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What rules of a job may refer to.

    Attributes:
        functions: conditions by name.
        outputs: names of functions that make rows of matches.
        fields: the columns of the stream; None if they are not known.
        selectors: keys that rules may have besides that of the stream, because rows are copied for
            them; None for any.
    """

    functions: Functions = field(default_factory=dict)
    outputs: frozenset[str] = frozenset()
    fields: frozenset[str] | None = None
    selectors: frozenset[Selector] | None = None


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Rules by id; of each id the versions in order, all but the first scheduled.

    Attributes:
        rules: each version is in force until the time of the one behind it.
        disabled: (id, version) of rules that failed and are off.
    """

    rules: Mapping[str, tuple[PatternProcessor, ...]] = field(default_factory=dict)
    disabled: frozenset[tuple[str, int]] = frozenset()

    def __iter__(self) -> Any:
        """Yield all rules that are on, in the order of their ids and versions."""
        for name in sorted(self.rules):
            for rule in self.rules[name]:
                if (rule.id, rule.version) not in self.disabled:
                    yield rule

    def selectors(self, stream: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Return the distinct keys of the rules that are on, as copies of rows are made for them.

        A rule without one has that of the stream; without rules there is that alone.
        """
        return sorted({rule.key or stream for rule in self} or {stream})

    def rule(self, name: str, version: int) -> PatternProcessor:
        """Return the rule with an id and a version, on or off.

        Raises:
            KeyError: there is none.
        """
        for rule in self.rules.get(name, ()):
            if rule.version == version:
                return rule
        raise KeyError((name, version))

    def until(self, rule: PatternProcessor) -> int | None:
        """Return the time from which a later version holds; None for never."""
        versions = self.rules[rule.id]
        place = versions.index(rule)
        return versions[place + 1].scheduled if place + 1 < len(versions) else None

    def updated(
        self, wanted: Iterable[Any], context: Context | None = None
    ) -> tuple[RuleSet, list[Outcome]]:
        """Return the set after an update, and what became of each rule.

        Args:
            wanted: all rules that there are to be, as documents, `PatternProcessor` or, where
                their source could not read them, `Unreadable`.
            context: what they may refer to.
        """
        outcomes: list[Outcome] = []
        read = _read_all(wanted, context or Context(), outcomes)
        rules: dict[str, tuple[PatternProcessor, ...]] = {}
        refused = {outcome.rule for outcome in outcomes}
        for rule in sorted(read, key=lambda each: (each.id, each.version)):
            before = rules.get(rule.id, self._standing(rule.id, read))
            try:
                rules[rule.id], change = _with(before, rule, self.rules.get(rule.id, ()))
            except RuleError as error:
                rules[rule.id] = before
                outcomes.append(_refusal(rule.id, rule.version, error.reason, error.problem))
                continue
            outcomes.append(
                Outcome(
                    rule=rule.id,
                    version=rule.version,
                    change=change,
                    warnings=compile_pattern(rule.pattern).warnings,
                )
            )
        for name in self.rules:
            if name not in rules and name in refused:
                rules[name] = self.rules[name]
        outcomes += [
            Outcome(rule=name, version=self.rules[name][-1].version, change="removed")
            for name in sorted(self.rules)
            if name not in rules
        ]
        kept = {name: versions for name, versions in rules.items() if versions}
        return RuleSet(kept, self.disabled & _keys(kept)), outcomes

    def _standing(self, name: str, read: list[PatternProcessor]) -> tuple[PatternProcessor, ...]:
        """Return the versions that stay: those named again, and the one in force."""
        named = {(rule.id, rule.version) for rule in read}
        return tuple(
            rule
            for place, rule in enumerate(self.rules.get(name, ()))
            if place == 0 or (rule.id, rule.version) in named
        )

    def without(self, name: str, version: int) -> RuleSet:
        """Return the set with a rule off, until a new version comes or it is enabled."""
        return replace(self, disabled=self.disabled | {(name, version)} & _keys(self.rules))

    def enabled(self, name: str) -> RuleSet:
        """Return the set with a rule on again."""
        return replace(self, disabled=frozenset(each for each in self.disabled if each[0] != name))

    def settled(self, time: int) -> RuleSet:
        """Return the set without versions that a scheduled one has replaced up to a time.

        It is this set where nothing was replaced.
        """
        rules, settled = {}, True
        for name, versions in self.rules.items():
            gone = sum(1 for rule in versions[1:] if (rule.scheduled or 0) <= time)
            rules[name] = versions[gone:]
            settled = settled and not gone
        return self if settled else RuleSet(rules, self.disabled & _keys(rules))

    def document(self) -> dict[str, Any]:
        """Return the set as a document, the same for equal sets."""
        return {
            "format": FORMAT,
            "rules": [write_rule(each) for name in sorted(self.rules) for each in self.rules[name]],
            "disabled": sorted([name, version] for name, version in self.disabled),
        }

    @staticmethod
    def read(document: Mapping[str, Any], functions: Functions | None = None) -> RuleSet:
        """Return the set of a document.

        Raises:
            FormatTooNewError: it was written by a newer release.
            ManifestError: it is no set of rules; so for the other errors of `read_rule`.
        """
        version = document.get("format")
        if not isinstance(version, int):
            raise ManifestError(path="format", reason="is missing")
        if version > FORMAT:
            raise FormatTooNewError(path="format", found=version, newest=FORMAT, what="rule set")
        rules: dict[str, tuple[PatternProcessor, ...]] = {}
        for each in document["rules"]:
            rule = read_rule(each, functions)
            rules[rule.id] = (*rules.get(rule.id, ()), rule)
        return RuleSet(rules, frozenset((name, number) for name, number in document["disabled"]))


def _keys(rules: Mapping[str, tuple[PatternProcessor, ...]]) -> frozenset[tuple[str, int]]:
    return frozenset((rule.id, rule.version) for each in rules.values() for rule in each)


def _read_all(
    wanted: Iterable[Any], context: Context, outcomes: list[Outcome]
) -> list[PatternProcessor]:
    read: list[PatternProcessor] = []
    for place, each in enumerate(wanted):
        if isinstance(each, Unreadable):
            outcomes.append(_refusal(each.rule, each.version, "Invalid", each.problem))
            continue
        try:
            rule = (
                each if isinstance(each, PatternProcessor) else read_rule(each, context.functions)
            )
            _check(rule, context)
        except RuleError as error:
            outcomes.append(_refusal(rule.id, rule.version, error.reason, error.problem))
        except (PatternError, ExpressionError, ManifestError) as error:
            name, version = _name(each, place)
            outcomes.append(_refusal(name, version, "Invalid", str(error).rstrip(".")))
        else:
            read.append(rule)
    return read


def _name(given: Any, place: int) -> tuple[str, int | None]:
    if isinstance(given, PatternProcessor):
        return given.id, given.version
    fields = given if isinstance(given, Mapping) else {}
    name, version = fields.get("id"), fields.get("version")
    return (
        name if isinstance(name, str) else f"number {place}",
        version if type(version) is int else None,
    )


def _check(rule: PatternProcessor, context: Context) -> None:
    compile_pattern(rule.pattern)
    if rule.function is not None and rule.function not in context.outputs:
        known = ", ".join(sorted(context.outputs)) or "none"
        raise RuleError(
            rule.id,
            "FunctionUnknown",
            f"the job has not registered a function `{rule.function}`; it has {known}",
        )
    if context.fields is not None:
        _check_fields(rule, context.fields)
    if rule.key and context.selectors is not None and rule.key not in context.selectors:
        copied = ", ".join(sorted(f"({', '.join(each)})" for each in context.selectors))
        raise RuleError(
            rule.id,
            "KeyNotCopied",
            f"rows are not copied for the key ({', '.join(rule.key)}), but for {copied or 'none'};"
            " a query learns of new keys when it starts",
        )


def _check_fields(rule: PatternProcessor, fields: frozenset[str]) -> None:
    _check_key(rule, fields)
    for stage in rule.pattern.stages():
        for given in (stage.condition, stage.until):
            for name in sorted((fields_of(given) or frozenset()) - fields):
                raise RuleError(
                    rule.id,
                    "FieldUnknown",
                    f"stage `{stage.name}` asks for `{name}`, and the stream has no such column",
                )


def _check_key(rule: PatternProcessor, fields: frozenset[str]) -> None:
    for part in rule.key:
        if part in fields:
            continue
        try:
            _, names = key_expression(part)
        except FilterError as error:
            raise RuleError(
                rule.id,
                "KeyInvalid",
                f"the stream has no column `{part}`, and it is no expression: {error}".rstrip("."),
            ) from error
        for name in sorted(names - fields):
            raise RuleError(rule.id, "KeyUnknown", f"the stream has no column `{name}`")


def _with(
    before: tuple[PatternProcessor, ...],
    rule: PatternProcessor,
    standing: tuple[PatternProcessor, ...],
) -> tuple[tuple[PatternProcessor, ...], Change]:
    for each in standing:
        if each.version == rule.version:
            if each != rule:
                raise RuleError(
                    rule.id,
                    "ContentDiffers",
                    f"version {rule.version} stands with other content; give it a higher one",
                )
            return before, "kept"
    if before and rule.version < before[-1].version:
        raise RuleError(
            rule.id,
            "VersionTooLow",
            f"version {rule.version} is lower than {before[-1].version}, which is in force",
        )
    if before and rule.version == before[-1].version:
        raise RuleError(rule.id, "ContentDiffers", f"version {rule.version} is given twice")
    if before and rule.scheduled is not None:
        earlier = tuple(each for each in before if (each.scheduled or -(2**62)) < rule.scheduled)
        return (*earlier, rule), "scheduled"
    return (rule,), "replaced" if before else "scheduled" if rule.scheduled else "added"


def _refusal(name: str, version: int | None, reason: str, message: str) -> Outcome:
    return Outcome(rule=name, version=version, change="refused", reason=reason, message=message)
