"""Set of the rules of a query, and its updates: which rules are accepted, replaced or refused.

- A set is immutable; an update returns a new set.
- An update has the complete list of wanted rules, so repeating it changes nothing.
- An error in one rule affects only that rule.
"""

from __future__ import annotations

import hashlib
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
"""Format version. Since 2, `gap` also limits the first event of a stage, unlike `gapBetween`."""
MAX_BYTES = 262_144
"""Maximum size of a rule's document as JSON."""
RuleChange: TypeAlias = Literal["added", "kept", "replaced", "scheduled", "removed", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleUpdate:
    """Result of an update for one rule.

    Attributes:
        rule: id of the rule, or its position in the list without one.
        reason: why it was refused: Invalid, VersionTooLow, ContentDiffers, KeyUnknown, KeyInvalid,
            KeyNotCopied, FieldUnknown, FunctionUnknown; empty if it was not.
        message: explanation of the refusal, and which version of the id stays.
        warnings: constructs that are allowed but probably not intended.
    """

    rule: str
    version: int | None
    change: RuleChange
    reason: str = ""
    message: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableRule:
    """A rule that its source cannot read, with its id or location; an update refuses it alone."""

    rule: str
    problem: str
    version: int | None = None


class UnversionedRule(dict[str, Any]):
    """The document of a rule whose source has no versions.

    Its version is a hash of its content, below 2**48. So equal content has an equal version, also
    after a restart, and other content replaces it whether its version is higher or lower.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        """Add the version to a document; a version that it has does not count."""
        content = {**document, "version": 0}
        text = json.dumps(content, sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode()).digest()
        super().__init__(content, version=int.from_bytes(digest[:6], "big"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleContext:
    """What the rules of a job may refer to.

    Attributes:
        outputs: names of functions that create rows of matches.
        fields: columns of the stream; None if unknown.
        schema: columns with their types; None if unknown.
        selectors: keys, other than the stream's, for which rows are copied; None for any key.
        fixed_key: no key can be added to the query.
    """

    functions: Functions = field(default_factory=dict)
    outputs: frozenset[str] = frozenset()
    fields: frozenset[str] | None = None
    schema: Schema | None = None
    selectors: frozenset[Selector] | None = None
    fixed_key: bool = False


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Rules by id, with the versions of each id in order; all but the first are scheduled.

    A version is in force until the start of the next one. `disabled` has the id and version of
    rules that failed and are off.
    """

    rules: Mapping[str, tuple[PatternProcessor, ...]] = field(default_factory=dict)
    disabled: frozenset[tuple[str, int]] = frozenset()

    def __iter__(self) -> Any:
        """Yield all enabled rules, ordered by id and version."""
        for name in sorted(self.rules):
            for rule in self.rules[name]:
                if (rule.id, rule.version) not in self.disabled:
                    yield rule

    def selectors(self, stream: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Return the distinct keys of the enabled rules, for copies of rows.

        A rule without a key uses that of the stream. Without rules, only that key is returned.
        """
        return sorted({rule.key or stream for rule in self} or {stream})

    def rule(self, name: str, version: int) -> PatternProcessor:
        """Return the rule with an id and a version, enabled or not.

        Raises:
            KeyError: there is none.
        """
        for rule in self.rules.get(name, ()):
            if rule.version == version:
                return rule
        raise KeyError((name, version))

    def until(self, rule: PatternProcessor) -> int | None:
        """Return the time at which a later version replaces the rule; None for never."""
        versions = self.rules[rule.id]
        index = versions.index(rule)
        return versions[index + 1].starts if index + 1 < len(versions) else None

    def apply_update(
        self,
        desired: Iterable[Any],
        context: RuleContext | None = None,
        listed: Collection[tuple[str, int]] = (),
    ) -> tuple[RuleSet, list[RuleUpdate]]:
        """Return the set after an update, and the result for each rule.

        Versions of an id below its highest version without a schedule are ignored.

        Args:
            desired: all wanted rules; `UnreadableRule` for those that their source could not read,
                `UnversionedRule` for those whose source has no versions.
            context: what the rules may refer to.
            listed: id and version of each rule of the last update. Such a rule may replace a higher
                version that is no longer listed (rollback).
        """
        outcomes: list[RuleUpdate] = []
        desired = list(desired)
        unordered = {one.get("id") for one in desired if isinstance(one, UnversionedRule)}
        accepted = _drop_outdated(_read_all(desired, context or RuleContext(), outcomes))
        rules: dict[str, tuple[PatternProcessor, ...]] = {}
        refused = {outcome.rule for outcome in outcomes}
        for rule in sorted(accepted, key=lambda each: (each.id, each.version)):
            before = rules.get(rule.id, self._retained_versions(rule.id, accepted))
            ordered = rule.id not in unordered
            rollback = ordered and (rule.id, rule.version) in listed and rule.id not in rules
            rollback = rollback and _is_rollback(before, rule, accepted)
            change: RuleChange = "replaced"
            try:
                if rollback:
                    rules[rule.id] = (rule,)
                else:
                    current = self.rules.get(rule.id, ())
                    rules[rule.id], change = _add_version(before, rule, current, ordered=ordered)
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
        remaining = {name: versions for name, versions in rules.items() if versions}
        updated = RuleSet(remaining, self.disabled & _rule_keys(remaining))
        return updated, [self._with_kept_version(each, updated) for each in outcomes]

    def _with_kept_version(self, outcome: RuleUpdate, updated: RuleSet) -> RuleUpdate:
        """Return an outcome; a refusal names the version that was in the set and still is."""
        before, after = self.rules.get(outcome.rule), updated.rules.get(outcome.rule)
        if outcome.change != "refused" or not before or not after or before[0] != after[0]:
            return outcome
        version = after[0].version
        state = "off" if (outcome.rule, version) in updated.disabled else "in force as it was"
        return replace(outcome, message=f"{outcome.message}; version {version} stays {state}")

    def _retained_versions(
        self, name: str, read: list[PatternProcessor]
    ) -> tuple[PatternProcessor, ...]:
        """Return the versions to keep: those listed again, and the one in force."""
        listed = {(rule.id, rule.version) for rule in read}
        return tuple(
            rule
            for index, rule in enumerate(self.rules.get(name, ()))
            if index == 0 or (rule.id, rule.version) in listed
        )

    def with_disabled(self, name: str, version: int) -> RuleSet:
        """Return the set with a rule disabled, until it has a new version or is enabled."""
        return replace(self, disabled=self.disabled | {(name, version)} & _rule_keys(self.rules))

    def with_enabled(self, name: str) -> RuleSet:
        """Return the set with a rule enabled."""
        return replace(self, disabled=frozenset(each for each in self.disabled if each[0] != name))

    def without_expired(self, time: int) -> RuleSet:
        """Return the set without versions replaced up to a time, or this set if there are none."""
        rules, unchanged = {}, True
        for name, versions in self.rules.items():
            expired = sum(
                1 for rule in versions[1:] if (rule.starts is None or rule.starts <= time)
            )
            rules[name] = versions[expired:]
            unchanged = unchanged and not expired
        return self if unchanged else RuleSet(rules, self.disabled & _rule_keys(rules))

    def document(self) -> dict[str, Any]:
        """Return the set as a document; equal sets have equal documents."""
        return {
            "format": FORMAT,
            "rules": [write_rule(each) for name in sorted(self.rules) for each in self.rules[name]],
            "disabled": sorted([name, version] for name, version in self.disabled),
        }

    @staticmethod
    def read(document: Mapping[str, Any], functions: Functions | None = None) -> RuleSet:
        """Return the set of a document.

        Raises:
            FormatTooNewError: a newer release wrote it.
            ManifestError: it is not a set of rules; the other errors of `read_rule` also apply.
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
    """Rename `gap` of format 1 to `gapBetween` in a part of a rule's document."""
    if isinstance(part, list):
        return [_upgrade_format_1(each) for each in part]
    if not isinstance(part, dict):
        return part
    names = {"gap": "gapBetween"} if "from" in part else {}
    return {names.get(name, name): _upgrade_format_1(value) for name, value in part.items()}


def _is_rollback(
    before: tuple[PatternProcessor, ...], rule: PatternProcessor, read: list[PatternProcessor]
) -> bool:
    """Return whether there are higher versions before, none of which is listed any more."""
    listed = {each.version for each in read if each.id == rule.id}
    higher = [each.version for each in before if each.version > rule.version]
    return bool(higher) and not listed & set(higher)


def _rule_keys(rules: Mapping[str, tuple[PatternProcessor, ...]]) -> frozenset[tuple[str, int]]:
    return frozenset((rule.id, rule.version) for each in rules.values() for rule in each)


def _read_all(
    desired: Iterable[Any], context: RuleContext, outcomes: list[RuleUpdate]
) -> list[PatternProcessor]:
    read: list[PatternProcessor] = []
    for index, each in enumerate(desired):
        if isinstance(each, UnreadableRule):
            outcomes.append(_refused_update(each.rule, each.version, "Invalid", each.problem))
            continue
        name, version = _read_name(each, index)
        try:
            rule = (
                each if isinstance(each, PatternProcessor) else read_rule(each, context.functions)
            )
            _check_rule(rule, context)
        except RuleError as error:
            outcomes.append(_refused_update(rule.id, rule.version, error.reason, error.problem))
        except Exception as error:  # an error in one rule affects only that rule
            outcomes.append(_refused_update(name, version, "Invalid", describe_error(error)))
        else:
            read.append(rule)
    return read


def describe_error(error: Exception) -> str:
    """Return why a rule cannot be read, without a period at the end."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, StreambrokerError):
        return str(error).rstrip(".")
    return f"it cannot be read, {type(error).__name__}: {error}".rstrip(".")


def _drop_outdated(read: list[PatternProcessor]) -> list[PatternProcessor]:
    """Drop versions below the highest version of the same id that has no schedule."""
    lowest: dict[str, int] = {}
    for rule in read:
        if rule.starts is None:
            lowest[rule.id] = max(rule.version, lowest.get(rule.id, rule.version))
    return [rule for rule in read if rule.version >= lowest.get(rule.id, rule.version)]


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
        key = f"({', '.join(rule.key)})"
        if_fixed = (
            f"the query has the fixed key {copied}, and the rule has {key}; start a new query"
            " without `key`, whose rules may have any keys"
        )
        if_added = (
            f"rows are not copied for the key {key}, but for {copied}; start the query again from"
            " its checkpoint, which adds the key"
        )
        problem = if_fixed if context.fixed_key else if_added
        raise RuleError(rule.id, "KeyNotCopied", problem)


def _check_fields(rule: PatternProcessor, fields: frozenset[str]) -> None:
    _check_key(rule, fields)
    for stage in rule.pattern.stages():
        for condition in (stage.condition, stage.until):
            for name in sorted((list_fields(condition) or frozenset()) - fields):
                raise RuleError(
                    rule.id,
                    "FieldUnknown",
                    f"stage `{stage.name}` refers to `{name}`, and the stream has no such column",
                )


def _check_types(rule: PatternProcessor, schema: Schema) -> None:
    for stage in rule.pattern.stages():
        for condition in (stage.condition, stage.until):
            try:
                check_condition(condition, schema)
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
                f"the stream has no column `{part}`, and it is not an expression: {error}".rstrip(
                    "."
                ),
            ) from error
        for name in sorted(names - fields):
            raise RuleError(rule.id, "KeyUnknown", f"the stream has no column `{name}`")


def _add_version(
    before: tuple[PatternProcessor, ...],
    rule: PatternProcessor,
    current: tuple[PatternProcessor, ...],
    *,
    ordered: bool,
) -> tuple[tuple[PatternProcessor, ...], RuleChange]:
    for each in current:
        if each.version == rule.version:
            if each != rule:
                raise RuleError(
                    rule.id,
                    "ContentDiffers",
                    f"version {rule.version} already exists with other content; use a higher"
                    " version",
                )
            return before, "kept"
    if ordered and before and rule.version < before[-1].version:
        raise RuleError(
            rule.id,
            "VersionTooLow",
            f"version {rule.version} is lower than {before[-1].version}",
        )
    if before and rule.version == before[-1].version:
        raise RuleError(rule.id, "ContentDiffers", f"version {rule.version} is listed twice")
    time = rule.starts
    if before and time is not None:
        earlier = tuple(each for each in before if each.starts is None or each.starts < time)
        return (*earlier, rule), "scheduled"
    return (rule,), "replaced" if before else "added" if time is None else "scheduled"


def _refused_update(name: str, version: int | None, reason: str, message: str) -> RuleUpdate:
    return RuleUpdate(rule=name, version=version, change="refused", reason=reason, message=message)
