"""What checkpoints say: the epochs and the filter of a batch, and the file that became an epoch.

Spark's checkpoint has a file per batch in ``offsets`` (a version, a JSON line of settings, then
one line per source) and, once the batch is done, one of the same name in ``commits``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flights.children import Failure
from streambroker_core.ledger.offset import Offset, ranges


@dataclass(frozen=True)
class Batch:
    """One committed batch of an importer.

    Attributes:
        number: Spark's batch id.
        start: the offset before.
        end: the offset it read up to; its filter holds for all of the batch.
    """

    number: int
    start: Offset
    end: Offset

    @property
    def epochs(self) -> Mapping[str, tuple[int, int]]:
        """First epoch and the one after the last, by stream."""
        return ranges(self.start, self.end)


def committed(checkpoint: Path, first: int, start: Offset) -> list[Batch]:
    """Return the committed batches of an importer.

    Args:
        checkpoint: the query's checkpoint.
        first: number of the first batch wanted.
        start: the offset before that batch.
    """
    batches: list[Batch] = []
    for number in _numbers(checkpoint / "commits"):
        if number < first:
            continue
        if number != first + len(batches):
            raise Failure(f"{checkpoint}: batch {first + len(batches)} was never committed")
        end = Offset.decode(json.loads(_source_line(checkpoint, number)))
        batches.append(Batch(number, batches[-1].end if batches else start, end))
    return batches


def published(checkpoint: Path) -> list[str]:
    """Return the file that became each epoch of an export, by its name without ending.

    Each batch of the exporting query reads one file, and each batch with rows is one epoch, so
    epoch n is the n-th file in the order in which the query has planned them.
    """
    numbers = _numbers(checkpoint / "offsets")  # first: a batch's files are logged before it
    files = _planned_files(checkpoint / "sources" / "0")
    result: list[str] = []
    before = -1
    for number in numbers:
        until = int(json.loads(_source_line(checkpoint, number))["logOffset"])
        names = [name for entry in range(before + 1, until + 1) for name in files[entry]]
        if len(names) != 1:
            raise Failure(f"{checkpoint}: batch {number} has {len(names)} files instead of one")
        result += names
        before = until
    return result


def _planned_files(log: Path) -> dict[int, list[str]]:
    """Return the files by entry of a file source's log; compacted parts repeat earlier ones."""
    entries: dict[int, set[str]] = {}
    for path in sorted(log.iterdir()) if log.exists() else []:
        if not path.name.partition(".")[0].isdigit():
            continue
        for line in path.read_text().splitlines()[1:]:
            item: dict[str, Any] = json.loads(line)
            entries.setdefault(item["batchId"], set()).add(Path(item["path"]).stem)
    return {number: sorted(names) for number, names in entries.items()}


def _numbers(directory: Path) -> list[int]:
    if not directory.exists():
        return []
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())


def _source_line(checkpoint: Path, number: int) -> str:
    return (checkpoint / "offsets" / str(number)).read_text().splitlines()[2]
