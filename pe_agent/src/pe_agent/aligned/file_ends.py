"""The end of a file as a control tuple, behind Spark's file source.

Spark reads a file in one micro-batch, never a part of it. So the window in which a file's rows come
is the one in which it ends.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.control.operators.operator import Operator, OperatorError

PATH_COLUMN = "_metadata.file_path"
"""Where Spark's file source has the path: select it under the name that ``FileEnds`` is given."""


@dataclass(frozen=True)
class EndOfFile:
    """All rows of a file have passed; delivered at the end of their window."""

    path: str


class FileEnds(Operator):
    """Passes rows on, and says in each window which files end in it.

    A file without rows is not seen, so it has no end. A window has at most 10,000 control tuples:
    where more files may lie, read them with Spark's ``maxFilesPerTrigger``.
    """

    def __init__(self, column: str = "path") -> None:
        """Define it.

        Args:
            column: holds the path of the file that the row is of.
        """
        self._column = column
        self._paths: set[str] = set()

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        """Pass rows on.

        Raises:
            OperatorError: they have no path.
        """
        if self._column not in batch.schema.names:
            raise OperatorError(
                f"rows of input {port} have no column {self._column}: select {PATH_COLUMN} as"
                f" {self._column} right behind the file source."
            )
        found = pc.unique(batch.column(self._column)).to_pylist()
        self._paths.update(path for path in found if path is not None)
        self.emit(batch)

    def end_window(self) -> None:
        """Say which files have ended; what several buckets say of one is one tuple."""
        for path in sorted(self._paths):
            once = f"file-{hashlib.sha256(path.encode()).hexdigest()[:32]}"
            self.emit_control(EndOfFile(path), once=once)
