"""Rules of a job, as the views of its PEs carry them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from streambroker_core.wire.encoding.canonical import JsonValue, digest
from streambroker_core.wire.encoding.fields import Fields

_LARGEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRule:
    """One rule of a job.

    Attributes:
        document: the rule.
        enable: see `Rule`.
        problem: why it is invalid, or empty. The job keeps the running rule of its id then.
    """

    id: str
    document: Mapping[str, Any]
    enable: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRules:
    """All rules of a job, sorted by id; ``digest`` identifies their content."""

    rules: tuple[ViewRule, ...] = ()
    digest: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.digest:
            object.__setattr__(self, "digest", digest(write_view_rules(self)))


def make_view_rules(rules: Iterable[ViewRule]) -> ViewRules:
    """Return all rules of a job."""
    return ViewRules(rules=tuple(sorted(rules, key=lambda rule: rule.id)))


def write_view_rules(view_rules: ViewRules) -> list[dict[str, JsonValue]]:
    """Return the rules as JSON-like data."""
    return [
        {
            "id": rule.id,
            "document": dict(rule.document),
            "enable": rule.enable,
            "problem": rule.problem,
        }
        for rule in view_rules.rules
    ]


def read_view_rules(fields: Fields, key: str, max_items: int) -> ViewRules | None:
    """Read the rules of a job; None if absent. Raise `ManifestError` on a wrong field."""
    if not fields.has(key):
        return None
    rules = []
    for entry in fields.entries(key, max_items=max_items):
        problem = entry.get("problem")
        rules.append(
            ViewRule(
                id=entry.text("id"),
                document=dict(entry.child("document").raw()),
                enable=entry.integer("enable", 0, high=_LARGEST),
                problem=problem if isinstance(problem, str) else "",
            )
        )
    return make_view_rules(rules)
