"""Internal error of lexer and parser, later converted to an `ExpressionError`."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class SyntaxProblem(Exception):  # noqa: N818 - becomes an ExpressionError at the door of this package
    """A fault at an offset of the text."""

    def __init__(self, offset: int, found: str, expected: str, hint: str | None = None) -> None:
        super().__init__(found)
        self.offset = offset
        self.found = found
        self.expected = expected
        self.hint = hint


def suggest_word(word: str, candidates: Iterable[str]) -> str | None:
    """Return a hint with the closest candidate for a wrong word, if one is close."""
    close = get_close_matches(word, sorted(candidates), n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`?" if close else None
