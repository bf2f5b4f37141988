"""Print a tree as canonical text.

Operators are surrounded by spaces, and only necessary parentheses are kept: equal trees have equal
texts. Parsing the text yields the same tree; literals keep their types. A text beyond the limit
for expressions is printed without spaces, which is never longer than the user's text.
"""

from __future__ import annotations

from streambroker_core.expression import tree
from streambroker_core.expression.parser import MAX_BYTES
from streambroker_core.expression.strings import quote

_OR, _AND, _NOT, _COMPARE, _PIPE, _CARET, _AMP, _SHIFT, _SUM, _PRODUCT, _UNARY, _VALUE = range(12)
_LEVELS = {
    "|": _PIPE, "^": _CARET, "&": _AMP, "<<": _SHIFT, ">>": _SHIFT, "+": _SUM, "-": _SUM,
    "*": _PRODUCT, "/": _PRODUCT, "%": _PRODUCT,
}  # fmt: skip


def print_tree(node: tree.Node) -> str:
    """Return the canonical text of a tree."""
    text = _Printer(short=False).text(node)
    if len(text.encode()) <= MAX_BYTES:
        return text
    return _Printer(short=True).text(node)


class _Printer:
    def __init__(self, *, short: bool) -> None:
        self._short = short
        self._space = "" if short else " "

    def text(self, node: tree.Node, around: int = _OR) -> str:
        """Return the text of a node, in parentheses if it binds looser than its context."""
        level, text = self._level_and_text(node)
        return f"({text})" if level < around else text

    def _level_and_text(self, node: tree.Node) -> tuple[int, str]:
        space = self._space
        match node:
            case tree.Or():
                return _OR, f"{space}||{space}".join(self.text(item, _AND) for item in node.items)
            case tree.And():
                return _AND, f"{space}&&{space}".join(self.text(item, _NOT) for item in node.items)
            case tree.Not():
                inner = node.operand
                clear = self._short or isinstance(inner, tree.Not)
                return _NOT, f"!{self.text(inner, _NOT if clear else _VALUE)}"
            case tree.Comparison():
                sides = self.text(node.left, _PIPE), self.text(node.right, _PIPE)
                return _COMPARE, f"{space}{node.op}{space}".join(sides)
            case tree.Membership():
                return _COMPARE, self._membership(node)
            case tree.Arithmetic():
                level = _LEVELS[node.op]
                sides = self.text(node.left, level), self.text(node.right, level + 1)
                return level, f"{space}{node.op}{space}".join(sides)
            case tree.Negate():
                return _UNARY, f"-{self.text(node.operand, _UNARY)}"
            case tree.Invert():
                return _UNARY, f"~{self.text(node.operand, _UNARY)}"
            case _:
                return _VALUE, self._value(node)

    def _membership(self, node: tree.Membership) -> str:
        item, container = self.text(node.item, _PIPE), self.text(node.container)
        if not self._short:
            return f"{item} in {container}"
        before = "" if isinstance(node.item, tree.LITERALS) else " "
        glued = before == "" or isinstance(node.container, tree.ListLiteral)
        return f"{item}{before}in{'' if glued else ' '}{container}"

    def _value(self, node: tree.Node) -> str:
        match node:
            case tree.Name():
                return node.name
            case tree.Subscript():
                return f"{node.name}[{node.index}]"
            case tree.ListLiteral():
                return f"[{self._comma.join(self._literal(item) for item in node.items)}]"
            case tree.Has():
                return f"has({node.name})"
            case tree.StringTest():
                subject = self._value(node.subject)
                return f"{node.function}({subject}{self._comma}{self._quote(node.text)})"
            case tree.Topic():
                return f"topic({self._quote(node.filter)})"
            case tree.Integer() | tree.Float() | tree.Text() | tree.Boolean():
                return self._literal(node)
            case _:
                raise TypeError(f"no tree node: {node!r}")

    def _literal(self, node: tree.LiteralNode) -> str:
        match node:
            case tree.Boolean():
                return "true" if node.value else "false"
            case tree.Integer():
                return str(node.value)
            case tree.Float():
                return _shortest(node.value) if self._short else repr(node.value)
            case tree.Text():
                return self._quote(node.value)

    @property
    def _comma(self) -> str:
        return f",{self._space}"

    def _quote(self, text: str) -> str:
        return quote(text, short=self._short)


def _shortest(value: float) -> str:
    """Return the shortest text that parses as this float64."""
    sign, unsigned = ("-", repr(-value)) if repr(value).startswith("-") else ("", repr(value))
    mantissa, _, exponent = unsigned.partition("e")
    integer, _, fraction = mantissa.partition(".")
    digits = (integer + fraction).lstrip("0") or "0"
    power = int(exponent or 0) - len(fraction)
    significant = digits.rstrip("0") or "0"
    power += len(digits) - len(significant)
    forms = [unsigned, f"{significant}e{power}"]
    if not exponent:
        forms.append(f"{integer.lstrip('0')}.{fraction.rstrip('0')}")
    return sign + min((form for form in forms if form != "."), key=len)
