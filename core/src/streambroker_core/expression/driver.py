"""Run a LALR table without what only a general parser needs.

The table is lark's. Most of its steps hand a lone child up through the levels of
precedence; here a whole staircase of them is one look-up, which makes reading
twice as fast. What is wrong with a text lark says itself, in `parser`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from lark import Lark
from lark.parse_tree_builder import ExpandSingleChild
from lark.parsers.lalr_analysis import Shift

from streambroker_core.expression.tokens import END, Token

_Build: TypeAlias = Callable[[list[Any]], Any]
_Reduction: TypeAlias = "tuple[int, _Build | None, str]"
"""How many children, what makes one of them (None for a lone child), and its rule."""


class UnexpectedTokenError(Exception):
    """A token stands where none of its type can."""

    def __init__(self, token: Token) -> None:
        super().__init__(token.type)
        self.token = token


class Driver:
    """The parser of one grammar, fed with tokens.

    Args:
        lark: made with ``parser="lalr"`` and a transformer.
    """

    def __init__(self, lark: Lark) -> None:
        parser: Any = lark.parser.parser.parser
        table, callbacks = parser.parse_table, parser.callbacks
        self._start: int = table.start_states["start"]
        self._end: int = table.end_states["start"]
        self._steps: list[dict[str, int | _Reduction]] = [{} for _ in table.states]
        self._next: list[dict[str, int]] = [{} for _ in table.states]
        """The state behind a symbol, for rules and terminals alike."""
        for state, actions in table.states.items():
            for symbol, (action, argument) in actions.items():
                if action is Shift:
                    self._next[state][symbol] = self._steps[state][symbol] = argument
                else:
                    self._steps[state][symbol] = _reduction(argument, callbacks[argument])
        self._stairs: dict[tuple[int, int, str], int] = {}

    def run(self, tokens: Iterable[Token]) -> Any:
        """Return what the transformer made of the tokens, of which the last is `END`.

        Raises:
            UnexpectedTokenError: there is none that could stand there.
        """
        states, values = [self._start], []
        for token in tokens:
            kind = token.type
            while True:
                step = self._steps[states[-1]].get(kind)
                if step is None:
                    raise UnexpectedTokenError(token)
                if isinstance(step, int):
                    states.append(step)
                    values.append(token)
                    break
                size, build, rule = step
                if build is None:
                    states[-1] = self._up(states[-2], states[-1], kind)
                    continue
                value = build(values[-size:])
                del states[-size:], values[-size:]
                values.append(value)
                states.append(self._next[states[-1]][rule])
                if states[-1] == self._end:
                    return value
        raise ValueError(f"the last token has to be {END}")

    def _up(self, below: int, state: int, kind: str) -> int:
        """Return the state at the head of the stairs of lone children."""
        key = below, state, kind
        head = self._stairs.get(key)
        if head is None:
            head = state
            step = self._steps[head].get(kind)
            while isinstance(step, tuple) and step[1] is None:
                head = self._next[below][step[2]]
                step = self._steps[head].get(kind)
            self._stairs[key] = head
        return head


def _reduction(rule: Any, build: _Build) -> _Reduction:
    size = len(rule.expansion)
    lone = size == 1 and isinstance(build, ExpandSingleChild)
    return size, None if lone else build, rule.origin.name
