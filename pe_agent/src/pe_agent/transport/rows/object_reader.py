"""Reads blocks of a slice from the bucket of an export, by signed URLs."""

from __future__ import annotations

import base64
import logging
import time
import zlib
from collections.abc import Generator, Iterator, Mapping
from typing import Any

import pyarrow as pa

from pe_agent.transport.agent_client import AgentClient, send
from pe_agent.transport.flight_errors import AgentRefusedError, AgentUnreachableError
from pe_agent.transport.messages import BlockMetadata
from pe_agent.transport.object_transfer import ObjectTransferError, open_range
from streambroker_core.wire.agent_rpc.peer import ObjectRange, PeerObjects

log = logging.getLogger("pe_agent")

ATTEMPTS = 3
"""Failures in a row after which the exporter's agent reads the bucket instead."""
RETRY_SECONDS = 0.2
AVOID_SECONDS = 300.0
"""How long a process does not try again, after it could read nothing."""
TICKET_FIELDS = ("export", "stream", "reader", "grant", "filter", "columns", "pieces", "query")
_avoid_until = 0.0


def read_objects(
    client: AgentClient, ticket: Mapping[str, Any]
) -> Generator[tuple[pa.RecordBatch, BlockMetadata], None, int]:
    """Yield blocks of a ticket with their metadata; return how many.

    The exporter's agent has to send the others: they are in its log, or the bucket cannot be
    reached from here.

    Raises:
        AgentRefusedError: the agent refuses the ticket.
    """
    global _avoid_until
    done = failures = 0
    named = {name: ticket[name] for name in TICKET_FIELDS if name in ticket}
    while failures < ATTEMPTS and time.monotonic() >= _avoid_until:
        try:
            found = send(client, PeerObjects(ticket=named, skip=done))
            if found.ranges is None or found.arrow is None:
                return done
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(found.arrow)))
            for one in found.ranges:
                for batch in _read_range(one, schema):
                    done, failures = done + 1, 0
                    columns = ticket["columns"]
                    yield batch if columns is None else batch.select(columns), {"epoch": one.epoch}
        except AgentRefusedError as error:
            if error.code not in ("BodyInvalid", "StorageUnavailable"):
                raise
            return done
        except (AgentUnreachableError, ObjectTransferError) as error:
            failures += 1
            if failures == ATTEMPTS and not done:
                _avoid_until = time.monotonic() + AVOID_SECONDS
            log.warning("attempt %s of %s to read from the bucket: %s", failures, ATTEMPTS, error)
            time.sleep(RETRY_SECONDS)
        else:
            return done
    return done


def _read_range(one: ObjectRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    length = sum(size for size, _, _ in one.blocks)
    with open_range(one.url, one.offset, length) as response:
        for size, _, crc in one.blocks:
            data = response.read(size)
            if len(data) != size or zlib.crc32(data) != crc:
                where = one.url.partition("?")[0]
                raise ObjectTransferError(f"{where}: a block has another length or checksum")
            yield pa.ipc.read_record_batch(pa.py_buffer(data), schema)
