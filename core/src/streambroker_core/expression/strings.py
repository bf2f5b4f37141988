r"""String literals: double quotes, with the escapes of the original language.

``\\ \" \' \0 \t \r \n \a \b \f \v \uXXXX``; the backslash of any other escape is dropped. Two
``\u`` escapes may form a surrogate pair; an unpaired surrogate is refused.
"""

from __future__ import annotations

import re
from functools import lru_cache

from streambroker_core.expression.syntax_error import SyntaxProblem

_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_CONTROLS = {
    "0": "\0",
    "t": "\t",
    "r": "\r",
    "n": "\n",
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "v": "\v",
}
_PRINTED = {value: "\\" + letter for letter, value in _CONTROLS.items()} | {
    "\\": "\\\\",
    '"': '\\"',
}
_PRINT = str.maketrans(
    {chr(code): f"\\u{code:04x}" for code in (*range(32), 127, 0x85, 0x2028, 0x2029)} | _PRINTED
)
_PRINT_SHORT = str.maketrans({"\\": "\\\\", '"': '\\"'})


@lru_cache(maxsize=4096)
def _intern(text: str) -> str:
    """Return one shared object for a literal that many expressions contain."""
    return text


def unquote(quoted: str, offset: int) -> str:
    r"""Return the text of a literal that includes its quotes.

    Raises:
        SyntaxProblem: a ``\u`` without four hexadecimal digits, or an unpaired surrogate.
    """
    body = quoted[1:-1]
    if "\\" not in body:
        return _intern(body)
    text = _ESCAPE.sub(lambda found: _resolve_escape(found, offset), body)
    if any("\ud800" <= char <= "\udfff" for char in text):
        try:
            text = text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError as error:
            raise SyntaxProblem(
                offset,
                "half of a surrogate pair",
                "a whole character",
                "write the character itself, or both halves as `\\uXXXX\\uXXXX`",
            ) from error
    return text


def _resolve_escape(escape_match: re.Match[str], offset: int) -> str:
    escape = escape_match[1]
    if len(escape) == 5:
        return chr(int(escape[1:], 16))
    if escape == "u":
        raise SyntaxProblem(
            offset + 1 + escape_match.start(),
            "`\\u`",
            "four hexadecimal digits after it",
            "write `\\\\u` for a backslash and a `u`",
        )
    return _CONTROLS.get(escape, escape)


def quote(text: str, *, short: bool = False) -> str:
    """Return a literal for a text; control characters are escaped unless it is short."""
    return f'"{text.translate(_PRINT_SHORT if short else _PRINT)}"'
