"""Every error of streambroker, in one tree.

::

    StreambrokerError
    ├── ExpressionError            a subscription or a filter cannot be read
    │   ├── SubscriptionError      code SubscriptionInvalid
    │   └── FilterError            code FilterInvalid
    │       └── FilterTypeError    the filter can be read, but not on these columns
    ├── PropertyError              code PropertyInvalid
    ├── SchemaError                code SchemaInvalid
    ├── TopicError                 code TopicInvalid
    ├── ManifestError              code ManifestInvalid: a document with a bad field
    │   └── FormatTooNewError      code FormatTooNew
    ├── TakenError                 code NameTaken or PortTaken: another resource has it
    ├── AlignedError               code AlignedInvalid: a stream or operator cannot be built or run
    ├── HintError                  code HintInvalid
    ├── CapabilityError            code CapabilityInvalid
    └── SignatureError             code SignatureInvalid

Users can fix all of these: each text is a complete sentence that states where the fault is and
what to write instead. ``code`` is the reason word in a status, REST responses and the command
line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypedDict


class TextPosition(TypedDict):
    """Position in a text: ``line`` and ``column`` from 1, ``offset`` in characters from 0."""

    line: int
    column: int
    offset: int


def locate(text: str, offset: int) -> TextPosition:
    """Return the position of a character in a text, or of the end of the text."""
    line = text.count("\n", 0, offset) + 1
    column = offset - (text.rfind("\n", 0, offset) + 1) + 1
    return {"line": line, "column": column, "offset": offset}


CONTEXT_CHARACTERS = 38
"""Characters of an expression that are shown on each side of a fault."""


def pointer_lines(text: Any, position: Any) -> list[str]:
    """Return the line of an expression that has a fault, and a line with a caret at the position.

    There are no lines if `text` is not a string, or `position` is no `TextPosition` inside it.
    """
    if not isinstance(text, str) or not isinstance(position, Mapping):
        return []
    lines = text.split("\n")
    line, column = position.get("line"), position.get("column")
    if not isinstance(line, int) or not isinstance(column, int) or not 0 < line <= len(lines):
        return []
    printable = "".join(c if c.isprintable() else "�" for c in lines[line - 1].replace("\t", " "))
    index = max(0, column - 1)
    start = max(0, index - CONTEXT_CHARACTERS) if len(printable) > 2 * CONTEXT_CHARACTERS else 0
    before, after = (
        "…" if start else "",
        "…" if len(printable) > start + 2 * CONTEXT_CHARACTERS else "",
    )
    part = printable[start : start + 2 * CONTEXT_CHARACTERS]
    return [f"  {before}{part}{after}", "  " + " " * (index - start + len(before)) + "^"]


class StreambrokerError(Exception):
    """Base class of all errors.

    Attributes:
        code: the reason word for status, REST and the command line.
    """

    code: str = "Failed"


class ExpressionError(StreambrokerError):
    """A text is not a valid expression.

    Attributes:
        position: of the fault, as line, column and offset.
        found: the text there.
        expected: what could be there.
        hint: what to write instead; None if there is no guess.
    """

    kind: ClassVar[str] = "expression"

    def __init__(
        self, *, position: TextPosition, found: str, expected: str, hint: str | None = None
    ) -> None:
        self.position = position
        self.found = found
        self.expected = expected
        self.hint = hint
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        place = f"line {self.position['line']}, column {self.position['column']}"
        text = f"Invalid {self.kind} at {place}: found {self.found}, expected {self.expected}"
        if self.hint is None:
            return f"{text}."
        return f"{text}; {self.hint}{'' if self.hint.endswith('?') else '.'}"


class SubscriptionError(ExpressionError):
    """A subscription cannot be parsed."""

    code = "SubscriptionInvalid"
    kind = "subscription"


class FilterError(ExpressionError):
    """A filter cannot be parsed."""

    code = "FilterInvalid"
    kind = "filter"


class FilterTypeError(FilterError):
    """A filter does not fit the columns it applies to."""


class PropertyError(StreambrokerError):
    """A property cannot be stored or compared."""

    code = "PropertyInvalid"

    def __init__(self, name: str, problem: str) -> None:
        self.name = name
        self.problem = problem
        super().__init__(f"Invalid property `{name}`: {problem}.")


class SchemaError(StreambrokerError):
    """A schema cannot be parsed, or a batch does not conform to it.

    The position is None if the schema was not passed as text.
    """

    code = "SchemaInvalid"

    def __init__(self, problem: str, *, position: TextPosition | None = None) -> None:
        self.problem = problem
        self.position = position
        place = f" at line {position['line']}, column {position['column']}" if position else ""
        super().__init__(f"Invalid schema{place}: {problem}.")


class TopicError(StreambrokerError):
    """A topic pattern violates the rules of MQTT."""

    code = "TopicInvalid"


class ManifestError(StreambrokerError):
    """A manifest, request body, view or key has an invalid form.

    Attributes:
        path: in the document, such as ``spec.buffer.maxBytes``; empty for its root.
        reason: what is wrong there.
    """

    code = "ManifestInvalid"

    def __init__(self, *, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path or 'The document'} {reason}.")


class FormatTooNewError(ManifestError):
    """A document has a format that this release does not know yet."""

    code = "FormatTooNew"

    def __init__(self, *, path: str, found: int, newest: int, what: str) -> None:
        super().__init__(
            path=path,
            reason=f"is {found}: a {what} of a newer release; this one reads up to {newest}",
        )


class TakenError(StreambrokerError):
    """Another resource has the name (``NameTaken``) or the port (``PortTaken``)."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


class AlignedError(StreambrokerError):
    """A graph of aligned operators that cannot be built or run."""

    code = "AlignedInvalid"


class HintError(StreambrokerError):
    """A datagram is not a hint for this agent: oversized, malformed, foreign or forged."""

    code = "HintInvalid"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"Hint refused: {reason}.")


class CapabilityError(StreambrokerError):
    """A capability does not grant the access.

    Attributes:
        reason: missing, malformed, forged, wrong import, wrong export or expired.
    """

    code = "CapabilityInvalid"

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(f"Capability {reason}: {message}.")


class SignatureError(StreambrokerError):
    """A signed request is not from an agent, or not valid at this time.

    Attributes:
        reason: malformed, forged, out of time or repeated.
    """

    code = "SignatureInvalid"

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(f"Signature {reason}: {message}.")
