"""The way of rule sets to the operators of a query: as control tuples, in a file.

A query that restarts continues with the last sent set, even if its source of rules has changed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pe_agent.aligned.control_source import ControlFileSource, control_source_plan
from pe_agent.aligned.import_frame import ImportFrame
from pe_agent.aligned.plan import StreamPlan
from pe_agent.log.control_file import ControlFile
from streambroker_core.cep.operator import PatternRules
from streambroker_core.cep.pattern.key_selectors import Selector
from streambroker_core.cep.rules.push_down import Relevance
from streambroker_core.cep.rules.rule_set import RuleSet
from streambroker_core.errors import AlignedError

if TYPE_CHECKING:
    from collections.abc import Collection


class RulesLog(Protocol):
    """A durable, ordered log to which rule sets are sent."""

    @property
    def name(self) -> str:
        """Id of the log; it never changes."""

    def last(self) -> PatternRules | None:
        """Return the last sent set; None if none was sent."""

    def send(self, rules: PatternRules) -> None:
        """Send a set; it applies from the beginning of a window that is not planned yet."""

    def attach_to(self, stream: StreamPlan) -> StreamPlan:
        """Return a stream that contains the sets as control tuples."""


class RulesFile:
    """A control file with the sets of rules of one query."""

    def __init__(self, path: str | Path) -> None:
        """Open the file, or create it; raise AlignedError if it is no file of control tuples."""
        self._file = ControlFile(path)

    @property
    def name(self) -> str:
        """Id of the file, independent of its path."""
        return self._file.log

    def last(self) -> PatternRules | None:
        """Return the last sent set; None if none was sent."""
        for one in self._file.newest_first():
            if one.type == PatternRules.__name__:
                return PatternRules(**one.payload)
        return None

    def send(self, rules: PatternRules) -> None:
        """Send a set; it is durable when this returns."""
        self._file.append(rules)

    def attach_to(self, stream: StreamPlan) -> StreamPlan:
        """Return the stream in union with the file's tuples."""
        return stream.union(
            control_source_plan(stream.spark, ControlFileSource, path=str(self._file.path))
        )


class ImportedRules(RulesFile):
    """A file that an import carries, so that exporters send only rows that some rule has to see."""

    def attach_to(self, stream: StreamPlan) -> StreamPlan:
        """Return the import's stream; raise AlignedError unless it is one subscribed import."""
        if not isinstance(stream.data, ImportFrame) or len(stream.data.imports) != 1:
            raise AlignedError(
                "push_down needs the stream of one import, as returned by pe.subscribe_stream(…"
                "): a stream after an operation, or of several imports, is not"
                " filtered at one exporter. Leave push_down out."
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
    output: str = "json",
) -> PatternRules:
    """Return a set of rules in the form that is sent; without push-down ``relevance`` is None."""
    needed = relevance or Relevance()
    return PatternRules(
        rules=rules.document(),
        selectors=[list(each) for each in sorted(selectors)],
        relevant=needed.filter,
        whole=needed.why,
        ticks=ticks,
        output=output,
    )
