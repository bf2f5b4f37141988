"""What an agent tells the broker of the rules of its job.

A job may run the same rules in several queries; each tells for itself, and what is shown is what
holds for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from streambroker_core.wire.encoding.fields import Fields

State: TypeAlias = Literal["active", "disabled", "absent"]

MAX_RULES = 10_000
MAX_MESSAGE = 1000
"""Characters of a message."""
_LARGEST = (1 << 63) - 1
_STATES: Mapping[str, State] = {"active": "active", "disabled": "disabled", "absent": "absent"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleStatus:
    """What has become of one rule.

    Attributes:
        version: the one that the job has; None if it has none of that id.
        state: of that version: ``disabled`` after an error, ``absent`` if there is none.
        scheduled: the version that replaces it at its time; None for none.
        refused: the version that the job has refused; None for none, or one without a number.
        reason: why, as a word; empty if nothing is refused.
        message: a sentence to it.
        since: the window from which on it holds; None while no bucket has taken it in.
        buckets: how many buckets have taken it in.
        of: how many buckets there are; 0 if that is not known.
        matches: what it has found.
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
"""By the rules' ids."""


def merge_statuses(several: Iterable[RuleStatus]) -> RuleStatus | None:
    """Return what holds for all who tell of a rule; None if nobody does.

    It is active where all have it, since the last one has; counts are added up.
    """
    found = list(several)
    if len(found) < 2:
        return found[0] if found else None
    worst = max(found, key=lambda one: list(_STATES).index(one.state))
    refusing = next((one for one in found if one.reason), worst)
    begun = [one.since for one in found if one.since is not None]
    return RuleStatus(
        version=worst.version,
        state=worst.state,
        scheduled=worst.scheduled,
        refused=refusing.refused,
        reason=refusing.reason,
        message=refusing.message,
        since=max(begun) if len(begun) == len(found) else None,
        buckets=sum(one.buckets for one in found),
        of=sum(one.of for one in found),
        matches=sum(one.matches for one in found),
        errors=sum(one.errors for one in found),
    )


def write_statuses(rules: RuleStatusMap) -> dict[str, Any]:
    """Return what is told as JSON-like data, without what says nothing."""
    return {name: _write_status(rule) for name, rule in sorted(rules.items())}


def _write_status(rule: RuleStatus) -> dict[str, Any]:
    usual = RuleStatus()
    found = {field: getattr(rule, field) for field in RuleStatus.__slots__}
    return {field: value for field, value in found.items() if value != getattr(usual, field)}


def read_statuses(fields: Fields) -> RuleStatusMap:
    """Read what an agent tells; members that are not known are of a newer one and passed over.

    Raises:
        ManifestError: a field is wrong; the error names it.
    """
    names = fields.names()
    if len(names) > MAX_RULES:
        raise fields.error_at("", f"has {len(names)} rules, the limit is {MAX_RULES}")
    return {name: _read_status(fields.child(name)) for name in names}


def _read_status(fields: Fields) -> RuleStatus:
    return RuleStatus(
        version=_number(fields, "version"),
        state=fields.word("state", _STATES, "absent"),
        scheduled=_number(fields, "scheduled"),
        refused=_number(fields, "refused"),
        reason=_text(fields, "reason"),
        message=_text(fields, "message")[:MAX_MESSAGE],
        since=_number(fields, "since"),
        buckets=fields.integer("buckets", 0, high=_LARGEST),
        of=fields.integer("of", 0, high=_LARGEST),
        matches=fields.integer("matches", 0, high=_LARGEST),
        errors=fields.integer("errors", 0, high=_LARGEST),
    )


def _number(fields: Fields, key: str) -> int | None:
    return fields.integer(key, high=_LARGEST) if fields.has(key) else None


def _text(fields: Fields, key: str) -> str:
    value = fields.get(key)
    if value in (None, ""):
        return ""
    return fields.text(key, longest=64 * 1024)
