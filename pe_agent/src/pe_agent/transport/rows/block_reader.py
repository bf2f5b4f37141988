"""Blocks of a ticket, from the agent or the bucket that has them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pe_agent.transport.agent_client import AgentClient, send
from pe_agent.transport.agent_tls import AgentTrust
from pe_agent.transport.flight_errors import AgentUnreachableError
from pe_agent.transport.messages import BlockMetadata
from pe_agent.transport.rows.object_reader import read_objects
from streambroker_core.errors import StreambrokerError
from streambroker_core.model import pe_of
from streambroker_core.wire.agent_rpc.reader import ReaderWhere

RETRYABLE_CODES = ("AgentUnreachable", "StorageUnavailable")
"""Errors of a read after which it is tried again for ``reconnect`` seconds."""


@dataclass(frozen=True)
class BlockReader:
    """Reads blocks; resumes a lost connection for up to ``reconnect`` seconds.

    Attributes:
        trust: TLS trust for the agents that have blocks; None for that of this process.
        reconnect: seconds.
        client: returns the client of the own agent, which knows where blocks are.
    """

    trust: AgentTrust | None
    reconnect: float
    client: Callable[[], AgentClient]

    def read(
        self, ticket: Mapping[str, Any], skip: int = 0
    ) -> Iterator[tuple[pa.RecordBatch, BlockMetadata]]:
        """Yield the blocks of a ticket behind the first ``skip``, with their metadata.

        Raises:
            AgentUnreachableError: no agent could send them for ``reconnect`` seconds.
        """
        location, done = ticket["location"], skip
        export, stream = ticket["export"], ticket["stream"]
        where = ReaderWhere(export=export, stream=stream, reader=ticket["reader"])
        if ticket.get("direct") and not skip:
            done = yield from read_objects(AgentClient(location, trust=self.trust), ticket)
            if done == count_blocks(ticket):
                return
        until: float | None = None
        while True:
            try:
                rows = AgentClient(location, trust=self.trust).get(
                    {**ticket, "skip": done}, stall=self.reconnect
                )
                for batch, meta in rows:
                    done, until = done + 1, None
                    yield batch, meta
                return
            except StreambrokerError as error:
                if error.code not in RETRYABLE_CODES:
                    raise
                until = until or time.monotonic() + self.reconnect
                if time.monotonic() > until:
                    epochs = [epoch for epoch, _, _ in ticket["pieces"]]
                    raise AgentUnreachableError(
                        f"{str(error).rstrip('.')}. Epochs {min(epochs)} to {max(epochs)} of stream"
                        f" {stream} of {export} could not be read at agent {pe_of(export)} for"
                        f" {self.reconnect:.0f} s. Nothing was skipped; the batch is repeated when"
                        " the query is started again."
                    ) from None
                time.sleep(0.2)
                with suppress(StreambrokerError):
                    location = send(self.client(), where).location


def count_blocks(ticket: Mapping[str, Any]) -> int:
    """Return the number of blocks of a ticket."""
    return sum(last - first for _, first, last in ticket["pieces"])
