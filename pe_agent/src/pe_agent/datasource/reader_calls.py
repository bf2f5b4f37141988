"""Calls of a reader's driver side to its agent: next offsets, slices, targets of runs."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast

from pyspark.sql.types import StructType

from pe_agent.datasource.options import Options, format_ddl
from pe_agent.datasource.pinned_rules import PinnedRulesFile
from pe_agent.transport.agent_client import AgentClient, send
from pe_agent.transport.rows.reader_lease import Lease
from streambroker_core.wire.agent_rpc.codec import Request
from streambroker_core.wire.agent_rpc.reader import (
    Busy,
    ImportHeads,
    NextOffset,
    ReaderHeads,
    ReaderNext,
    ReaderSlices,
    Slices,
)

HEADS_WAIT = 10.0

_T = TypeVar("_T")


class ReaderCalls:
    """Calls of one query's reader, under the lease of this process.

    Attributes:
        limit: exclusive upper bound of a run by stream; None for a run without a limit.
    """

    def __init__(
        self,
        client: Callable[[], AgentClient],
        options: Options,
        columns: StructType,
        rules_file: PinnedRulesFile | None,
    ) -> None:
        self.limit: Mapping[str, int] | None = None
        self._log_limit: int | None = None
        self._client = client
        self._options = options
        self._columns = columns
        self._rules_file = rules_file
        self._session = secrets.token_hex(8)
        self._new_reader_id = secrets.token_hex(16)
        self._lease: Lease | None = None

    def heads(self, wait: float) -> ImportHeads:
        """Return the target of a run; wait for exports that do not respond."""
        request = ReaderHeads(import_=self._options.port, wait=wait)
        return send(self._client(), request, timeout=HEADS_WAIT + 10)

    def set_target(self, heads: ImportHeads) -> None:
        """Read up to the heads only."""
        self.limit, self._log_limit = heads.heads, heads.control

    def next(
        self, start: dict[str, Any], *, wait: float | None = None, aside: bool = False
    ) -> NextOffset:
        """Acknowledge ``start`` and plan the next batch; ``aside`` blocks no other source."""
        options, packing = self._options, self._options.packing
        if wait is None:
            wait = options.poll_wait if self.limit is None else 0.0
        request = ReaderNext(
            import_=options.port,
            session=self._session,
            start=start,
            mint=self._new_reader_id,
            columns=self._columns.names,
            schema=format_ddl(self._columns),
            max_bytes=options.max_bytes,
            limit=self.limit,
            lossy=options.skip_lost,
            frame=options.frame,
            stop_at_end=options.stop_at_end,
            control=None if packing is None else packing.mergeable,
            log=packing is not None and packing.log,
            log_limit=self._log_limit if packing is not None and packing.log else None,
            wait=wait,
            aside=aside,
        )
        if self._rules_file is not None:
            rules = self._rules_file.position(start.get("rules"))
            # Until the last rules are read, no rows are requested.
            limit = self.limit if self._rules_file.is_last(rules.next) else {}
            request = replace(request, rules=rules, limit=limit)
        return self._with_lease(request)

    def slices(self, start: dict[str, Any], end: dict[str, Any], *, give_up: bool) -> Slices:
        """Register the plan of a batch again and return its slices."""
        return self._with_lease(
            ReaderSlices(
                import_=self._options.port,
                session=self._session,
                start=start,
                end=end,
                lossy=self._options.skip_lost,
                control=self._options.packing is not None,
                give_up=give_up,
            )
        )

    def _with_lease(self, request: Request[_T | Busy]) -> _T:
        """Call the agent; while an earlier process of this query holds the lease, wait for it."""
        while True:
            began = time.monotonic()
            answer = send(self._client(), request, timeout=15.0)
            if not isinstance(answer, Busy):
                if self._lease is not None:
                    self._lease.renewed_at = began
                return answer
            request = replace(cast(Any, request), renewals=answer.busy.renewals)
            time.sleep(min(0.5, answer.busy.seconds + 0.01))

    def start_lease(self, reader: str) -> None:
        """Renew the lease of a reader from now on."""
        if self._lease is None:
            self._lease = Lease(self._client(), reader, self._session)

    def end_lease(self) -> None:
        """Release the lease."""
        if self._lease is not None:
            self._lease.end()
