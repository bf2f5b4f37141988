"""Rules: patterns with an id, a version, and settings for their matches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias

from streambroker_core.cep.pattern.durations import to_instant
from streambroker_core.cep.pattern.errors import PatternArgumentError
from streambroker_core.cep.pattern.pattern import Pattern
from streambroker_core.cep.pattern.run_limits import RunLimits

OnError: TypeAlias = Literal["fail", "disable"]
POLICIES = ("drop_oldest", "refuse", "fail")


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternProcessor:
    """A rule.

    Attributes:
        id: unique in a set, except among its versions.
        version: a higher version replaces a lower one.
        pattern: the pattern.
        key: what the events of a match have in common: columns, or expressions over them such as
            ``user % 10``; empty for the key of the stream. A single text is one part.
        scheduled: start time, stored as microseconds since 1970. From then on the rule sees events,
            and its previous version sees none. None, or the least 64-bit integer, for always.
        function: name of the function, registered in the job, that creates rows of a match; None
            for the match as a row.
        on_error: ``fail`` the query, or ``disable`` the rule, when a function raises or a skip has
            no target.
        keep_matches: a new version that differs only in conditions takes over partial matches.
        limits: limits for one key.
        numbered: number the matches of each key, from 1. Each key then keeps a counter for good.
        labels: free-form information, which is not evaluated.
    """

    id: str
    version: int
    pattern: Pattern
    key: tuple[str, ...] = ()
    scheduled: int | datetime | None = None
    function: str | None = None
    on_error: OnError = "fail"
    keep_matches: bool = False
    limits: RunLimits = field(default_factory=RunLimits)
    numbered: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id.strip() or len(self.id) > 253:
            raise PatternArgumentError(
                f"{self.id!r} cannot be a rule's id", remedy="give a text of 1 to 253 characters"
            )
        if type(self.version) is not int or not 0 <= self.version < 2**63:
            raise PatternArgumentError(
                f"{self.version!r} cannot be a version", remedy="give a whole number, 0 or more"
            )
        key: object = self.key
        parts = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, list) else key
        if not isinstance(parts, tuple) or not all(isinstance(part, str) for part in parts):
            raise PatternArgumentError(
                f"{key!r} cannot be a key", remedy="give a column or expression, or a tuple of them"
            )
        object.__setattr__(self, "key", parts)
        object.__setattr__(self, "scheduled", to_instant(self.scheduled))
        if not isinstance(self.pattern, Pattern):
            raise PatternArgumentError(
                f"{self.pattern!r} is not a pattern", remedy="begin one with Pattern.begin(name)"
            )
        if self.on_error not in ("fail", "disable"):
            raise PatternArgumentError(
                f"{self.on_error!r} is not a reaction to errors", remedy="give fail or disable"
            )
        if self.limits.policy not in POLICIES:
            raise PatternArgumentError(
                f"{self.limits.policy!r} is not a policy",
                remedy=f"give one of {', '.join(POLICIES)}",
            )
        if self.limits.runs is not None and self.limits.runs < 1:
            raise PatternArgumentError(
                f"{self.limits.runs} runs is not a valid limit", remedy="allow at least 1"
            )

    @property
    def starts(self) -> int | None:
        """``scheduled`` in microseconds since 1970."""
        return to_instant(self.scheduled)
