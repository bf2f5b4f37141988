"""A file of control tuples: a program appends them, and sources of queries read them.

The file has an id, and its lines never change. So the number of lines is an offset that Spark can
pin, and a replay reads the same tuples. A line is durable when ``append`` returns.
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TypedDict

from pe_agent.log.line_tail import Lines, last_line
from streambroker_core.control.tuples import (
    ALL_TARGETS,
    ControlLimitError,
    ControlTuple,
    Delivery,
    Limits,
    Target,
    envelope,
    make_logged_tuple,
    parse_delivery,
)
from streambroker_core.control.tuples.payloads import Codec, default_delivery, encode
from streambroker_core.errors import AlignedError
from streambroker_core.wire.encoding.canonical import canonical

VERSION = 1
WINDOW_LIMITS = Limits().tuples * 9 // 10, Limits().bytes * 9 // 10
"""Tuples, and bytes of their lines, for one window; the rest is reserved for other sources."""


class ControlFile:
    """A file of control tuples, to which programs append."""

    def __init__(self, path: str | Path) -> None:
        """Open the file, or create it and its folder.

        Raises:
            AlignedError: it is no file of control tuples.
        """
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._open_locked() as file:
            if not file.read(1):
                head = {"v": VERSION, "log": f"file-{uuid.uuid4().hex}"}
                self._write(file, canonical(head))
        self.log = read_log_id(self.path)

    def append(
        self,
        payload: object,
        *,
        delivery: Delivery | str | None = None,
        at: int | None = None,
        target: Target = ALL_TARGETS,
        codecs: Sequence[Codec] = (),
    ) -> ControlTuple:
        """Append a control tuple; it goes into the next window of each query that reads the file.

        Args:
            payload: a dataclass, or an object with a codec.
            delivery: when it is delivered, also by name; not ``IMMEDIATE``. By default as the
                payload's type declares, else ``END_WINDOW``.
            at: event time in microseconds, with ``AT_TIME``.
            target: the operators that it is for.
            codecs: how objects of other types are written.

        Returns:
            The tuple with its identity.

        Raises:
            AlignedError: it is ``IMMEDIATE``: it has no position between rows of another stream.
            ControlError: the payload cannot be written, or delivery, event time and target do not
                fit; nothing was appended.
            ControlLimitError: it is too large.
        """
        if delivery is None:
            delivery = default_delivery(payload, "ControlFile.append")
        delivery = parse_delivery(delivery)
        if delivery is Delivery.IMMEDIATE:
            raise AlignedError(
                "a tuple of a control file cannot be IMMEDIATE: it has no position among the"
                " rows of another stream. Use BEGIN, END_WINDOW or AT_TIME."
            )
        kind, text = encode(payload, codecs)
        if len(text.encode()) > Limits().payload:
            raise ControlLimitError(
                f"the payload of control tuple {kind} has {len(text.encode())} bytes, the limit is"
                f" {Limits().payload}: send data as rows."
            )
        with self._open_locked() as file:
            seq = _next_seq(file)
            control = make_logged_tuple(
                self.log, seq, type_=kind, text=text, delivery=delivery, at=at, target=target
            )
            self._write(file, canonical(envelope.encode(control)))
        return control

    def tuples(self) -> list[ControlTuple]:
        """Return the tuples of the file in order, without a last one that a crash truncated."""
        lines = Lines(self.path)
        return [self._read(line) for line in lines.read_range(0, lines.count())]

    def newest_first(self) -> Iterator[ControlTuple]:
        """Yield the tuples of the file, the last one first; reads lazily."""
        for line in Lines(self.path).backwards():
            yield self._read(line)

    def _read(self, line: bytes) -> ControlTuple:
        return envelope.decode(json.loads(line), str(self.path))

    def _open_locked(self) -> IO[bytes]:
        file = self.path.open("a+b")
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        return file

    def _write(self, file: IO[bytes], line: bytes) -> None:
        file.seek(0, os.SEEK_END)
        file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _next_seq(file: IO[bytes]) -> int:
    """Return the number of the next tuple; removes a last line that a crash truncated."""
    line, end = last_line(file)
    if end < file.seek(0, os.SEEK_END):
        file.truncate(end)
    return int(json.loads(line).get("seq", -1)) + 1


def read_log_id(path: Path) -> str:
    """Return the id of a control file; raise AlignedError if it is none, or of a newer release."""
    try:
        with path.open("rb") as file:
            head = json.loads(file.readline())
        version, log = int(head["v"]), str(head["log"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise AlignedError(
            f"{path} is not a file of control tuples: {error!r}. Create one with"
            f" ControlFile({str(path)!r})."
        ) from error
    if version > VERSION:
        raise AlignedError(
            f"{path} has form {version}, of a newer release; this reads {VERSION}: start that one."
        )
    return log


class FileOffset(TypedDict, total=False):
    """Offset in a control file: its id, the number of tuples read, and the version of the form.

    An empty one is the end of the file.
    """

    log: str
    next: int
    v: int


class ControlFileOffsets:
    """Windows of whole lines."""

    def __init__(self, path: Path, *, whole: bool = False) -> None:
        """Set the file; with ``whole`` a window ends at the end of the file, without limits."""
        self._path, self._whole = path, whole
        self._lines = Lines(path)
        self._available_count: int | None = None

    def first(self) -> FileOffset:
        """Return the offset before the first tuple."""
        return self._offset(0)

    def count(self) -> int:
        """Return the number of tuples that may be read."""
        return self._lines.count() if self._available_count is None else self._available_count

    def latest(self, start: FileOffset) -> FileOffset:
        """Return the end offset of the next window; raise AlignedError if lines are lost."""
        count = self.count()
        first = start.get("next", count)
        if first > count and start.get("log") == read_log_id(self._path):
            raise self._lost_lines_error(count, first)
        return self._offset(self._window_end(first, count) if first < count else count)

    def freeze_end(self) -> None:
        """Limit reading to the current end of the file."""
        self._available_count = self._lines.count()

    def read(self, start: FileOffset, end: FileOffset) -> list[bytes]:
        """Return the lines between two offsets; raise AlignedError if the file does not fit."""
        log = read_log_id(self._path)
        for offset in (start, end):
            if offset["log"] != log:
                raise AlignedError(
                    f"{self._path} is the control file {log}, but the checkpoint has read"
                    f" {offset['log']}: restore that one, or start a new checkpoint."
                )
        count = self._lines.count()
        if count < end["next"]:
            raise self._lost_lines_error(count, end["next"])
        chosen = self._lines.read_range(start["next"], end["next"])
        for line in chosen:
            envelope.decode(json.loads(line), str(self._path))
        return chosen

    def _offset(self, count: int) -> FileOffset:
        return {"log": read_log_id(self._path), "next": count, "v": VERSION}

    def _window_end(self, first: int, count: int) -> int:
        if self._whole:
            return count
        tuples, room = WINDOW_LIMITS
        until = min(count, first + tuples)
        for taken, size in enumerate(self._lines.sizes(first, until)):
            room -= size
            if room < 0 and taken:
                return first + taken
        return until

    def _lost_lines_error(self, count: int, planned: int) -> AlignedError:
        return AlignedError(
            f"{self._path} has {count} tuples, but the checkpoint has planned {planned}: lines"
            " have been removed. Restore them."
        )
