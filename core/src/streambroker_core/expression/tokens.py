"""Scanner of expressions.

It is hand-written because three rules depend on the context: a function is a name unless ``(``
follows; after a literal, ``in`` may be joined to the next name (``5 ina``); and
``9223372036854775808`` is a number only after a minus sign.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from streambroker_core.expression.strings import unquote
from streambroker_core.expression.syntax_error import SyntaxProblem, suggest_word
from streambroker_core.model.properties import INT64_MAX

MAX_NESTING = 64
END = "$END"
"""Type of the token after the last one."""
FUNCTIONS = ("has", "startsWith", "endsWith", "contains", "topic")
WORDS = {"true": "TRUE", "false": "FALSE", "in": "IN"}

_SCAN = re.compile(
    r"""[ \t\r\n\f\v]*(?:
      (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<number>(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<op>&&|\|\||==|!=|<=|>=|<<|>>|[<>!&|^~+\-*/%()\[\],])
    | (?P<end>\Z)
    )""",
    re.VERBOSE | re.DOTALL,
)
_CALL = re.compile(r"[ \t\r\n\f\v]*\(")
_OPERATORS = {
    "&&": "AND", "||": "OR", "!": "NOT",
    "==": "COMPARE", "!=": "COMPARE", "<": "COMPARE", "<=": "COMPARE", ">": "COMPARE",
    ">=": "COMPARE",
    "|": "PIPE", "^": "CARET", "&": "AMP", "<<": "SHIFT", ">>": "SHIFT",
    "+": "PLUS", "-": "MINUS", "*": "TIMES", "/": "DIVIDE", "%": "TIMES", "~": "TILDE",
    "(": "LPAR", ")": "RPAR", "[": "LSQB", "]": "RSQB", ",": "COMMA",
}  # fmt: skip
_LITERALS = frozenset({"INTEGER", "FLOAT", "STRING", "TRUE", "FALSE"})
_BEFORE_BINARY = frozenset({*_LITERALS, "NAME", "RPAR", "RSQB"})
_WRONG = {
    "=": "write `==` to compare",
    "'": "a string is written in double quotes",
    "`": "names are written without quotes",
    "$": "a name is made of letters, digits and `_`",
    "?": None,
}


class Token:
    """A token: type, value and start offset."""

    __slots__ = ("start_pos", "type", "value")

    def __init__(self, kind: str, value: Any, start_pos: int) -> None:
        self.type = kind
        self.value = value
        self.start_pos = start_pos


def tokens(text: str) -> Iterator[Token]:
    """Yield the tokens of a text, and `END` at last.

    Values are converted: ``int``, ``float``, or the unquoted text of a string.

    Raises:
        SyntaxProblem: the text contains an invalid token, a number out of range, or more than 64
            open brackets.
    """
    offset, before, before_that, nesting = 0, "", "", 0
    while True:
        found = _SCAN.match(text, offset)
        if found is None:
            raise _unknown_token_problem(text, offset)
        group = found.lastgroup
        if group == "end":
            yield Token(END, "", len(text))
            return
        start, offset = found.start(group or 0), found.end()
        if group == "name":
            word = found["name"]
            if before in _LITERALS and word.startswith("in") and word != "in":
                kind, offset = "IN", start + 2
            else:
                kind = _word_kind(word, text, offset)
            token = Token(kind, text[start:offset], start)
        elif group == "number":
            negative = before == "MINUS" and before_that not in _BEFORE_BINARY
            token, offset = _number(found["number"], text, start, offset, negative=negative)
        elif group == "string":
            token = Token("STRING", unquote(found["string"], start), start)
        else:
            op = found["op"]
            nesting += (op in "([") - (op in ")]")
            if nesting > MAX_NESTING:
                raise nesting_problem(start)
            token = Token(_OPERATORS[op], op, start)
        yield token
        before, before_that = token.type, before


def nesting_problem(offset: int) -> SyntaxProblem:
    """Return the problem of an expression that is nested too deeply."""
    return SyntaxProblem(
        offset,
        f"more than {MAX_NESTING} levels of nesting",
        f"at most {MAX_NESTING}",
        "split the expression or leave out parentheses",
    )


def _word_kind(word: str, text: str, end: int) -> str:
    if word in WORDS:
        return WORDS[word]
    if word in FUNCTIONS and _CALL.match(text, end):
        return "FUNCTION"
    return "NAME"


def _number(digits: str, text: str, start: int, end: int, *, negative: bool) -> tuple[Token, int]:
    follows = text[end : end + 1]
    is_integer = digits.isdigit()
    if is_integer and follows == "l" and not _is_word(text[end + 1 : end + 2]):
        end += 1
    elif _is_word(follows) and not text.startswith("in", end):
        raise _glued_problem(digits, text, start, end)
    elif follows == ".":
        raise SyntaxProblem(end, "`.`", "an operator", "a number has one decimal point")
    if not is_integer:
        value = float(digits)
        if value in (float("inf"), float("-inf")):
            raise SyntaxProblem(start, f"`{digits}`", "a number within the range of float64")
        return Token("FLOAT", value, start), end
    return Token("INTEGER", _integer(digits, start, negative=negative), start), end


def _integer(digits: str, start: int, *, negative: bool) -> int:
    significant = digits.lstrip("0") or "0"
    value = int(significant) if len(significant) <= 19 else INT64_MAX + 2
    if value > INT64_MAX + negative:
        raise SyntaxProblem(
            start,
            f"`{digits}`",
            "an integer within the range of int64",
            "write it with a decimal point to compare as float64",
        )
    return value


def _is_word(char: str) -> bool:
    return char == "_" or (char.isascii() and char.isalnum())


def _glued_problem(digits: str, text: str, start: int, end: int) -> SyntaxProblem:
    if text[end] == "L" and not _is_word(text[end + 1 : end + 2]):
        hint: str | None = f"write `{digits}` or `{digits}l`"
    elif digits == "0" and text[end] in "xX":
        hint = "numbers are decimal"
    else:
        hint = "a name does not begin with a digit"
    return SyntaxProblem(start, f"`{text[start : end + 1]}`", "a number or a name", hint)


def _unknown_token_problem(text: str, offset: int) -> SyntaxProblem:
    while text[offset : offset + 1] in (" ", "\t", "\r", "\n", "\f", "\v"):
        offset += 1
    char = text[offset]
    if char == '"':
        return SyntaxProblem(offset, "a string without an end", 'a closing `"`')
    hint = _WRONG.get(char)
    if hint is None and ord(char) > 127:
        hint = "names are made of ASCII letters, digits and `_`; other text goes in double quotes"
    shown = f"`{char}`" if char.isprintable() else f"character U+{ord(char):04X}"
    return SyntaxProblem(offset, shown, "a name, a value or an operator", hint)


def suggest_function(name: str) -> str:
    """Return the hint for an unknown name in a function call."""
    guess = suggest_word(name, FUNCTIONS)
    known = ", ".join(f"`{function}`" for function in FUNCTIONS)
    return guess or f"the functions are {known}"
