"""Errors of patterns, their conditions and their runs; the user must correct all of them.

A pattern is refused while it is written or compiled. Only errors that depend on events, such as an
exception of a function, occur at run time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streambroker_core.errors import ExpressionError, StreambrokerError


class PatternError(StreambrokerError):
    """A pattern that is invalid or contradicts itself.

    Attributes:
        stage: name of the stage with the error; None for the whole pattern.
        remedy: what to write instead; None without advice.
    """

    code = "PatternInvalid"

    def __init__(
        self, problem: str, *, stage: str | None = None, remedy: str | None = None
    ) -> None:
        self.stage, self.problem, self.remedy = stage, problem, remedy
        place = "Invalid pattern" if stage is None else f"Invalid pattern at stage `{stage}`"
        super().__init__(f"{place}: {problem}{'' if remedy is None else f'; {remedy}'}.")


class PatternUnsupportedError(PatternError):
    """A pattern that is meaningful, but not supported."""

    code = "PatternUnsupported"


class PatternArgumentError(PatternError, ValueError):
    """An invalid number, name or duration."""


class ConditionError(ExpressionError):
    """A text that is not a condition; `path` is its field in a document, empty outside of one."""

    code = "ConditionInvalid"
    kind = "condition"
    path = ""

    def at(self, path: str) -> ConditionError:
        """Return the error with the path of its field in a document."""
        located = ConditionError(
            position=self.position, found=self.found, expected=self.expected, hint=self.hint
        )
        located.path = path
        located.args = (str(self).replace(" at ", f" at {path}, ", 1),)
        return located


class RunError(StreambrokerError):
    """A rule that cannot process an event: a function raised, or a skip has no target.

    `where` names the part of the pattern.

    Attributes:
        key: the key in which it failed; None if it is unknown.
        row: the event, or the events of a match by stage; None if time caused it.
        time: time of the event or match, in microseconds.
        matches, timeouts: results of a matcher that were complete before it failed.
    """

    code = "RuleFailed"
    key: tuple[Any, ...] | None = None
    row: Mapping[str, Any] | None = None
    time: int | None = None
    matches: Sequence[Any] = ()
    timeouts: Sequence[Any] = ()

    def __init__(self, where: str, problem: str) -> None:
        self.where, self.problem = where, problem
        super().__init__(f"The rule stopped at {where}: {problem}.")


class RuleError(StreambrokerError):
    """A rule that the set refuses; the set is unchanged. See `RuleUpdate.reason`."""

    code = "RuleRefused"

    def __init__(self, rule: str, reason: str, problem: str) -> None:
        self.rule, self.reason, self.problem = rule, reason, problem
        super().__init__(f"Rule `{rule}` is refused ({reason}): {problem}.")


class RowPatternError(StreambrokerError):
    """A MATCH_RECOGNIZE text that cannot be parsed, or needs an unsupported feature.

    `position` has line, column and offset; None for the whole text.
    """

    code = "RowPatternInvalid"

    def __init__(self, problem: str, *, position: object = None) -> None:
        self.position, self.problem = position, problem
        place = (
            f" at line {position['line']}, column {position['column']}"
            if isinstance(position, dict)
            else ""
        )
        super().__init__(f"Invalid row pattern{place}: {problem}.")
