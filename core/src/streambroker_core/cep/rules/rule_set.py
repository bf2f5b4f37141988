"""The set of rules of a query: what is taken in, what it replaces, and what is refused and why.

A set never changes; an update gives the next one. The whole list of wanted rules is given each
time, so the same list twice is the same set. What is wrong with one rule concerns that one alone.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from streambroker_core.cep.nfa.compiler import compile_pattern
from streambroker_core.cep.pattern.condition_types import check_condition
from streambroker_core.cep.pattern.conditions import list_fields
from streambroker_core.cep.pattern.errors import RuleError
from streambroker_core.cep.pattern.key_selectors import Selector, key_expression
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.rules.document import Functions, read_rule, write_rule
from streambroker_core.errors import (
    ExpressionError,
    FilterError,
    FormatTooNewError,
    ManifestError,
    StreambrokerError,
)
from streambroker_core.model.schema import Schema

FORMAT = 2
"""From 2 on, `gap` limits the first event of a stage as well; before, it was `gapBetween`."""
MAX_BYTES = 262_144
"""Of the document of one rule, as JSON."""
RuleChange: TypeAlias = Literal["added", "kept", "replaced", "scheduled", "removed", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleUpdate:
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
    change: RuleChange
    reason: str = ""
    message: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableRule:
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
class RuleContext:
    """What rules of a job may refer to.

    Attributes:
        functions: conditions by name.
        outputs: names of functions that make rows of matches.
        fields: the columns of the stream; None if they are not known.
        schema: the same with their types; None if these are not known.
        selectors: keys that rules may have besides that of the stream, because rows are copied for
            them; None for any.
        fixed_key: no other keys can be added to the query.
    """

    functions: Functions = field(default_factory=dict)
    outputs: frozenset[str] = frozenset()
    fields: frozenset[str] | None = None
    schema: Schema | None = None
    selectors: frozenset[Selector] | None = None
    fixed_key: bool = False


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
        return versions[place + 1].starts if place + 1 < len(versions) else None

    def apply_update(
        self,
        desired: Iterable[Any],
        context: RuleContext | None = None,
        listed: Collection[tuple[str, int]] = (),
    ) -> tuple[RuleSet, list[RuleUpdate]]:
        """Return the set after an update, and what became of each rule.

        Of several versions of an id those count that are not below the highest one without a
        schedule.

        Args:
            desired: all rules that there are to be, as documents, `PatternProcessor` or, where
                their source could not read them, `UnreadableRule`.
            context: what they may refer to.
            listed: id and version of the rules of the last update. One of them takes the place of
                a higher version that is not in the list any more.
        """
        outcomes: list[RuleUpdate] = []
        read = _drop_outdated(_read_all(desired, context or RuleContext(), outcomes))
        rules: dict[str, tuple[PatternProcessor, ...]] = {}
        refused = {outcome.rule for outcome in outcomes}
        for rule in sorted(read, key=lambda each: (each.id, each.version)):
            before = rules.get(rule.id, self._retained_versions(rule.id, read))
            taken_back = (rule.id, rule.version) in listed and rule.id not in rules
            taken_back = taken_back and _is_rollback(before, rule, read)
            change: RuleChange = "replaced"
            try:
                if taken_back:
                    rules[rule.id] = (rule,)
                else:
                    rules[rule.id], change = _add_version(before, rule, self.rules.get(rule.id, ()))
            except RuleError as error:
                rules[rule.id] = before
                outcomes.append(_refused_update(rule.id, rule.version, error.reason, error.problem))
                continue
            outcomes.append(
                RuleUpdate(
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
            RuleUpdate(rule=name, version=self.rules[name][-1].version, change="removed")
            for name in sorted(self.rules)
            if name not in rules
        ]
        kept = {name: versions for name, versions in rules.items() if versions}
        return RuleSet(kept, self.disabled & _rule_keys(kept)), outcomes

    def _retained_versions(
        self, name: str, read: list[PatternProcessor]
    ) -> tuple[PatternProcessor, ...]:
        """Return the versions that stay: those named again, and the one in force."""
        named = {(rule.id, rule.version) for rule in read}
        return tuple(
            rule
            for place, rule in enumerate(self.rules.get(name, ()))
            if place == 0 or (rule.id, rule.version) in named
        )

    def with_disabled(self, name: str, version: int) -> RuleSet:
        """Return the set with a rule off, until a new version comes or it is enabled."""
        return replace(self, disabled=self.disabled | {(name, version)} & _rule_keys(self.rules))

    def with_enabled(self, name: str) -> RuleSet:
        """Return the set with a rule on again."""
        return replace(self, disabled=frozenset(each for each in self.disabled if each[0] != name))

    def without_expired(self, time: int) -> RuleSet:
        """Return the set without versions that a scheduled one has replaced up to a time.

        It is this set where nothing was replaced.
        """
        rules, settled = {}, True
        for name, versions in self.rules.items():
            gone = sum(1 for rule in versions[1:] if (rule.starts is None or rule.starts <= time))
            rules[name] = versions[gone:]
            settled = settled and not gone
        return self if settled else RuleSet(rules, self.disabled & _rule_keys(rules))

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
            rule = read_rule(_upgrade_format_1(each) if version < 2 else each, functions)
            rules[rule.id] = (*rules.get(rule.id, ()), rule)
        return RuleSet(rules, frozenset((name, number) for name, number in document["disabled"]))


def _upgrade_format_1(part: Any) -> Any:
    """Return a part of a rule's document with `gap` under its name of today."""
    if isinstance(part, list):
        return [_upgrade_format_1(each) for each in part]
    if not isinstance(part, dict):
        return part
    names = {"gap": "gapBetween"} if "from" in part else {}
    return {names.get(name, name): _upgrade_format_1(value) for name, value in part.items()}


