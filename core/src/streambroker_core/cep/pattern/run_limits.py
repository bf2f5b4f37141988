"""Limits of the partial matches of a rule, and the time that never comes."""

from __future__ import annotations

from dataclasses import dataclass, field

NEVER = 2**64
"""A time after all others, and a number that no count reaches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """Limits of the partial matches of one rule in one key.

    Attributes:
        runs: maximum number of partial matches, without matches that wait for earlier runs; None
            for no limit.
        policy: what happens beyond it: ``drop_oldest`` drops those that began first, ``refuse``
            begins no new ones, ``fail`` stops the rule.
        unchecked_runs: number of runs up to which the matcher applies no policy.
    """

    runs: int | None = 10_000
    policy: str = "drop_oldest"
    unchecked_runs: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        unlimited = self.runs is None or self.policy == "refuse"
        object.__setattr__(self, "unchecked_runs", NEVER if unlimited else self.runs)
