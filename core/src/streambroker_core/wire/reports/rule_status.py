"""Status of a job's rules, as its agent reports it to the broker.

A job may run the same rules in several queries. Each reports separately; `merge_statuses` returns
the status that applies to all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from streambroker_core.wire.encoding.canonical import JsonObject
from streambroker_core.wire.encoding.fields import Fields

State: TypeAlias = Literal["active", "disabled", "absent"]

MAX_RULES = 10_000
MAX_MESSAGE = 1000
"""Characters of a message."""
_LARGEST = (1 << 63) - 1
_STATES: Mapping[str, State] = {"active": "active", "disabled": "disabled", "absent": "absent"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleStatus:
    """Status of one rule.

    Attributes:
        version: the version that the job has; None if it has none of that id.
        state: state of that version: ``disabled`` after an error, ``absent`` if there is none.
        scheduled: the version that replaces it at a set time, or None.
        refused: the version that the job has refused; None for none, or one without a number.
        reason: reason word of the refusal, or empty.
        message: sentence that explains it.
        since: window from which on it is applied; None while no bucket has applied it.
        buckets: number of buckets that have applied it.
        of: number of all buckets; 0 if unknown.
        errors: how often it failed.
    """

    version: int | None = None
    state: State = "absent"
    scheduled: int | None = None
    refused: int | None = None
    reason: str = ""
    message: str = ""
    since: int | None = None
    buckets: int = 0
    of: int = 0
    matches: int = 0
    errors: int = 0


RuleStatusMap: TypeAlias = "Mapping[str, RuleStatus]"
"""Statuses by rule id."""


def merge_statuses(several: Iterable[RuleStatus]) -> RuleStatus | None:
    """Return the status of a rule over several queries; None without a report.

    The rule is active if it is active in all, since the latest window. Counts are added up.
    """
    statuses = list(several)
    if len(statuses) < 2:
        return statuses[0] if statuses else None
    worst = max(statuses, key=lambda one: list(_STATES).index(one.state))
    refusing = next((status for status in statuses if status.reason), worst)
    starts = [status.since for status in statuses if status.since is not None]
    return replace(
        worst,
        refused=refusing.refused,
        reason=refusing.reason,
        message=refusing.message,
        since=max(starts) if len(starts) == len(statuses) else None,
        buckets=sum(status.buckets for status in statuses),
        of=sum(status.of for status in statuses),
        matches=sum(status.matches for status in statuses),
        errors=sum(status.errors for status in statuses),
    )


def write_statuses(rules: RuleStatusMap) -> JsonObject:
    """Return statuses as JSON-like data, without default values."""
    return {name: _write_status(rule) for name, rule in sorted(rules.items())}


def _write_status(rule: RuleStatus) -> JsonObject:
    default = RuleStatus()
    values = {field: getattr(rule, field) for field in RuleStatus.__slots__}
    return {field: value for field, value in values.items() if value != getattr(default, field)}


def read_statuses(fields: Fields) -> RuleStatusMap:
    """Read an agent's report; ignore unknown members, which a newer agent may send.

    Raises:
        ManifestError: a field is wrong; the error names it.
    """
    names = fields.names()
    if len(names) > MAX_RULES:
        raise fields.error_at("", f"has {len(names)} rules, the limit is {MAX_RULES}")
    return {name: _read_status(fields.child(name)) for name in names}


def _read_status(fields: Fields) -> RuleStatus:
    return RuleStatus(
        version=fields.optional_integer("version", high=_LARGEST),
        state=fields.word("state", _STATES, "absent"),
        scheduled=fields.optional_integer("scheduled", high=_LARGEST),
        refused=fields.optional_integer("refused", high=_LARGEST),
        reason=_text(fields, "reason"),
        message=_text(fields, "message")[:MAX_MESSAGE],
        since=fields.optional_integer("since", high=_LARGEST),
        buckets=fields.integer("buckets", 0, high=_LARGEST),
        of=fields.integer("of", 0, high=_LARGEST),
        matches=fields.integer("matches", 0, high=_LARGEST),
        errors=fields.integer("errors", 0, high=_LARGEST),
    )


def _text(fields: Fields, key: str) -> str:
    value = fields.get(key)
    if value in (None, ""):
        return ""
    return fields.text(key, longest=64 * 1024)
