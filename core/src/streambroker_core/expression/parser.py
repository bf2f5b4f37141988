"""Parse text to a tree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from lark import Lark
from lark import Token as LarkToken
from lark.parsers.lalr_interactive_parser import InteractiveParser

from streambroker_core.expression.grammar import GRAMMAR
from streambroker_core.expression.lalr_driver import LalrDriver, UnexpectedTokenError
from streambroker_core.expression.syntax_error import SyntaxProblem
from streambroker_core.expression.tokens import END, Token, suggest_function, tokens
from streambroker_core.expression.tree import Predicate
from streambroker_core.expression.tree_builder import BUILDER

MAX_BYTES = 2048

# Built once: building the tables takes a hundred times as long as using them. The lexer is never
# called, as the driver gets tokens. Lark itself only lists the expected tokens after a fault.
_PARSER = Lark(GRAMMAR, parser="lalr", lexer="basic", transformer=BUILDER, keep_all_tokens=True)
_DRIVER = LalrDriver(_PARSER)

_BLANKS = " \t\r\n\f\v"

_VALUE_START = frozenset({"INTEGER", "FLOAT", "STRING", "TRUE", "FALSE", "NAME", "LPAR"})
_OPERATORS = frozenset({"COMPARE", "IN", "TIMES", "AND"})
_WORDS = {
    "RPAR": "`)`",
    "RSQB": "`]`",
    "LPAR": "`(`",
    "COMMA": "`,`",
    "$END": "the end of the text",
    "INTEGER": "an integer",
}
_FOREIGN = {
    "and": "write `&&`",
    "or": "write `||`",
    "not": "write `!`",
    "is": "write `==`, or `has(name)`",
    "like": 'write `startsWith(name, "x")`, `endsWith` or `contains`',
    "between": "write `name >= low && name <= high`",
}


def parse_tree(text: str, *, division: bool) -> Predicate | None:
    """Return the tree of a text of at most 2048 bytes of UTF-8; None if the text is blank.

    ``/`` is only allowed with `division`.

    Raises:
        SyntaxProblem: the text is not an expression.
    """
    _check_size(text)
    if not text.strip(_BLANKS):
        return None
    try:
        words = tokens(text) if division else _reject_division(text)
        return _DRIVER.run(words)  # type: ignore[no-any-return]  # the tree
    except UnexpectedTokenError as error:
        raise _unexpected(text, error.token) from None


def _reject_division(text: str) -> Iterator[Token]:
    for token in tokens(text):
        if token.type == "DIVIDE":
            raise SyntaxProblem(
                token.start_pos,
                "`/`",
                "an operator of subscriptions",
                "division is for filters; multiply the other side instead",
            )
        yield token


def _check_size(text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise SyntaxProblem(error.start, "half of a surrogate pair", "Unicode text") from error
    if size > MAX_BYTES:
        raise SyntaxProblem(
            len(text.encode()[:MAX_BYTES].decode(errors="ignore")),
            f"{size} bytes",
            f"at most {MAX_BYTES}",
        )


def _unexpected(text: str, token: Token) -> SyntaxProblem:
    parser = _PARSER.parse_interactive()
    for before in tokens(text):  # lark's own parser must reach the fault to list what it accepts
        if before.start_pos == token.start_pos:
            break
        parser.feed_token(LarkToken(before.type, before.value))
    accepted: set[str] = parser.accepts()  # type: ignore[no-untyped-call]
    expected = _expected(accepted)
    if token.type == END:
        end = len(text.rstrip(_BLANKS))
        return SyntaxProblem(end, "the end of the text", expected)
    start = token.start_pos
    shown = "a string" if token.type == "STRING" else f"`{_source(text, token)}`"
    return SyntaxProblem(start, shown, expected, _hint(text, token, accepted, parser))


def _source(text: str, token: Token) -> str:
    """Return a number or a word as in the text."""
    found = re.compile(r"[A-Za-z0-9_.]+").match(text, token.start_pos)
    return found[0] if found else str(token.value)


def _source_of_pair(text: str, token: Token) -> str:
    """Return the character before a token, and the token's first one."""
    return text[max(0, token.start_pos - 1) : token.start_pos + 1]


def _expected(accepted: set[str]) -> str:
    words = []
    if accepted >= _VALUE_START:
        words.append("a name or a value")
        accepted = accepted - _VALUE_START
    elif "STRING" in accepted:
        words.append("a literal")
    elif "INTEGER" in accepted:
        words.append("an integer")
    if accepted & _OPERATORS:
        words.append("an operator")
    words.extend(sorted(_WORDS[kind] for kind in accepted if kind in _WORDS and kind != "INTEGER"))
    return " or ".join(words) or "something else"


def _hint(text: str, token: Token, accepted: set[str], parser: InteractiveParser) -> str | None:
    before: Any = parser.parser_state.value_stack[-1:] or [None]
    previous = before[0] if isinstance(before[0], LarkToken) else None
    if token.type == "NAME":
        if previous is not None and str(previous.value).lower() == "not":
            return _FOREIGN["not"]
        return _FOREIGN.get(str(token.value).lower())
    if token.type == "LPAR":
        name = re.search(r"([A-Za-z_][A-Za-z0-9_]*)\s*\Z", text[: token.start_pos])
        return suggest_function(name[1]) if name else None
    if token.type == "IN" and "NAME" in accepted:
        return "`in` is a word of the language and cannot be a name"
    if token.type in ("COMPARE", "IN"):
        if previous is not None and previous.type == "COMPARE":
            return "write `!=`" if _source_of_pair(text, token) == "<>" else None
        return "comparisons cannot be chained; join them with `&&`"
    if token.type == "LSQB" and "NAME" not in accepted:
        return "only a name can have a subscript, and only one"
    return None
