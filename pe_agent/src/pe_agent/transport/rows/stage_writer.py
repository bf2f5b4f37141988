"""Rows of a batch to the own agent: admission, stages, and the publish."""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from pe_agent.transport.agent_client import AgentClient, send
from pe_agent.transport.flight_errors import AgentUnreachableError
from pe_agent.transport.rows.object_writer import MIN_BYTES, ObjectWriter
from streambroker_core.errors import StreambrokerError
from streambroker_core.wire.agent_rpc.publisher import (
    Admitted,
    Occupied,
    PublisherAdmit,
    PublisherPublish,
    PublisherUpload,
    PublishResult,
)

log = logging.getLogger("pe_agent")

RETRYABLE_CODES = ("AgentUnreachable", "NotAdmitted", "StorageUnavailable")
"""Errors of a stage after which a task may try again."""


@dataclass(frozen=True)
class StageWriter:
    """Writes one stage of a batch.

    Attributes:
        client: returns the client of the own agent.
        request: the batch.
        reconnect: seconds for which an agent or a bucket that is away is retried.
    """

    client: Callable[[], AgentClient]
    request: PublisherAdmit
    reconnect: float

    def admit(self) -> Admitted:
        """Wait until the export admits this batch: its log has room, no other query uses it."""
        renewed: int | None = None
        waiting_since: float | None = None
        deadline = time.monotonic() + self.reconnect
        while True:
            try:
                answer = send(self.client(), replace(self.request, renewed=renewed))
                deadline = time.monotonic() + self.reconnect
            except AgentUnreachableError:
                if time.monotonic() > deadline:
                    raise
            else:
                if isinstance(answer, Admitted):
                    if waiting_since is not None:
                        seconds = time.monotonic() - waiting_since
                        log.warning("export %s waited %.0f s", self.request.export, seconds)
                    return answer
                if isinstance(answer, Occupied):
                    renewed = answer.occupied.renewed
                elif waiting_since is None:
                    waiting_since = time.monotonic()
                    log.warning("%s", describe_wait(self.request.export, answer.waiting))
            time.sleep(0.05)

    def stage(self, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> dict[str, Any]:
        """Get admission and send the rows, to the agent or as objects into its bucket.

        There is no retry once more rows than those in memory were taken from ``rest``: the caller
        has to repeat the batch.
        """
        deadline = time.monotonic() + self.reconnect
        held, taken = [first], list[pa.RecordBatch]()
        while True:
            admitted = self.admit()
            try:
                is_direct = admitted.direct and _fill(held, rest, MIN_BYTES)
                put = self._put_objects if is_direct else self._send_rows
                return put(held[0].schema, _rows(held, rest, taken))
            except StreambrokerError as error:
                again = error.code in RETRYABLE_CODES
                if taken or not again or time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def _send_rows(self, schema: pa.Schema, rows: Iterator[pa.RecordBatch]) -> dict[str, Any]:
        request = self.request
        command = {
            "export": request.export,
            "query": request.query,
            "run": request.run,
            "batch": request.batch,
            "ddl": request.ddl,
        }
        return self.client().put(command, schema, rows)

    def _put_objects(self, schema: pa.Schema, rows: Iterator[pa.RecordBatch]) -> dict[str, Any]:
        upload = PublisherUpload(
            export=self.request.export,
            query=self.request.query,
            run=self.request.run,
            batch=self.request.batch,
            ddl=self.request.ddl,
            arrow=encode_schema(schema),
        )
        writer = ObjectWriter(self.client(), upload, self.reconnect)
        for batch in rows:
            writer.write(batch)
        return writer.finish()


def publish(
    client: Callable[[], AgentClient], request: PublisherPublish, seconds: float
) -> PublishResult:
    """Publish the stages of a batch; a repeat of a published batch changes nothing.

    Raises:
        AgentUnreachableError: the agent did not answer for ``seconds``.
        AgentRefusedError: a stage is missing, the batch differs, the run was replaced.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return send(client(), request, timeout=max(1.0, deadline - time.monotonic()))
        except StreambrokerError as error:
            if error.code != "AgentUnreachable":
                raise
            if time.monotonic() > deadline:
                raise AgentUnreachableError(str(error)) from None
            time.sleep(0.2)


def encode_schema(schema: pa.Schema) -> str:
    """Return an Arrow schema in base64, without metadata."""
    return base64.b64encode(schema.remove_metadata().serialize()).decode()


def _fill(held: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch], size: int) -> bool:
    """Take rows until ``held`` has that many bytes; return whether there were so many."""
    total: int = sum(batch.nbytes for batch in held)
    for batch in rest if total < size else ():
        held.append(batch)
        total += batch.nbytes
        if total >= size:
            break
    return total >= size


def _rows(
    held: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch], taken: list[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows; ``taken`` is not empty once more than ``held`` were taken."""
    yield from held
    for batch in rest:
        taken[:] = [batch]
        yield batch


def describe_wait(export: str, waiting: Mapping[str, Any]) -> str:
    """Return which limit an export has reached, and which readers it waits for."""
    full = (waiting["held"], waiting["limit"], "buffer.maxBytes")
    if waiting["held"] < waiting["limit"]:
        full = (waiting["memory"], waiting["memory_limit"], "memory for the list of epochs")
    readers = ", ".join(
        f"{of['import']} ({of['bytes']:,} bytes{', away' if of['away'] else ''})"
        for of in waiting["holders"]
    )
    return (
        f"export {export} waits: it keeps {full[0]:,} bytes for its readers, and the limit"
        f" ({full[2]}) is {full[1]:,}. Not read yet by {readers}."
    )
