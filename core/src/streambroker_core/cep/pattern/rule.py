"""Rules: patterns with an id, a version and what becomes of their matches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias

from streambroker_core.cep.nfa.matcher import RunLimits
from streambroker_core.cep.pattern.durations import to_instant
from streambroker_core.cep.pattern.errors import PatternArgumentError
from streambroker_core.cep.pattern.pattern import Pattern

OnError: TypeAlias = Literal["fail", "disable"]
POLICIES = ("drop_oldest", "refuse", "fail")


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternProcessor:
    """One rule.

    Attributes:
        id: who it is; unique in a set, but for its versions.
        version: a higher one replaces a lower one.
        pattern: what it looks for.
        key: what events must have in common: columns, or expressions over them such as
            ``user % 10``; none for the key of the stream. A single text is one part.
        scheduled: a time, kept as microseconds since 1970. The rule sees only events from then on,
            and the version before it none. None, or the least number of 64 bits, for always.
        function: name of the function, registered in the job, that makes rows of a match; None for
            the match as a row.
        on_error: ``fail`` the query, or ``disable`` the rule, when a function raises or a skip has
            no target.
        keep_matches: as a new version that differs in conditions only, take over partial matches.
        limits: what one key may keep.
        labels: whatever people want to know of it; they are not looked at.
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
                f"{self.pattern!r} is no pattern", remedy="begin one with Pattern.begin(name)"
            )
        if self.on_error not in ("fail", "disable"):
            raise PatternArgumentError(
                f"{self.on_error!r} is no answer to errors", remedy="give fail or disable"
            )
        if self.limits.policy not in POLICIES:
            raise PatternArgumentError(
                f"{self.limits.policy!r} is no policy", remedy=f"give one of {', '.join(POLICIES)}"
            )
        if self.limits.runs is not None and self.limits.runs < 1:
            raise PatternArgumentError(
                f"{self.limits.runs} runs are no limit", remedy="allow at least 1"
            )

    @property
    def starts(self) -> int | None:
        """``scheduled`` in microseconds since 1970."""
        return to_instant(self.scheduled)
