"""How sets of rules reach the operators of a query: as control tuples, in a file.

What was sent last is what a query that starts again goes on with, whatever its source of rules says
by then.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pe_agent.aligned import ControlFile, Stream, control_stream
from streambroker_core.cep.operator import PatternRules
from streambroker_core.cep.rules import RuleSet
from streambroker_core.cep.selectors import Selector

if TYPE_CHECKING:
    from collections.abc import Collection


class RulesLog(Protocol):
    """Where sets of rules are sent to, durably and in order."""

    def last(self) -> PatternRules | None:
        """Return what was sent last; None if nothing was."""

    def send(self, sent: PatternRules) -> None:
        """Send a set; it holds from the beginning of a window that is not planned yet."""

    def joined(self, stream: Stream) -> Stream:
        """Return a stream with the sets as control tuples in it."""


class RulesFile:
    """A control file with the sets of rules of one query."""

    def __init__(self, path: str | Path) -> None:
        """Open the file, or make it.

        Raises:
            AlignedError: it is no file of control tuples.
        """
        self._file = ControlFile(path)

    def last(self) -> PatternRules | None:
        """Return what was sent last; None if nothing was."""
        for one in reversed(self._file.tuples()):
            if one.type == PatternRules.__name__:
                return PatternRules(**one.payload)
        return None

    def send(self, sent: PatternRules) -> None:
        """Send a set; it is on the disk when this returns."""
        self._file.append(sent)

    def joined(self, stream: Stream) -> Stream:
        """Return a stream with the file's tuples beside its rows."""
        return stream.union(control_stream(stream.spark, self._file.path))


def sent_of(rules: RuleSet, selectors: Collection[Selector]) -> PatternRules:
    """Return a set of rules as it is sent."""
    return PatternRules(
        rules=rules.document(), selectors=[list(each) for each in sorted(selectors)]
    )
