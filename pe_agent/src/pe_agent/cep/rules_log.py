"""How sets of rules reach the operators of a query: as control tuples, in a file.

What was sent last is what a query that starts again goes on with, whatever its source of rules says
by then.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pe_agent.aligned import AlignedError, ControlFile, Stream, control_stream
from pe_agent.streams.import_stream import ImportFrame
from streambroker_core.cep.operator import PatternRules
from streambroker_core.cep.pattern.key_selectors import Selector
from streambroker_core.cep.rules.push_down import Relevance
from streambroker_core.cep.rules.rule_set import RuleSet

if TYPE_CHECKING:
    from collections.abc import Collection


class RulesLog(Protocol):
    """Where sets of rules are sent to, durably and in order."""

    @property
    def name(self) -> str:
        """Which one it is, for good."""

    def last(self) -> PatternRules | None:
        """Return what was sent last; None if nothing was."""

    def send(self, rules: PatternRules) -> None:
        """Send a set; it holds from the beginning of a window that is not planned yet."""

    def attach_to(self, stream: Stream) -> Stream:
        """Return a stream with the sets as control tuples in it."""


class RulesFile:
    """A control file with the sets of rules of one query."""

    def __init__(self, path: str | Path) -> None:
        """Open the file, or make it.

        Raises:
            AlignedError: it is no file of control tuples.
        """
        self._file = ControlFile(path)

    @property
    def name(self) -> str:
        """Which file it is, wherever it lies."""
        return self._file.log

    def last(self) -> PatternRules | None:
        """Return what was sent last; None if nothing was."""
        for one in self._file.newest_first():
            if one.type == PatternRules.__name__:
                return PatternRules(**one.payload)
        return None

    def send(self, rules: PatternRules) -> None:
        """Send a set; it is on the disk when this returns."""
        self._file.append(rules)

    def attach_to(self, stream: Stream) -> Stream:
        """Return a stream with the file's tuples beside its rows."""
        return stream.union(control_stream(stream.spark, self._file.path))


class ImportedRules(RulesFile):
    """A file that an import carries; rows that no rule has to see stay where they are."""

    def attach_to(self, stream: Stream) -> Stream:
        """Return the stream of the import, which brings the file's tuples.

        Raises:
            AlignedError: it is no import as it was subscribed to, or one of several.
        """
        if not isinstance(stream.data, ImportFrame) or len(stream.data.imports) != 1:
            raise AlignedError(
                "push_down needs the stream of one import, as pe.subscribe(…, control=True) gives"
                " it: what comes behind it, or of several, is not filtered at one exporter. Leave"
                " push_down out."
            )
        (one,) = stream.data.imports
        carrying = one.with_rules(str(self._file.path.absolute()))
        carrier = carrying if stream.carrier is one else stream.carrier
        return replace(stream, data=ImportFrame(imports=(carrying,)), carrier=carrier)


def to_pattern_rules(
    rules: RuleSet,
    selectors: Collection[Selector],
    relevance: Relevance | None = None,
    *,
    ticks: bool = False,
) -> PatternRules:
    """Return a set of rules as it is sent.

    Args:
        rules: the set.
        selectors: keys for which rows are copied.
        relevance: which rows the set has to see; None where that makes no difference.
        ticks: the query has a source of ticks.
    """
    told = relevance or Relevance()
    return PatternRules(
        rules=rules.document(),
        selectors=[list(each) for each in sorted(selectors)],
        relevant=told.filter,
        whole=told.why,
        ticks=ticks,
    )