def _is_rollback(
    before: tuple[PatternProcessor, ...], rule: PatternProcessor, read: list[PatternProcessor]
) -> bool:
    """Tell whether the versions before are higher, and not in the list of wanted rules any more."""
    named = {each.version for each in read if each.id == rule.id}
    higher = [each.version for each in before if each.version > rule.version]
    return bool(higher) and not named & set(higher)


def _rule_keys(rules: Mapping[str, tuple[PatternProcessor, ...]]) -> frozenset[tuple[str, int]]:
    return frozenset((rule.id, rule.version) for each in rules.values() for rule in each)


def _read_all(
    desired: Iterable[Any], context: RuleContext, outcomes: list[RuleUpdate]
) -> list[PatternProcessor]:
    read: list[PatternProcessor] = []
    for place, each in enumerate(desired):
        if isinstance(each, UnreadableRule):
            outcomes.append(_refused_update(each.rule, each.version, "Invalid", each.problem))
            continue
        name, version = _read_name(each, place)
        try:
            rule = (
                each if isinstance(each, PatternProcessor) else read_rule(each, context.functions)
            )
            _check_rule(rule, context)
        except RuleError as error:
            outcomes.append(_refused_update(rule.id, rule.version, error.reason, error.problem))
        except Exception as error:  # whatever is wrong with one rule concerns that one alone
            outcomes.append(_refused_update(name, version, "Invalid", describe_error(error)))
        else:
            read.append(rule)
    return read


def describe_error(error: Exception) -> str:
    """Return why a rule cannot be read, without a full stop."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, StreambrokerError):
        return str(error).rstrip(".")
    return f"it cannot be read, {type(error).__name__}: {error}".rstrip(".")


def _drop_outdated(read: list[PatternProcessor]) -> list[PatternProcessor]:
    """Leave out the versions of an id below the highest one that has no schedule."""
    least: dict[str, int] = {}
    for rule in read:
        if rule.starts is None:
            least[rule.id] = max(rule.version, least.get(rule.id, rule.version))
    return [rule for rule in read if rule.version >= least.get(rule.id, rule.version)]


def _read_name(source: Any, index: int) -> tuple[str, int | None]:
    if isinstance(source, PatternProcessor):
        return source.id, source.version
    fields = source if isinstance(source, Mapping) else {}
    name, version = fields.get("id"), fields.get("version")
    return (
        name if isinstance(name, str) else f"number {index}",
        version if type(version) is int else None,
    )


def _check_rule(rule: PatternProcessor, context: RuleContext) -> None:
    compile_pattern(rule.pattern)
    size = len(json.dumps(write_rule(rule), ensure_ascii=False, allow_nan=False).encode())
    if size > MAX_BYTES:
        problem = f"its document has {size:,} bytes; at most {MAX_BYTES:,} are allowed"
        raise RuleError(rule.id, "Invalid", problem)
    if rule.function is not None and rule.function not in context.outputs:
        known = ", ".join(sorted(context.outputs)) or "none"
        raise RuleError(
            rule.id,
            "FunctionUnknown",
            f"the job has not registered a function `{rule.function}`; it has {known}",
        )
    if context.fields is not None:
        _check_fields(rule, context.fields)
    if context.schema is not None:
        _check_types(rule, context.schema)
    if rule.key and context.selectors is not None and rule.key not in context.selectors:
        copied = ", ".join(sorted(f"({', '.join(each)})" for each in context.selectors))
        own = f"({', '.join(rule.key)})"
        fixed = (
            f"the query has the key {copied} for good, and the rule has {own}; begin a new query"
            " without `key`, whose rules may have any keys"
        )
        later = (
            f"rows are not copied for the key {own}, but for {copied}; start the query again from"
            " its checkpoint, which adds the key"
        )
        problem = fixed if context.fixed_key else later
        raise RuleError(rule.id, "KeyNotCopied", problem)


def _check_fields(rule: PatternProcessor, fields: frozenset[str]) -> None:
    _check_key(rule, fields)
    for stage in rule.pattern.stages():
        for given in (stage.condition, stage.until):
            for name in sorted((list_fields(given) or frozenset()) - fields):
                raise RuleError(
                    rule.id,
                    "FieldUnknown",
                    f"stage `{stage.name}` asks for `{name}`, and the stream has no such column",
                )


def _check_types(rule: PatternProcessor, schema: Schema) -> None:
    for stage in rule.pattern.stages():
        for given in (stage.condition, stage.until):
            try:
                check_condition(given, schema)
            except ExpressionError as error:
                raise RuleError(
                    rule.id, "Invalid", f"stage `{stage.name}`: {error}".rstrip(".")
                ) from error


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


def _add_version(
    before: tuple[PatternProcessor, ...],
    rule: PatternProcessor,
    current: tuple[PatternProcessor, ...],
) -> tuple[tuple[PatternProcessor, ...], RuleChange]:
    for each in current:
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
    time = rule.starts
    if before and time is not None:
        earlier = tuple(each for each in before if each.starts is None or each.starts < time)
        return (*earlier, rule), "scheduled"
    return (rule,), "replaced" if before else "added" if time is None else "scheduled"


def _refused_update(name: str, version: int | None, reason: str, message: str) -> RuleUpdate:
    return RuleUpdate(rule=name, version=version, change="refused", reason=reason, message=message)
