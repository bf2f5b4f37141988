"""The end of a file: what is written for it gets its name when every bucket has passed the end.

``FileEnds`` stands behind Spark's file source and knows which files end in a window. The sink
writes a hidden file, and renames it when all buckets have reported its end. A window that is
repeated after a crash writes the same again under the same name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import feeding
import pyarrow as pa

from streambroker.operators import (
    PATH_COLUMN,
    ControlTuple,
    EndOfFile,
    FileEnds,
    OperatorOptions,
    TypedOperator,
    handles,
    stream,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BUCKETS = 4


class Lines(TypedOperator):
    """Writes lines in capitals, and reports the end of a file from each bucket."""

    outputs = ("lines", "ends")

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        """Hand out lines with the name of their file."""
        names = [Path(path).name for path in batch.column("path").to_pylist()]
        lines = [line.upper() for line in batch.column("value").to_pylist()]
        self.emit(pa.RecordBatch.from_pydict({"name": names, "line": lines}), "lines")

    @handles(EndOfFile)
    def end(self, port: str, payload: EndOfFile, control: ControlTuple) -> bool:
        """Report the end."""
        told = {"name": [Path(payload.path).name], "bucket": [self.window.bucket]}
        self.emit(pa.RecordBatch.from_pydict(told), "ends")
        return False


@dataclass
class Renaming:
    """A sink of files. All rows of a file are in one window, which writes it as a whole."""

    folder: Path

    def __call__(self, frames: dict[str, DataFrame], window: int) -> None:
        """Write the files of a window under hidden names, and rename those that end in it."""
        lines: dict[str, list[str]] = {}
        for row in frames["lines"].collect():
            lines.setdefault(row["name"], []).append(row["line"])
        ends: dict[str, set[int]] = {}
        for row in frames["ends"].collect():
            ends.setdefault(row["name"], set()).add(row["bucket"])
        for name, some in lines.items():
            hidden = self.folder / f".{name}"
            hidden.write_text("".join(f"{line}\n" for line in sorted(some)))
            if len(ends.get(name, ())) == BUCKETS:
                hidden.rename(self.folder / name)


def run(spark: SparkSession, folder: Path) -> dict[str, list[str]]:
    """Return the files that the sink has finished, with their lines."""
    for name in ("in", "out"):
        (folder / name).mkdir(exist_ok=True)
    texts: dict[str, list[str]] = {"f1": ["a", "b", "c"], "f2": ["d"], "f3": ["e", "f"]}
    for name, some in texts.items():
        if not (folder / "in" / name).exists():
            (folder / "in" / name).write_text("".join(f"{line}\n" for line in some))
    frame = (
        spark.readStream.option("maxFilesPerTrigger", 2)
        .text(str(folder / "in"))
        .selectExpr("value", f"{PATH_COLUMN} AS path")
    )
    schemas: dict[str, Any] = {
        "lines": "name string, line string",
        "ends": "name string, bucket int",
    }
    made = (
        stream(frame)
        .apply(FileEnds, options=OperatorOptions(buckets=2))
        .apply(Lines, schemas=schemas, options=OperatorOptions(buckets=BUCKETS))
    )
    made.foreach_batch(
        Renaming(folder / "out"),
        checkpoint=folder / "checkpoint",
        trigger={"availableNow": True},
    ).awaitTermination()
    return {path.name: path.read_text().split() for path in sorted((folder / "out").glob("[!.]*"))}


if __name__ == "__main__":
    feeding.main(run)
