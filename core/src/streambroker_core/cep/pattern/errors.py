"""What is wrong with patterns, their conditions and their runs.

All of these are the user's to mend. A pattern is refused while it is written or compiled; only
what depends on events, as a function that raises, is told while it runs.
"""

from __future__ import annotations

from streambroker_core.errors import ExpressionError, StreambrokerError


class PatternError(StreambrokerError):
    """A pattern that means nothing, or contradicts itself.

    Attributes:
        stage: the stage at fault; None for the pattern as a whole.
        problem: what is wrong.
        remedy: what to write instead; None if there is nothing to say.
    """

    code = "PatternInvalid"

    def __init__(
        self, problem: str, *, stage: str | None = None, remedy: str | None = None
    ) -> None:
        self.stage, self.problem, self.remedy = stage, problem, remedy
        place = "Invalid pattern" if stage is None else f"Invalid pattern at stage `{stage}`"
        super().__init__(f"{place}: {problem}{'' if remedy is None else f'; {remedy}'}.")


class PatternUnsupportedError(PatternError):
    """A pattern that could have a meaning, but has none here."""

    code = "PatternUnsupported"


class PatternArgumentError(PatternError, ValueError):
    """A number, a name or a duration that cannot be."""


class ConditionError(ExpressionError):
    """A text that is not a condition.

    Attributes:
        path: the field of a document that it stands in; empty for none.
    """

    code = "ConditionInvalid"
    kind = "condition"
    path = ""

    def at(self, path: str) -> ConditionError:
        """Return the error of a field of a document."""
        found = ConditionError(
            position=self.position, found=self.found, expected=self.expected, hint=self.hint
        )
        found.path = path
        found.args = (str(self).replace(" at ", f" at {path}, ", 1),)
        return found


class RunError(StreambrokerError):
    """A rule that cannot go on with an event: a function raised, or a skip has no target.

    Attributes:
        where: which part of the pattern.
        problem: what happened.
    """

    code = "RuleFailed"

    def __init__(self, where: str, problem: str) -> None:
        self.where, self.problem = where, problem
        super().__init__(f"The rule stopped at {where}: {problem}.")


class RuleError(StreambrokerError):
    """A rule that is not taken into the set; the set is as before.

    Attributes:
        rule: the rule's id.
        reason: see `rules.Outcome`.
    """

    code = "RuleRefused"

    def __init__(self, rule: str, reason: str, problem: str) -> None:
        self.rule, self.reason, self.problem = rule, reason, problem
        super().__init__(f"Rule `{rule}` is refused ({reason}): {problem}.")


class RowPatternError(StreambrokerError):
    """A MATCH_RECOGNIZE text that cannot be read, or asks for what is not built.

    Attributes:
        position: where, as line, column and offset; None if it is about the whole.
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
