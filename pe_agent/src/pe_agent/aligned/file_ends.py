"""End-of-file control tuples for Spark's file source.

Spark reads a file in one micro-batch, never a part of it. So a file ends in the window in which its
rows arrive.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.control.operators.operator import Operator, OperatorError

PATH_COLUMN = "_metadata.file_path"
"""Path column of Spark's file source: select it under the name that ``FileEnds`` is set to."""


@dataclass(frozen=True)
class EndOfFile:
    """All rows of a file have passed; delivered at the end of their window."""

    path: str


class FileEnds(Operator):
    """Forwards rows, and emits an ``EndOfFile`` for each file that ends in a window.

    A file without rows is not seen, so it has no end. A window has at most 10,000 control tuples:
    if there may be more files, read them with Spark's ``maxFilesPerTrigger``.
    """

    def __init__(self, column: str = "path") -> None:
        """Set the column with the path of a row's file."""
        self._column = column
        self._paths: set[str] = set()

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        """Forward rows and record their paths; raise OperatorError without the path column."""
        if self._column not in batch.schema.names:
            raise OperatorError(
                f"rows of input {port} have no column {self._column}: select {PATH_COLUMN} as"
                f" {self._column} directly after the file source."
            )
        paths = pc.unique(batch.column(self._column)).to_pylist()
        self._paths.update(path for path in paths if path is not None)
        self.emit(batch)

    def end_window(self) -> None:
        """Emit the end of each file; copies of several buckets have the same identity."""
        for path in sorted(self._paths):
            once = f"file-{hashlib.sha256(path.encode()).hexdigest()[:32]}"
            self.emit_control(EndOfFile(path), once=once)
