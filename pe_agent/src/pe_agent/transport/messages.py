"""JSON between agents and tasks: what a task is to read, and what comes with each block."""

from __future__ import annotations

from typing import Any, TypedDict


class LatestTime(TypedDict):
    """Request for the largest value of ``column`` in the rows that pass ``filter``."""

    column: str
    filter: str | None


class Ticket(TypedDict, total=False):
    """What one task reads: blocks of a stream, control tuples of a stream, or ``tuples`` as such.

    A ticket goes back to an agent as it came, so it may have more fields.

    - ``pieces``: epoch, first block, and last block (exclusive), in order.
    - ``filter``, ``columns``: None for all rows, and for all columns.
    - ``direct``: the blocks are in a bucket that tasks reach.
    - ``part``: number of the stream in the batch. ``rows``: its rows. ``before``: how many of them
      precede each block or epoch.
    - ``control``: control tuples are read, not rows. ``marks``: the ticket of those of the stream.
    - ``latest``: time that rules do not narrow.
    - ``slice``: number in a batch read.
    """

    location: str
    export: str
    stream: str
    reader: str
    query: str | None
    pieces: list[list[int]]
    filter: str | None
    columns: list[str] | None
    direct: bool
    part: int
    rows: int
    before: list[int]
    control: bool
    marks: Ticket
    latest: LatestTime
    slice: int
    tuples: list[list[Any]]


class BlockMetadata(TypedDict, total=False):
    """Metadata of a sent block: its epoch, and the time if the ticket asks for it."""

    epoch: int
    latest: int | None
