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
    ├── HintError                  code HintInvalid
    ├── CapabilityError            code CapabilityInvalid
    └── SignatureError             code SignatureInvalid

All of these are the user's to mend: the text of each is a whole sentence that
says where the fault is and what to write instead. ``code`` is the word that
status, REST answers and the command line show.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypedDict


class TextPosition(TypedDict):
    """A place in a text: ``line`` and ``column`` from 1, ``offset`` in characters from 0."""

    line: int
    column: int
    offset: int


def locate(text: str, offset: int) -> TextPosition:
    """Return the place of one character of a text; the end of the text is a place too."""
    line = text.count("\n", 0, offset) + 1
    column = offset - (text.rfind("\n", 0, offset) + 1) + 1
    return {"line": line, "column": column, "offset": offset}


CONTEXT_CHARACTERS = 38
"""Characters of an expression that are shown on either side of a fault."""


def pointer_lines(text: Any, position: Any) -> list[str]:
    """Return the line of an expression that has a fault, and one with a caret below the place.

    Args:
        text: the expression; no lines are returned if it is not a text.
        position: a `TextPosition`; no lines are returned if it is none of this text.
    """
    if not isinstance(text, str) or not isinstance(position, Mapping):
        return []
    lines = text.split("\n")
    line, column = position.get("line"), position.get("column")
    if not isinstance(line, int) or not isinstance(column, int) or not 0 < line <= len(lines):
        return []
    shown = "".join(c if c.isprintable() else "�" for c in lines[line - 1].replace("\t", " "))
    place = max(0, column - 1)
    start = max(0, place - CONTEXT_CHARACTERS) if len(shown) > 2 * CONTEXT_CHARACTERS else 0
    before, after = "…" if start else "", "…" if len(shown) > start + 2 * CONTEXT_CHARACTERS else ""
    part = shown[start : start + 2 * CONTEXT_CHARACTERS]
    return [f"  {before}{part}{after}", "  " + " " * (place - start + len(before)) + "^"]


class StreambrokerError(Exception):
    """The root of the tree.

    Attributes:
        code: the reason word for status, REST and the command line.
    """

    code: str = "Failed"


class ExpressionError(StreambrokerError):
    """A text that is not an expression.

    Attributes:
        position: where, as line, column and offset.
        found: what stands there.
        expected: what could stand there.
        hint: what to write instead; None if nothing can be guessed.
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
    """A subscription that cannot be read."""

    code = "SubscriptionInvalid"
    kind = "subscription"


class FilterError(ExpressionError):
    """A filter that cannot be read."""

    code = "FilterInvalid"
    kind = "filter"


class FilterTypeError(FilterError):
    """A filter that does not fit the columns it is to be used on."""


class PropertyError(StreambrokerError):
    """A property that cannot be kept or compared.

    Attributes:
        name: the property.
        problem: what is wrong with it.
    """

    code = "PropertyInvalid"

    def __init__(self, name: str, problem: str) -> None:
        self.name = name
        self.problem = problem
        super().__init__(f"Invalid property `{name}`: {problem}.")


class SchemaError(StreambrokerError):
    """A schema that cannot be read, or a batch that does not have it.

    Attributes:
        position: where in the text; None if the schema was not given as text.
        problem: what is wrong.
    """

    code = "SchemaInvalid"

    def __init__(self, problem: str, *, position: TextPosition | None = None) -> None:
        self.problem = problem
        self.position = position
        place = f" at line {position['line']}, column {position['column']}" if position else ""
        super().__init__(f"Invalid schema{place}: {problem}.")


class TopicError(StreambrokerError):
    """A topic pattern that breaks the rules of MQTT."""

    code = "TopicInvalid"


class ManifestError(StreambrokerError):
    """A manifest, request body, view or key whose form is wrong.

    Attributes:
        path: where in the document, as ``spec.buffer.maxBytes``; empty for its root.
        reason: what is wrong there.
    """

    code = "ManifestInvalid"

    def __init__(self, *, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path or 'The document'} {reason}.")


class FormatTooNewError(ManifestError):
    """A document of a form that this release does not know yet."""

    code = "FormatTooNew"

    def __init__(self, *, path: str, found: int, newest: int, what: str) -> None:
        super().__init__(
            path=path,
            reason=f"is {found}: a {what} of a newer release; this one reads up to {newest}",
        )


class TakenError(StreambrokerError):
    """A name or a port that another resource has.

    Attributes:
        code: ``NameTaken`` or ``PortTaken``.
    """

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


class HintError(StreambrokerError):
    """A datagram that is no hint for this agent: oversized, malformed, foreign or forged."""

    code = "HintInvalid"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"Hint refused: {reason}.")


class CapabilityError(StreambrokerError):
    """A capability that opens nothing here.

    Attributes:
        reason: missing, malformed, forged, wrong import, wrong export or expired.
    """

    code = "CapabilityInvalid"

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(f"Capability {reason}: {message}.")


class SignatureError(StreambrokerError):
    """A signed request that is not an agent's, or not for now.

    Attributes:
        reason: malformed, forged, out of time or repeated.
    """

    code = "SignatureInvalid"

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(f"Signature {reason}: {message}.")
