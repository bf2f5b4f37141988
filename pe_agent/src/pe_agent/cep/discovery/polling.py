"""Discoverers that poll a source of rules: a directory, a table, or a URL."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path

from pe_agent.cep.discovery.directory import DirectorySource
from pe_agent.cep.discovery.discoverer import (
    DiscoveryError,
    Fetched,
    PeriodicPatternProcessorDiscoverer,
    RuleSource,
    Wanted,
)
from pe_agent.cep.discovery.http import HttpSource
from pe_agent.cep.discovery.table import Connection, RuleFactory, TableSource
from pe_agent.transport.broker_trust import BrokerTrust
from pe_agent.transport.tokens import Token
from streambroker_core.model.durations import Duration

MAX_PAUSE_SECONDS = 300.0
MAX_DOUBLINGS = 8


class PollingDiscoverer(PeriodicPatternProcessorDiscoverer):
    """Polls a source of rules; if it cannot be read, the rules stay and ``problem`` is the reason.

    With ``backs_off`` the source is polled less often after failures, down to every five minutes.
    """

    def __init__(
        self, source: RuleSource, interval: Duration = 10.0, *, backs_off: bool = False
    ) -> None:
        super().__init__(interval)
        self._source, self._backs_off = source, backs_off
        self._known: str | None = None
        self._fetched: Fetched | None = None

    def check_pattern_processor_update(self) -> bool:
        """Return whether the source has other rules; raise DiscoveryError if it is unreadable."""
        self._fetched = self._source.fetch(self._known)
        return self._fetched is not None

    def latest_pattern_processors(self) -> Wanted:
        """Return the source's rules; raise DiscoveryError if it is unreadable."""
        fetched = self._fetched or self._source.fetch(None) or Fetched([], "")
        self._fetched, self._known = None, fetched.version
        return fetched.documents

    def pause(self) -> float:
        """Return the interval; longer after failures, or if the source asked for it."""
        longest = max(self.interval, MAX_PAUSE_SECONDS)
        backed_off = self.interval * 2.0 ** min(self._failures, MAX_DOUBLINGS)
        asked = self._error.retry_after if isinstance(self._error, DiscoveryError) else 0.0
        pause = max(backed_off if self._backs_off else self.interval, asked)
        return min(pause, longest)


class DirectoryDiscoverer(PollingDiscoverer):
    """Reads the files of a directory whose names end with ``.json``, ``.yaml`` or ``.yml``.

    A file that cannot be read keeps its previous rules, and is reported as a refused rule. Write
    files under another name and rename them, so that none is read incomplete. YAML needs PyYAML.
    """

    def __init__(self, path: str | Path, interval: Duration = 10.0) -> None:
        """Set the directory.

        Args:
            path: the directory; names that begin with a dot are ignored.
            interval: a duration between two polls.
        """
        super().__init__(DirectorySource(path), interval)


def sqlite_table(path: str | Path) -> Callable[[], Connection]:
    """Return a function that opens an SQLite file read-only."""
    return lambda: sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)


class TableDiscoverer(PollingDiscoverer):
    """Polls a table; each poll has a connection of its own, so a database may come and go.

    A row that cannot be read is refused alone, like any invalid rule; the reason names it.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        *,
        table: str = "pattern_processors",
        classes: Mapping[str, RuleFactory] | None = None,
        interval: Duration = 10.0,
    ) -> None:
        """Set the table.

        Args:
            connect: returns a new connection of any DB-API driver; see `sqlite_table`.
            table: its name, with its schema if it needs one.
            classes: classes that ``class_name`` may name; no others are used.
            interval: a duration between two polls.

        Raises:
            ValueError: the name is not one of a table.
        """
        super().__init__(TableSource(connect, table, classes or {}), interval)


class HttpDiscoverer(PollingDiscoverer):
    """Polls a URL, with the ETag of the last response.

    If the server is unreachable, refuses, or returns no list of rules, the rules stay; ``problem``
    has the reason. It is then polled less often, down to every five minutes. An item that is no
    rule is refused alone.
    """

    def __init__(
        self,
        url: str,
        interval: Duration = 10.0,
        *,
        token: Token | None = None,
        trust: BrokerTrust | None = None,
    ) -> None:
        """Set the URL.

        Args:
            url: ``http://`` or ``https://``; redirects are not followed.
            interval: a duration between two polls.
            token: token for ``Authorization: Bearer``; None for no such header.
            trust: trusted CA certificates of the server; None for those that the system trusts.

        Raises:
            ValueError: it is no such URL.
        """
        super().__init__(HttpSource(url, token, trust), interval, backs_off=True)
