"""Validation of rule documents without the job that runs them, and without Arrow.

Only the job knows its registered functions and the columns of its stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from streambroker_core.cep.nfa.compiler import compile_pattern
from streambroker_core.cep.pattern.conditions import ConditionFunction
from streambroker_core.cep.rules.document import read_rule
from streambroker_core.errors import ManifestError, StreambrokerError


class _AnyFunction(Mapping[str, ConditionFunction]):
    """Has a function of every name; none is ever called."""

    def __getitem__(self, name: str) -> ConditionFunction:
        return lambda row, run: False

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


_ANY = _AnyFunction()


def find_document_problem(document: Any) -> StreambrokerError | None:
    """Return a rule's first error that does not depend on the job, with its location, or None.

    It is a `ManifestError`, a `PatternError` or a `ConditionError`.
    """
    try:
        compile_pattern(read_rule(document, _ANY).pattern)
    except StreambrokerError as error:
        return error
    except RecursionError:
        return ManifestError(path="pattern", reason="is nested too deeply")
    return None
