"""Rules and patterns as documents: plain mappings, as in YAML and JSON.

Documents and Python rules are equally expressive: reading a written document returns an equal rule.
`document_schema` has the JSON Schema; this module checks what a schema cannot express.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from streambroker_core.cep.pattern.conditions import (
    All,
    Condition,
    ConditionFunction,
    FunctionCondition,
    Some,
    TextCondition,
    to_condition,
)
from streambroker_core.cep.pattern.durations import format_instant, format_micros, to_instant
from streambroker_core.cep.pattern.errors import ConditionError, PatternArgumentError
from streambroker_core.cep.pattern.pattern import (
    NEGATED,
    Element,
    Group,
    Pattern,
    Quantifier,
    Skip,
)
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.pattern.run_limits import RunLimits
from streambroker_core.cep.rules.document_schema import (
    PATTERN_FIELDS,
    RULE_FIELDS,
    STAGE_FIELDS,
    TIMES_FIELDS,
)
from streambroker_core.errors import ManifestError
from streambroker_core.wire.encoding.canonical import JsonObject, JsonValue, without_none

Functions: TypeAlias = "Mapping[str, ConditionFunction]"
"""Python functions that conditions may name, as registered in the job."""

_JOINS: dict[str, Callable[[Pattern, Any], Pattern]] = {
    "next": Pattern.next,
    "followed_by": Pattern.followed_by,
    "followed_by_any": Pattern.followed_by_any,
    "not_next": Pattern.not_next,
    "not_followed_by": Pattern.not_followed_by,
}


def read_rule(document: Any, functions: Functions | None = None) -> PatternProcessor:
    """Return the rule of a document.

    Raises:
        ManifestError: a field is missing, unknown or of a wrong type; the error has its path.
        PatternError: the pattern contradicts itself.
        ConditionError: a condition cannot be read.
    """
    fields = _read_fields(document, "", RULE_FIELDS, ("id", "version", "pattern"))
    key = fields.get("key", ())
    names = [key] if isinstance(key, str) else _require_list(key, "key")
    return PatternProcessor(
        id=_require_type(fields["id"], str, "id"),
        version=_require_type(fields["version"], int, "version"),
        pattern=read_pattern(fields["pattern"], functions, "pattern"),
        key=tuple(_require_type(each, str, f"key[{index}]") for index, each in enumerate(names)),
        scheduled=_read_time(fields.get("scheduled")),
        function=_require_type(fields["function"], str, "function")
        if fields.get("function")
        else None,
        on_error=fields.get("onError", "fail"),
        keep_matches=_require_type(fields.get("keepMatches", False), bool, "keepMatches"),
        limits=_read_limits(fields.get("limits", {})),
        numbered=_require_type(fields.get("numbered", False), bool, "numbered"),
        labels=dict(_require_type(fields.get("labels", {}), dict, "labels")),
    )


def _read_limits(document: Any) -> RunLimits:
    fields = _read_fields(document, "limits", ("runs", "policy"))
    limits = RunLimits(policy=fields.get("policy", RunLimits().policy))
    if "runs" not in fields:
        return limits
    runs = fields["runs"]
    return replace(limits, runs=None if runs is None else _require_type(runs, int, "limits.runs"))


def write_rule(rule: PatternProcessor) -> JsonObject:
    """Return the document of a rule; reading it returns an equal rule."""
    limits = rule.limits
    return {
        "id": rule.id,
        "version": rule.version,
        **without_none(
            key=list(rule.key) or None,
            scheduled=None if rule.starts is None else format_instant(rule.starts),
            function=rule.function,
            onError=None if rule.on_error == "fail" else rule.on_error,
            keepMatches=rule.keep_matches or None,
            limits=None
            if limits == RunLimits()
            else {"runs": limits.runs, "policy": limits.policy},
            numbered=rule.numbered or None,
            labels=dict(rule.labels) or None,
        ),
        "pattern": write_pattern(rule.pattern),
    }


def read_pattern(
    document: Any, functions: Functions | None = None, path: str = "pattern"
) -> Pattern:
    """Return the pattern of a document; raises the errors of `read_rule`."""
    fields = _read_fields(document, path, PATTERN_FIELDS, ("stages",))
    skip_fields = _read_fields(
        fields.get("skip", {}), f"{path}.skip", ("strategy", "stage", "throwOnMiss")
    )
    skip = Skip(
        strategy=skip_fields.get("strategy", "no_skip"),
        stage=skip_fields.get("stage"),
        throw_on_miss=_require_type(
            skip_fields.get("throwOnMiss", False), bool, f"{path}.skip.throwOnMiss"
        ),
    )
    pattern = _read_stages(
        fields["stages"], f"{path}.stages", {} if functions is None else functions, skip
    )
    if fields.get("within") is not None:
        return pattern.within(fields["within"])
    return pattern


def _read_stages(
    document: Any, path: str, functions: Functions, skip: Skip | None = None
) -> Pattern:
    pattern: Pattern | None = None
    for index, each in enumerate(_require_list(document, path)):
        stage_path = f"{path}[{index}]"
        fields = _read_fields(each, stage_path, STAGE_FIELDS)
        if ("name" in fields) == ("group" in fields):
            raise ManifestError(path=stage_path, reason="needs either `name` or `group`")
        if "or" in fields and "group" not in fields:
            raise ManifestError(path=f"{stage_path}.or", reason="needs a group before it")
        inner: str | Pattern = (
            _require_type(fields["name"], str, f"{stage_path}.name")
            if "name" in fields
            else _read_group(fields, stage_path, functions)
        )
        join = fields.get("join", "begin" if pattern is None else None)
        if pattern is None:
            if join != "begin":
                raise ManifestError(
                    path=f"{stage_path}.join", reason="is for stages behind the first"
                )
            pattern = Pattern.begin(inner, skip=skip)
        else:
            pattern = _join(pattern, join, inner, stage_path)
        pattern = _read_stage(pattern, fields, stage_path, functions)
    if pattern is None:
        raise ManifestError(path=path, reason="needs at least one stage")
    return pattern


def _read_group(fields: Mapping[str, Any], path: str, functions: Functions) -> Pattern:
    first = _read_stages(fields["group"], f"{path}.group", functions)
    if "or" not in fields:
        return first
    others = [
        _read_stages(each, f"{path}.or[{index}]", functions)
        for index, each in enumerate(_require_list(fields["or"], f"{path}.or"))
    ]
    if not others:
        raise ManifestError(path=f"{path}.or", reason="needs at least one alternative")
    return Pattern.either(first, *others)


def _join(pattern: Pattern, join: Any, inner: str | Pattern, path: str) -> Pattern:
    if join not in _JOINS:
        raise ManifestError(path=f"{path}.join", reason=f"has to be one of {', '.join(_JOINS)}")
    return _JOINS[join](pattern, inner)


def _read_stage(
    pattern: Pattern, stage: Mapping[str, Any], path: str, functions: Functions
) -> Pattern:
    if stage.get("where") is not None:
        pattern = pattern.where(_read_condition(stage["where"], f"{path}.where", functions))
    if stage.get("times") is not None:
        pattern = _read_times(pattern, stage["times"], f"{path}.times")
    if _require_type(stage.get("optional", False), bool, f"{path}.optional"):
        pattern = pattern.optional()
    if _require_type(stage.get("greedy", False), bool, f"{path}.greedy"):
        pattern = pattern.greedy()
    if stage.get("until") is not None:
        pattern = pattern.until(_read_condition(stage["until"], f"{path}.until", functions))
    if stage.get("within") is not None:
        pattern = pattern.within(stage["within"])
    if stage.get("withinPrevious") is not None:
        pattern = pattern.within(stage["withinPrevious"], "previous_and_current")
    return pattern


def _read_times(pattern: Pattern, document: Any, path: str) -> Pattern:
    if type(document) is int:
        return pattern.times(document)
    fields = _read_fields(document, path, TIMES_FIELDS, ("from",))
    low, gap, between = fields["from"], fields.get("gap", 0), fields.get("gapBetween", 0)
    if fields.get("to") is None:
        pattern = pattern.times_or_more(low, gap=gap, gap_between=between)
    else:
        pattern = pattern.times(low, fields["to"], gap=gap, gap_between=between)
    inner = fields.get("inner", "relaxed")
    if inner not in ("relaxed", "strict", "combinations"):
        raise ManifestError(
            path=f"{path}.inner", reason="has to be one of relaxed, strict, combinations"
        )
    if inner == "strict":
        return pattern.consecutive()
    return pattern.allow_combinations() if inner == "combinations" else pattern


def _read_condition(document: Any, path: str, functions: Functions) -> Condition:
    if isinstance(document, str):
        try:
            return to_condition(document)
        except ConditionError as error:
            raise error.at(path) from None
    fields = _read_fields(document, path, ("function", "all", "any"))
    if len(fields) != 1:
        raise ManifestError(path=path, reason="needs one of `function`, `all` and `any`")
    ((kind, value),) = fields.items()
    if kind == "function":
        if value not in functions:
            known = ", ".join(sorted(functions)) or "none"
            raise ManifestError(
                path=f"{path}.function",
                reason=f"is `{value}`, which the job has not registered; it has {known}",
            )
        return FunctionCondition(value, functions[value])
    items = tuple(
        _read_condition(each, f"{path}.{kind}[{index}]", functions)
        for index, each in enumerate(_require_list(value, f"{path}.{kind}"))
    )
    return All(items) if kind == "all" else Some(items)


def write_pattern(pattern: Pattern) -> JsonObject:
    """Return the document of a pattern; reading it returns an equal pattern."""
    skip = pattern.skip
    written = without_none(
        strategy=skip.strategy, stage=skip.stage, throwOnMiss=skip.throw_on_miss or None
    )
    return {
        **without_none(skip=None if skip == Skip() else written),
        "stages": [_write_element(each) for each in pattern.elements],
    }


def _write_element(element: Element) -> JsonObject:
    name = condition = None
    branches: list[JsonValue] = []
    if isinstance(element, Group):
        branches += [[_write_element(each) for each in branch] for branch in element.branches]
    else:
        name, condition = element.name, element.condition
    repeats = element.contiguity not in NEGATED
    return without_none(
        name=name,
        join=None if element.contiguity == "begin" else element.contiguity,
        group=branches[0] if branches else None,
        **{"or": branches[1:] or None},
        where=None if condition is None else write_condition(condition),
        **(_write_quantifier(element.quantifier) if repeats else {}),
        until=None if element.until is None else write_condition(element.until),
        within=_write_micros(element.within),
        withinPrevious=_write_micros(element.within_previous),
    )


def _write_quantifier(quantifier: Quantifier) -> JsonObject:
    times = without_none(
        to=quantifier.high,
        inner=None if quantifier.inner == "relaxed" else quantifier.inner,
        gap=_write_micros(quantifier.gap or None),
        gapBetween=_write_micros(quantifier.gap_between or None),
    )
    return without_none(
        times=None if quantifier.kind == "one" else {"from": quantifier.low, **times},
        optional=quantifier.optional or None,
        greedy=quantifier.greedy or None,
    )


def _write_micros(micros: int | None) -> str | None:
    return None if micros is None else format_micros(micros)


def write_condition(condition: Condition) -> Any:
    """Return a condition as a document: a text or a mapping."""
    match condition:
        case TextCondition():
            return str(condition)
        case FunctionCondition():
            return {"function": condition.name}
        case All():
            return {"all": [write_condition(item) for item in condition.items]}
        case Some():
            return {"any": [write_condition(item) for item in condition.items]}


def _read_fields(
    document: Any, path: str, allowed: tuple[str, ...], required: tuple[str, ...] = ()
) -> dict[str, Any]:
    if not isinstance(document, Mapping):
        raise ManifestError(path=path, reason=f"has to be a mapping, not {document!r}")
    for name in document:
        if name not in allowed:
            raise ManifestError(
                path=f"{path}.{name}".lstrip("."),
                reason=f"is not known; the fields here are {', '.join(allowed)}",
            )
    for name in required:
        if document.get(name) is None:
            raise ManifestError(path=f"{path}.{name}".lstrip("."), reason="is missing")
    return dict(document)


def _require_list(document: Any, path: str) -> list[Any]:
    if isinstance(document, str) or not isinstance(document, list | tuple):
        raise ManifestError(path=path, reason=f"has to be a list, not {document!r}")
    return list(document)


def _require_type(value: Any, kind: type, path: str) -> Any:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        words = {str: "a text", int: "a whole number", bool: "true or false", dict: "a mapping"}
        raise ManifestError(path=path, reason=f"has to be {words[kind]}, not {value!r}")
    return value


def _read_time(value: Any) -> int | None:
    """Return a timestamp, which must have a zone, as microseconds since 1970."""
    try:
        return to_instant(value)
    except PatternArgumentError:
        raise ManifestError(
            path="scheduled",
            reason=f"has to be a time with its zone, as 2026-01-31T12:00:00Z, not {value!r}",
        ) from None
