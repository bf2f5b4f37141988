"""Announcement of table versions to queries: a control file next to the tables, read by each query.

- A query's offset contains the number of tuples that it has read. So a version applies from the
  window of its announcement on, and a replay sees the same.
- Of several versions of one side input in one window only the last is delivered: nothing is between
  them.
- Each query is a *reader* with an id in its offset. A small file contains its position and that of
  its planned window, so that versions no query can need any more are removed.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pe_agent.aligned.control_source import ControlSource, control_source_plan
from pe_agent.aligned.plan import StreamPlan
from pe_agent.log.control_file import ControlFileOffsets, FileOffset
from pe_agent.side.tables.versions import ReadPosition, write_atomically
from streambroker_core.control.tuples import Delivery, envelope
from streambroker_core.side.control_messages import SideVersion

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "streambroker-side-versions"
CONTROL_FILE, READERS = "control", "readers"
_REPORT_SECONDS = 60.0


def version_source_plan(spark: SparkSession, folder: Path) -> StreamPlan:
    """Return the announcements in a folder of tables, for ``union``."""
    return control_source_plan(spark, VersionsSource, path=str(folder / CONTROL_FILE))


def read_positions(folder: Path, grace: float, now: float) -> list[ReadPosition]:
    """Return each query's position in the control file; remove files older than ``grace``.

    A query whose file is damaged counts as one that has finished nothing.
    """
    positions = []
    for path in (folder / READERS).glob("*.json"):
        if path.stat().st_mtime < now - grace:
            path.unlink(missing_ok=True)
        else:
            positions.append(_read_position(path))
    return positions


def _read_position(path: Path) -> ReadPosition:
    try:
        fields = json.loads(path.read_bytes())
        planned = fields.get("planned")
        return ReadPosition(int(fields["next"]), None if planned is None else int(planned))
    except (AttributeError, KeyError, TypeError, ValueError):
        return ReadPosition(0)


class VersionsSource(ControlSource):
    """``format("streambroker-side-versions")``."""

    FORMAT = FORMAT

    def control_offsets(self) -> VersionOffsets:
        """Return the offsets of the control file."""
        return VersionOffsets(Path(self.options["path"]))


class VersionOffset(FileOffset):
    """Offset in the control file of a store, with the id of the reader."""

    reader: str


class VersionOffsets:
    """Reads a control file, and reports its position.

    A window ends at the end of the file: it drops hidden versions, which may be removed already. So
    it has one version of each side input, however many there are since the last one.
    """

    def __init__(self, path: Path) -> None:
        self._file = ControlFileOffsets(path, whole=True)
        self._readers = path.with_name(READERS)
        self._reported: tuple[ReadPosition, float] = (ReadPosition(-1), 0.0)
        self._available_now = False

    def first(self) -> VersionOffset:
        """Return the offset before the first tuple, with a new reader id."""
        return {**self._file.first(), "reader": uuid.uuid4().hex}

    def latest(self, start: VersionOffset) -> VersionOffset:
        """Return the offset after the last complete line; windows up to ``start`` are finished.

        Before the end is determined, the reader reports that its planned window is unknown. So no
        version that may be in the window is removed meanwhile.
        """
        reader, finished = start["reader"], start["next"]
        end = self._file.latest(start)
        if self._available_now or ReadPosition(finished, end["next"]) != self._reported[0]:
            self._report(reader, ReadPosition(finished))
            if self._available_now:
                self._file.freeze_end()
                self._available_now = False
            end = self._file.latest(start)
        self._report(reader, ReadPosition(finished, end["next"]))
        return {**end, "reader": reader}

    def freeze_end(self) -> None:
        """Limit reading to the end of the file at the first call of ``latest``."""
        self._available_now = True

    def read(self, start: VersionOffset, end: VersionOffset) -> list[bytes]:
        """Return the tuples between two offsets, with only the last version of each side input."""
        return drop_hidden_versions(self._file.read(start, end))

    def _report(self, reader: str, position: ReadPosition) -> None:
        now = time.time()
        if position == self._reported[0] and now < self._reported[1] + _REPORT_SECONDS:
            return
        self._readers.mkdir(exist_ok=True)
        fields = {"next": position.finished, "planned": position.planned}
        write_atomically(self._readers / f"{reader}.json", json.dumps(fields).encode())
        self._reported = (position, now)


def drop_hidden_versions(lines: Sequence[bytes]) -> list[bytes]:
    """Return control tuples without versions that a later one of the same window hides."""
    last: dict[str, int] = {}
    hidden = set()
    for at, line in enumerate(lines):
        control = envelope.decode(json.loads(line), "a control file")
        if control.type != SideVersion.__name__ or control.delivery is not Delivery.BEGIN:
            continue
        payload = control.payload
        if payload.get("at") is None:
            name = str(payload["input"])
            hidden.add(last.get(name, -1))
            last[name] = at
    return [line for at, line in enumerate(lines) if at not in hidden]
