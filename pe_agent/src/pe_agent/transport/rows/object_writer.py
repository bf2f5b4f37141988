"""Writes the rows of one task as objects into the bucket of an export, by signed URLs."""

from __future__ import annotations

import base64
import time
import zlib
from dataclasses import replace
from typing import Any

import pyarrow as pa

from pe_agent.transport.agent_client import AgentClient, send
from pe_agent.transport.flight_errors import AgentUnreachableError
from pe_agent.transport.object_transfer import ObjectTransferError, put_object
from streambroker_core.errors import StreambrokerError
from streambroker_core.wire.agent_rpc.publisher import PublisherUpload, UploadTarget

MIN_BYTES = 8 << 20
"""A task with fewer bytes sends them to the agent: small objects cost more than they help."""
OBJECT_BYTES = 32 << 20
"""Bytes from which an object is full; so many are in memory."""


class RowsUnfitError(StreambrokerError):
    """Rows do not have the columns of the stream that they are written to."""

    code = "SchemaMismatch"


class ObjectWriter:
    """Rows of one task, in objects of some `OBJECT_BYTES`.

    Args:
        client: the agent.
        request: the task's batch; without a key.
        reconnect: seconds for which agent and bucket may be away.
    """

    def __init__(self, client: AgentClient, request: PublisherUpload, reconnect: float) -> None:
        """Ask for the first URL. Raises as `write` does."""
        self._client = client
        self._request = request
        self._reconnect = reconnect
        self._target: UploadTarget | None = send(client, request)
        self._stream = self._target.stream
        self._schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self._target.arrow)))
        self._payloads: list[pa.Buffer] = []
        self._objects: dict[str, list[tuple[int, int, int]]] = {}
        """Bytes, rows and crc32 of each block, by the key of its object."""
        self._blocks: list[tuple[int, int, int]] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows.

        Raises:
            AgentRefusedError: the batch is no longer admitted.
            AgentUnreachableError, ObjectTransferError: agent or bucket were away for too long.
            RowsUnfitError: the rows have other columns than the stream.
        """
        if not batch.num_rows:
            return
        if batch.schema != self._schema:
            batch = _fitting(batch, self._schema)
        payload = batch.serialize()
        self._payloads.append(payload)
        self._blocks.append((payload.size, batch.num_rows, zlib.crc32(payload)))
        if sum(size for size, _, _ in self._blocks) >= OBJECT_BYTES:
            self._put()

    def finish(self) -> dict[str, Any]:
        """Write what is left; return the summary of the stage. Raises as `write` does."""
        if self._blocks:
            self._put()
        blocks = [block for of in self._objects.values() for block in of]
        return {
            "stage": next(iter(self._objects)),
            "stream": self._stream,
            "rows": sum(rows for _, rows, _ in blocks),
            "bytes": sum(size for size, _, _ in blocks),
            "objects": self._objects,
        }

    def _put(self) -> None:
        data = b"".join(self._payloads)
        deadline = time.monotonic() + self._reconnect
        while True:
            try:
                self._target = self._target or send(self._client, self._request)
                put_object(self._target.url, data)
                break
            except (AgentUnreachableError, ObjectTransferError):
                if time.monotonic() > deadline:
                    raise
                if self._target is not None:  # the same object again; its URL may have expired
                    self._request = replace(self._request, key=self._target.key)
                    self._target = None
                time.sleep(0.2)
        self._objects[self._target.key] = self._blocks
        self._request = replace(self._request, key=None)
        self._target, self._payloads, self._blocks = None, [], []


def _fitting(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows with the types of a stream's columns; raise RowsUnfitError naming a column."""
    reason = None
    if batch.schema.names != schema.names:
        differing = sorted({*batch.schema.names} ^ {*schema.names}) or batch.schema.names
        reason = f"only one of the two has {differing}, or the order differs"
    else:
        for name in schema.names:
            try:
                batch.column(name).cast(schema.field(name).type)
            except pa.ArrowException as error:
                reason = f"column {name!r}: {error}"
                break
    if reason is not None:
        raise RowsUnfitError(
            f"The rows do not fit the export's stream: {reason}. The stream has {schema.names}."
            " Give the query these columns, or restart it to change those of the stream."
        )
    return batch.cast(schema)
