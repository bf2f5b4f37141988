"""Discoverers: they say which rules there are to be, at first and whenever that changes.

A discoverer runs in one thread beside the driver. A source of rules that is away keeps the rules
that there are, and says so; nothing has to be started again when it is back.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from pe_agent.cep.discovery.manager import PatternProcessorManager
from pe_agent.cep.rule_progress import RuleReport
from streambroker_core.errors import StreambrokerError

log = logging.getLogger("pe_agent.cep")

Wanted: TypeAlias = "Sequence[Any]"
"""All rules that there are to be, as `RuleSet.updated` takes them."""


class DiscoveryError(StreambrokerError):
    """A source of rules that cannot be read."""

    code = "RulesUnavailable"


class PatternProcessorDiscoverer(Protocol):
    """Finds the rules of a job."""

    def initial_pattern_processors(self) -> Wanted:
        """Return the rules that hold before the first event.

        Raises:
            DiscoveryError: the source cannot be read.
        """

    def discover_pattern_processor_updates(self, manager: PatternProcessorManager) -> None:
        """Tell the manager of each change; return once `close` is called."""

    def close(self) -> None:
        """Stop; may be called from another thread, and more than once."""


@runtime_checkable
class ReportedDiscoverer(Protocol):
    """A discoverer whose source wants to know what has become of its rules."""

    def on_reports(self, reports: Sequence[RuleReport]) -> None:
        """Take in what there is to tell of all rules; called at once, by any thread."""


@runtime_checkable
class QueryDiscoverer(Protocol):
    """A discoverer that tells the queries of a job apart."""

    def for_query(self, query: str) -> None:
        """Take in a name of the query that stays over restarts; called before any other."""


class PatternProcessorDiscovererFactory(Protocol):
    """Makes the discoverer of one query."""

    def create(self) -> PatternProcessorDiscoverer:
        """Return a discoverer that nobody else uses."""


class FixedDiscoverer:
    """A list of rules that stays as it is."""

    def __init__(self, rules: Iterable[Any]) -> None:
        """Define which rules there are."""
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
    """Looks again and again.

    Attributes:
        problem: why the source could not be read when last tried; None if it could.
    """

    def __init__(self, interval: float = 10.0) -> None:
        """Define how often.

        Args:
            interval: seconds between two looks.

        Raises:
            ValueError: it is not above 0.
        """
        if not interval > 0:
            raise ValueError(f"an interval of {interval} s: it has to be above 0")
        self.interval = interval
        self.problem: str | None = None
        self._closed = threading.Event()
        self._pending: Wanted | None = None

    @abstractmethod
    def check_pattern_processor_update(self) -> bool:
        """Tell whether the rules have changed since they were last returned."""

    @abstractmethod
    def latest_pattern_processors(self) -> Wanted:
        """Return all rules."""

    def initial_pattern_processors(self) -> Wanted:
        """Return the rules that hold before the first event."""
        return self.latest_pattern_processors()

    def discover_pattern_processor_updates(self, manager: PatternProcessorManager) -> None:
        """Look until `close` is called; what cannot be read changes nothing."""
        while not self._closed.wait(self.pause()):
            self.poll(manager)

    def pause(self) -> float:
        """Return the seconds until the next look."""
        return self.interval

    def poll(self, manager: PatternProcessorManager) -> None:
        """Look once, and tell the manager of a change; one that it cannot take is told again."""
        try:
            if self.check_pattern_processor_update():
                self._pending = self.latest_pattern_processors()
            if self._pending is not None:
                manager.on_pattern_processors_updated(self._pending)
                self._pending = None
        except Exception as error:  # whatever happens, the rules stay
            problem = f"{type(error).__name__}: {error}"
            if problem != self.problem:
                log.warning("rules cannot be taken in, those so far stay: %s", problem)
            self.problem = problem
            return
        if self.problem is not None:
            log.info("rules can be taken in again")
            self.problem = None

    def close(self) -> None:
        """Stop."""
        self._closed.set()


class Discovery:
    """A discoverer at work: its first rules are there, and a thread takes in the others."""

    def __init__(
        self,
        discoverer: PatternProcessorDiscoverer,
        manager: PatternProcessorManager,
        *,
        first: bool = True,
    ) -> None:
        """Take in the first rules, then begin to watch.

        Args:
            discoverer: finds rules.
            manager: takes them in.
            first: the first rules are still to be taken in.

        Raises:
            DiscoveryError: the first rules cannot be read; nothing was begun.
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
        """Why rules could not be read or taken in when last tried; None if they could."""
        return self._problem or getattr(self._discoverer, "problem", None)

    @property
    def running(self) -> bool:
        """Whether changes are still taken in."""
        return self._thread.is_alive()

    def _watch(self) -> None:
        try:
            self._discoverer.discover_pattern_processor_updates(self._manager)
        except Exception as error:
            self._problem = f"{type(error).__name__}: {error}"
            log.exception("rules are no longer watched, those so far stay")

    def close(self, timeout: float = 10.0) -> None:
        """Stop watching, and wait for the thread."""
        self._discoverer.close()
        self._thread.join(timeout)
