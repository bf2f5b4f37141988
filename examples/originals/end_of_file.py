"""Apex's end of a file: the last operator closes what it writes, and begins the next file.

Covered of the documentation of user-defined control tuples:

- A source sends a control tuple when it has sent all rows of a file.
- The last operator receives it behind all rows of that file, and before those of later windows.
- The tuple passes the operators in between, which know nothing of it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

sys.path.append(str(Path(__file__).parents[1] / "03-control-tuples"))
import feeding

import streambroker as sb
from streambroker.operators import PATH_COLUMN, EndOfFile, FileEnds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ONE = sb.OperatorOptions(buckets=1)
FILES = {"f1": ["a", "b", "c"], "f2": ["d"], "f3": ["e", "f"]}


class Capitals(sb.Operator):
    """Knows nothing of files."""

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        """Write lines in capitals."""
        lines = [line.upper() for line in batch.column("value").to_pylist()]
        self.emit(pa.RecordBatch.from_pydict({"value": lines, "path": batch.column("path")}))


@dataclass
class Writer(sb.TypedOperator):
    """Collects the lines of a file, and hands it out when it has ended."""

    lines: list[str] = field(default_factory=list)

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        """Collect lines."""
        self.lines += batch.column("value").to_pylist()

    @sb.handles(EndOfFile)
    def close(self, port: str, payload: EndOfFile, control: sb.ControlTuple) -> bool:
        """Hand out the file, and begin the next one."""
        closed = {"name": [Path(payload.path).name], "lines": [sorted(self.lines)]}
        self.emit(pa.RecordBatch.from_pydict(closed))
        self.lines = []
        return False


def program(lines: DataFrame) -> sb.Stream:
    """Return the closed files."""
    ended = sb.stream(lines).apply(FileEnds, options=ONE)
    capitals = ended.apply(Capitals, options=ONE)
    return capitals.apply(Writer, schema="name string, lines array<string>", options=ONE)


def run(spark: SparkSession, folder: Path) -> dict[str, list[str]]:
    """Return each closed file with its lines; a window has one file."""
    (folder / "in").mkdir()
    for name, lines in FILES.items():
        (folder / "in" / name).write_text("\n".join(lines))
    source = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "in"))
    lines_and_paths: Any = source.selectExpr("value", f"{PATH_COLUMN} AS path")
    found = feeding.collected(program(lines_and_paths), folder / "checkpoint")
    return {row["name"]: row["lines"] for rows in found.values() for row in rows}


if __name__ == "__main__":
    feeding.main(run)
