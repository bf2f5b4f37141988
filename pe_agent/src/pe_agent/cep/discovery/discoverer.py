"""Discoverers: they find the rules of a query, at first and whenever these change.

A discoverer runs in one thread in the driver. If a source of rules is unreachable, the current
rules stay and a problem is reported; nothing has to be restarted when it is back.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from pe_agent.cep.discovery.manager import PatternProcessorManager
from pe_agent.cep.rule_progress import RuleReport
from pe_agent.job.arguments import seconds
from streambroker_core.errors import StreambrokerError
from streambroker_core.model.durations import Duration

log = logging.getLogger("pe_agent.cep")

Wanted: TypeAlias = "Sequence[Any]"
"""All rules that a query should have, as `RuleSet.apply_update` takes them."""


class DiscoveryError(StreambrokerError):
    """A source of rules that cannot be read.

    Attributes:
        retry_after: seconds that the source asks its callers to wait; 0 if it does not ask.
    """

    code = "RulesUnavailable"
    retry_after: float = 0.0


@dataclass(frozen=True)
class Fetched:
    """All rules of a source, as rules or documents, and a text that identifies their version."""

    documents: list[Any]
    version: str


class RuleSource(Protocol):
    """Where a `PollingDiscoverer` gets rules from."""

    def fetch(self, known: str | None) -> Fetched | None:
        """Return all rules, or None if their version is the known one; raise DiscoveryError."""


class PatternProcessorDiscoverer(Protocol):
    """Finds the rules of a job."""

    def initial_pattern_processors(self) -> Wanted:
        """Return the rules before the first event, or raise DiscoveryError."""

    def discover_pattern_processor_updates(self, manager: PatternProcessorManager) -> None:
        """Report each change to the manager; return once `close` is called."""

    def close(self) -> None:
        """Stop; may be called from another thread, and more than once."""


@runtime_checkable
class ReportedDiscoverer(Protocol):
    """A discoverer whose source receives reports on its rules."""

    def on_reports(self, reports: Sequence[RuleReport]) -> None:
        """Receive the reports of all rules; must return at once, may be called by any thread."""


@runtime_checkable
class QueryDiscoverer(Protocol):
    """A discoverer that distinguishes the queries of a job."""

    def for_query(self, query: str) -> None:
        """Set a name of the query that is stable over restarts; called before other methods."""


class PatternProcessorDiscovererFactory(Protocol):
    """Makes the discoverer of one query."""

    def create(self) -> PatternProcessorDiscoverer:
        """Return a discoverer that is not shared."""


class FixedDiscoverer:
    """A list of rules that does not change."""

    def __init__(self, rules: Iterable[Any]) -> None:
        self._rules = list(rules)
        self._closed = threading.Event()

    def initial_pattern_processors(self) -> Wanted:
        """Return the rules."""
        return self._rules

    def discover_pattern_processor_updates(self, manager: PatternProcessorManager) -> None:
        """Wait until `close` is called."""
        del manager
        self._closed.wait()

    def close(self) -> None:
        """Stop."""
        self._closed.set()


class PeriodicPatternProcessorDiscoverer(ABC):
    """Polls a source periodically.

    Attributes:
        problem: why the last poll failed; None if it did not.
    """

    def __init__(self, interval: Duration = 10.0) -> None:
        """Set the interval.

        Args:
            interval: a duration between two polls.

        Raises:
            ArgumentError: it is no duration.
            ValueError: it is not above 0.
        """
        self.interval = seconds(interval, "interval")
        if not self.interval > 0:
            raise ValueError(f"an interval of {interval} s: it has to be above 0")
        self.problem: str | None = None
        self._error: Exception | None = None
        self._failures = 0
        self._closed = threading.Event()
        self._pending: Wanted | None = None

    @abstractmethod
    def check_pattern_processor_update(self) -> bool:
        """Return whether the rules have changed since they were last returned."""

    @abstractmethod
    def latest_pattern_processors(self) -> Wanted:
        """Return all rules."""

    def initial_pattern_processors(self) -> Wanted:
        """Return the rules that apply before the first event."""
        return self.latest_pattern_processors()

    def discover_pattern_processor_updates(self, manager: PatternProcessorManager) -> None:
        """Poll until `close` is called; a failed poll changes nothing."""
        while not self._closed.wait(self.pause()):
            self.poll(manager)

    def pause(self) -> float:
        """Return the seconds until the next poll."""
        return self.interval

    def poll(self, manager: PatternProcessorManager) -> None:
        """Poll once, and report a change to the manager; a failed update is retried."""
        try:
            if self.check_pattern_processor_update():
                self._pending = self.latest_pattern_processors()
            if self._pending is not None:
                manager.on_pattern_processors_updated(self._pending)
                self._pending = None
        except Exception as error:  # the rules stay, whatever the error
            problem = f"{type(error).__name__}: {error}"
            if problem != self.problem:
                log.warning("cannot apply rules, keeping the current set: %s", problem)
            self.problem, self._error = problem, error
            self._failures += 1
            return
        if self.problem is not None:
            log.info("applying rules works again")
            self.problem, self._error, self._failures = None, None, 0

    def close(self) -> None:
        """Stop."""
        self._closed.set()


class Discovery:
    """A running discoverer: its first rules are applied, and a thread applies the updates."""

    def __init__(
        self,
        discoverer: PatternProcessorDiscoverer,
        manager: PatternProcessorManager,
        *,
        first: bool = True,
    ) -> None:
        """Apply the first rules unless ``first`` is false, then start to watch.

        Raises:
            DiscoveryError: the first rules cannot be read; nothing was started.
        """
        self._discoverer, self._manager = discoverer, manager
        self._problem: str | None = None
        try:
            if first:
                manager.on_pattern_processors_updated(discoverer.initial_pattern_processors())
        except Exception:
            discoverer.close()
            raise
        if isinstance(discoverer, ReportedDiscoverer):
            manager.listen(discoverer.on_reports)
        self._thread = threading.Thread(target=self._watch, name="pattern-rules", daemon=True)
        self._thread.start()

    @property
    def problem(self) -> str | None:
        """Why rules could not be read or applied at the last attempt; None if they could."""
        return self._problem or getattr(self._discoverer, "problem", None)

    @property
    def running(self) -> bool:
        """Whether changes are still watched."""
        return self._thread.is_alive()

    def _watch(self) -> None:
        try:
            self._discoverer.discover_pattern_processor_updates(self._manager)
        except Exception as error:
            self._problem = f"{type(error).__name__}: {error}"
            log.exception("stopped watching rules, keeping the current set")

    def close(self, timeout: float = 10.0) -> None:
        """Stop watching, and wait for the thread."""
        self._discoverer.close()
        self._thread.join(timeout)
