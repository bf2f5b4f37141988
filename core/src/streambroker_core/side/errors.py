"""Errors of side inputs: their definition, rows, size and views.

::

    StreambrokerError
    └── SideError                 root of these errors
        ├── SideDefinitionError   code SideInvalid: the definition cannot be used
        ├── SideSchemaError       code SideSchemaDiffers: rows with other columns than before
        ├── SideRowError          code SideRowRefused: rows that the policy rejects
        ├── SideTooLargeError     code SideTooLarge: a view, or waiting rows, above a limit
        ├── SideVersionError      code SideVersionUnknown: no such version of a static table
        ├── NoValueError          code SideEmpty: a singleton without value and default
        └── ReadOnlyViewError     code SideReadOnly: a function tries to change a view
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streambroker_core.errors import StreambrokerError

_MAX_ROWS = 3


class SideError(StreambrokerError):
    """Root of the errors of side inputs.

    Attributes:
        input: the side input; the operator's main input is ``main``.
    """

    code = "SideFailed"

    def __init__(self, input_: str, message: str) -> None:
        self.input = input_
        super().__init__(message)


class SideDefinitionError(SideError):
    """A definition that cannot be used."""

    code = "SideInvalid"

    def __init__(self, input_: str, problem: str, remedy: str) -> None:
        self.problem, self.remedy = problem, remedy
        subject = "Windows" if input_ == "windows" else f"Side input `{input_}`"
        super().__init__(input_, f"{subject}: {problem}; {remedy}.")


class SideSchemaError(SideError):
    """Rows whose columns do not fit; none of them was accepted."""

    code = "SideSchemaDiffers"

    def __init__(self, input_: str, problem: str, remedy: str) -> None:
        super().__init__(input_, f"Rows of `{input_}`: {problem}; {remedy}.")


class SideRowError(SideError):
    """Rows that the policy of a side input rejects; its view is unchanged.

    Attributes:
        rows: the first rejected rows, three at most.
    """

    code = "SideRowRefused"

    def __init__(self, input_: str, problem: str, rows: Sequence[Any], remedy: str) -> None:
        self.problem = problem
        self.rows = list(rows[:_MAX_ROWS])
        shown = ", ".join(map(str, self.rows))
        more = f" and {len(rows) - _MAX_ROWS} more" if len(rows) > _MAX_ROWS else ""
        super().__init__(input_, f"Side input `{input_}`: {problem}: {shown}{more}; {remedy}.")


class SideTooLargeError(SideError):
    """A limit is exceeded; the window fails and changes nothing."""

    code = "SideTooLarge"

    def __init__(self, input_: str, what: str, found: int, limit: int, remedy: str) -> None:
        self.found, self.limit = found, limit
        super().__init__(
            input_, f"Side input `{input_}`: {what}: {found:,}, the limit is {limit:,}; {remedy}."
        )


class SideVersionError(SideError):
    """A version of a static table that does not exist or cannot be used.

    Attributes:
        version: its name.
        why: the reason, not a full sentence.
    """

    code = "SideVersionUnknown"

    def __init__(
        self,
        input_: str,
        version: str,
        why: str,
        remedy: str = "The previous version stays; announce one that exists",
    ) -> None:
        self.version, self.why = version, why
        super().__init__(
            input_,
            f"Side input `{input_}`: version {version} cannot be read: {why}. {remedy}.",
        )


class NoValueError(SideError):
    """A function read a singleton that has neither value nor default."""

    code = "SideEmpty"

    def __init__(self, input_: str) -> None:
        super().__init__(
            input_,
            f"Side input `{input_}` has no value for this window; give it a default, or ask"
            " `view.empty` first.",
        )


class ReadOnlyViewError(SideError):
    """A function tried to change a view; the view is unchanged."""

    code = "SideReadOnly"

    def __init__(self, input_: str) -> None:
        super().__init__(
            input_,
            f"Side input `{input_}` is read-only for functions; send a row to its stream to"
            " change it.",
        )
