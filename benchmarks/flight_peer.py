"""A bare Flight server, the peer of the agent: rows into memory or a file, rows from memory.

``into`` ``memory`` keeps the batches of the last DoPut. ``into`` ``file`` writes each batch's IPC
bytes behind the last one, starts an fdatasync in the background after each 16 MiB as the agent's
log does, and answers after the last one; it keeps the files of the last few DoPuts. There are no
checksums, no frames and no index.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import rows

SYNC_BYTES = 16 << 20
LISTENS = "flight listening on "


class Peer(flight.FlightServerBase):  # type: ignore[misc]
    """Knows one set of rows at a time."""

    def __init__(self, folder: Path) -> None:
        super().__init__("grpc+tcp://127.0.0.1:0")
        self._folder = folder
        self._files: list[Path] = []
        self._batches: list[pa.RecordBatch] = []
        self._syncing = ThreadPoolExecutor(1)

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        """Take rows; the descriptor's command says where to."""
        if descriptor.command == b"memory":
            self._batches = [chunk.data for chunk in reader]
        else:
            self._to_file(reader)
        writer.write(pa.py_buffer(b"{}"))

    def _to_file(self, reader: flight.MetadataRecordBatchReader) -> None:
        path = self._folder / f"{time.monotonic_ns()}"
        self._files.append(path)
        if len(self._files) > rows.KEPT:
            self._files.pop(0).unlink()
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        unsynced = 0
        for chunk in reader:
            payload = chunk.data.serialize()
            os.write(fd, payload)
            unsynced += payload.size
            if unsynced >= SYNC_BYTES:
                self._syncing.submit(os.fdatasync, fd)
                unsynced = 0
        self._syncing.submit(os.fdatasync, fd).result()
        os.close(fd)

    def do_get(
        self, context: flight.ServerCallContext, ticket: flight.Ticket
    ) -> flight.FlightDataStream:
        """Send what is in memory, from a Python generator as the agent does."""
        return flight.GeneratorStream(self._batches[0].schema, iter(self._batches))


if __name__ == "__main__":
    server = Peer(Path(sys.argv[1]))
    sys.stdout.write(f"{LISTENS}grpc+tcp://127.0.0.1:{server.port}\n")
    sys.stdout.flush()
    server.serve()
