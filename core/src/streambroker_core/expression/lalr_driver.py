"""Run lark's LALR table, without the overhead of a general parser.

The token types alone determine the steps. So the steps of a form are computed once, without those
that only pass a single child up the precedence levels: a million subscriptions have a handful of
forms. For syntax errors, `parser` uses lark itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from lark import Lark
from lark.parse_tree_builder import ExpandSingleChild
from lark.parsers.lalr_analysis import Shift

from streambroker_core.expression.syntax_error import SyntaxProblem
from streambroker_core.expression.tokens import END, Token

_Build: TypeAlias = Callable[[list[Any]], Any]
_Reduction: TypeAlias = "tuple[int, _Build | None, str]"
"""Number of children, build function (None for a single child), and rule."""

_Program: TypeAlias = "list[tuple[int, _Build | None]]"
"""Steps: number of consumed values and build function; None consumes the next token."""

_MAX_PROGRAMS = 4096
_SHIFT: tuple[int, None] = (0, None)


class UnexpectedTokenError(Exception):
    """A token appears where its type is not allowed."""

    def __init__(self, token: Token) -> None:
        super().__init__(token.type)
        self.token = token


class LalrDriver:
    """Parser for one grammar that takes tokens.

    `lark` must be created with ``parser="lalr"`` and a transformer.
    """

    def __init__(self, lark: Lark) -> None:
        parser: Any = lark.parser.parser.parser
        table, callbacks = parser.parse_table, parser.callbacks
        self._start: int = table.start_states["start"]
        self._end: int = table.end_states["start"]
        self._steps: list[dict[str, int | _Reduction]] = [{} for _ in table.states]
        self._next: list[dict[str, int]] = [{} for _ in table.states]
        """By state: the next state after a symbol, for rules and terminals."""
        for state, actions in table.states.items():
            for symbol, (action, argument) in actions.items():
                if action is Shift:
                    self._next[state][symbol] = self._steps[state][symbol] = argument
                else:
                    self._steps[state][symbol] = _reduction(argument, callbacks[argument])
        self._programs: dict[tuple[str, ...], _Program] = {}

    def run(self, tokens: Iterable[Token]) -> Any:
        """Return the transformer's result for the tokens, of which the last is `END`.

        Raises:
            UnexpectedTokenError: a token is not allowed at its position.
            SyntaxProblem: raised by the tokens, if nothing before it was wrong.
        """
        words: list[Token] = []
        pending_error: SyntaxProblem | None = None
        try:
            for token in tokens:
                words.append(token)  # noqa: PERF402  # what came before a refusal counts
        except SyntaxProblem as error:
            pending_error = error
        form = tuple([word.type for word in words])
        program = self._programs.get(form)
        if program is not None:
            return _replay(program, words)
        program = []
        value = self._walk(words, pending_error, program)
        if len(self._programs) >= _MAX_PROGRAMS:
            self._programs.clear()
        self._programs[form] = program
        return value

    def _walk(
        self, words: list[Token], pending_error: SyntaxProblem | None, program: _Program
    ) -> Any:
        """Parse the tokens and record each step in the program."""
        states, values = [self._start], []
        for token in words:
            kind = token.type
            while True:
                step = self._steps[states[-1]].get(kind)
                if step is None:
                    raise UnexpectedTokenError(token)
                if isinstance(step, int):
                    states.append(step)
                    values.append(token)
                    program.append(_SHIFT)
                    break
                size, build, rule = step
                if build is None:
                    states[-1] = self._next[states[-2]][rule]
                    continue
                program.append((size, build))
                value = build(values[-size:])
                del states[-size:], values[-size:]
                values.append(value)
                states.append(self._next[states[-1]][rule])
                if states[-1] == self._end:
                    return value
        raise pending_error or ValueError(f"the last token has to be {END}")


def _replay(program: _Program, words: list[Token]) -> Any:
    values: list[Any] = []
    following = iter(words)
    for size, build in program:
        if build is None:
            values.append(next(following))
        else:
            values[-size:] = (build(values[-size:]),)
    return values[0]


def _reduction(rule: Any, build: _Build) -> _Reduction:
    size = len(rule.expansion)
    is_single_child = size == 1 and isinstance(build, ExpandSingleChild)
    return size, None if is_single_child else build, str(rule.origin.name)
