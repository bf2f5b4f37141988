"""The offset of a reader: what Spark writes into the checkpoint; it alone decides what is read.

``{"v": 1, "reader", "filter", "columns", "streams": {id: {"from", "next"}},
"control": {log: seq}, "dropped": {id: [epochs, rows]}, "lost": {id: [epochs, rows | null]},
"last": {export: [query id, batch id] | null}}``, keys sorted, because Spark compares offsets as
JSON text. ``lost`` is left out while it is empty. A reader that pins rules has ``"v": 2`` and
``"rules": {"log", "next", "relevant", "own"}``.

Rule 1: a batch reads of stream s the epochs ``[max(start.s.next, end.s.from), end.s.next)``.
Rule 2: filter and columns of the *end* offset hold for all of the batch.
Rule 3: ``last`` has a key for every export the reader ever opened, also while nothing was read.
Rule 4: an export of which nothing was read leaves ``last`` when it has neither a route nor a
position. One that was read stays: see :func:`find_never_read`.
Rule 5: with ``rules`` the filter is what the Import's own and the rules' let pass together; the
batch's rules are those up to ``next``. So rows are never under an older set than their rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from streambroker_core.errors import StreambrokerError

VERSION = 2
VERSION_WITHOUT_RULES = 1
"""The version of an offset without rules, which earlier releases read as well."""

Loss = tuple[int, int | None]
"""Epochs and rows that are gone; rows None where nobody knows them, epochs is the least then."""


class OffsetError(StreambrokerError):
    """An offset that cannot be read; the checkpoint is left as it is."""

    code = "OffsetInvalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a reader stands in one stream.

    Attributes:
        from_: first epoch that belongs to the reader; moves up over epochs that were
            dropped by agreement or not subscribed.
        next: first epoch that has not been read.
    """

    from_: int
    next: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedRules:
    """How far a reader has read a log of rules, and what that lets it leave out.

    Attributes:
        log: id of the log.
        next: the first entry that has not been read.
        relevant: the filter that lets pass all rows that some rule has to see; None for every row.
        own: the Import's filter.
    """

    log: str
    next: int
    relevant: str | None = None
    own: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """A set of positions, and the filter and columns under which the rows up to them were read."""

    reader: str | None = None
    filter: str | None = None
    columns: tuple[str, ...] | None = None
    streams: Mapping[str, Position] = field(default_factory=dict)
    control: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    last: Mapping[str, tuple[str, int] | None] = field(default_factory=dict)
    lost: Mapping[str, Loss] = field(default_factory=dict)
    rules: PinnedRules | None = None

    @property
    def import_filter(self) -> str | None:
        """The Import's filter, without what rules leave out."""
        return self.filter if self.rules is None else self.rules.own

    def encode(self) -> dict[str, Any]:
        """Return the JSON object, keys in the one order that Spark's comparison needs."""
        return {
            "columns": None if self.columns is None else list(self.columns),
            "control": dict(sorted(self.control.items())),
            "dropped": {s: list(n) for s, n in sorted(self.dropped.items())},
            "filter": self.filter,
            "last": {e: None if b is None else list(b) for e, b in sorted(self.last.items())},
            **({"lost": {s: list(n) for s, n in sorted(self.lost.items())}} if self.lost else {}),
            "reader": self.reader,
            **({"rules": dict(sorted(asdict(self.rules).items()))} if self.rules else {}),
            "streams": {
                s: {"from": p.from_, "next": p.next} for s, p in sorted(self.streams.items())
            },
            "v": VERSION if self.rules else VERSION_WITHOUT_RULES,
        }

    @staticmethod
    def decode(data: Mapping[str, Any] | None) -> Offset:
        """Read the JSON object; ``None`` is the offset before the first.

        Raises:
            OffsetError: written by a newer release, or not an offset of this source.
        """
        if not data:
            return Offset()
        version = data.get("v")
        if not isinstance(version, int):
            raise OffsetError(
                "this is not an offset of streambroker: it has no version `v`. Was the checkpoint"
                " made by another source? Use the checkpoint of this query or a new one."
            )
        if version > VERSION:
            raise OffsetError(
                f"the checkpoint's offset has format version {version}; this release reads up to"
                f" {VERSION}. Start the query with the release that wrote it, or a newer one."
            )
        try:
            return _decode(data)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise OffsetError(
                f"the offset in the checkpoint cannot be read ({type(error).__name__}: {error})."
                " Restore the checkpoint from its backup or start with a new one."
            ) from error


def column_names(columns: Iterable[str] | None) -> tuple[str, ...] | None:
    """Return names of columns, as they come out of JSON, for comparing; None for all columns."""
    return None if columns is None else tuple(columns)


def _decode(data: Mapping[str, Any]) -> Offset:
    return Offset(
        reader=data["reader"],
        filter=data["filter"],
        columns=column_names(data["columns"]),
        streams={
            s: Position(from_=int(p["from"]), next=int(p["next"]))
            for s, p in data["streams"].items()
        },
        control={log: int(seq) for log, seq in data["control"].items()},
        dropped={s: (int(n[0]), int(n[1])) for s, n in data["dropped"].items()},
        last={e: None if b is None else (str(b[0]), int(b[1])) for e, b in data["last"].items()},
        lost={
            s: (int(n[0]), None if n[1] is None else int(n[1]))
            for s, n in data.get("lost", {}).items()
        },
        rules=None if data.get("rules") is None else _rules(data["rules"]),
    )


def _rules(data: Mapping[str, Any]) -> PinnedRules:
    return PinnedRules(
        log=str(data["log"]), next=int(data["next"]), relevant=data["relevant"], own=data["own"]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRange:
    """One exporter's answer for one stream: the epochs ``[from_, next)`` are pinned.

    Attributes:
        dropped: epochs and rows dropped by agreement between the reader's position and ``from_``.
        duplicates: epochs and rows right before ``from_`` that the reader has read already, from
            a log that was lost.
        lost: epochs and rows that are gone without anybody having agreed, between the reader's
            position and ``from_``; rows None where they are not known, epochs is the least then.
        has_gap: ``from_`` lies behind the reader's position (a gap that was agreed to).
    """

    stream: str
    from_: int
    next: int
    dropped: tuple[int, int] = (0, 0)
    duplicates: tuple[int, int] = (0, 0)
    lost: Loss = (0, 0)
    has_gap: bool = False


def advance(
    start: Offset,
    export: str,
    planned: list[PlannedRange],
    last: tuple[str, int] | None,
) -> Offset:
    """Return ``start`` with one exporter's plan in it; the export counts as opened from now on.

    Args:
        start: the offset before.
        export: the exporter, as ``namespace/job/pe/port``.
        planned: its answer, stream by stream; empty while it has none.
        last: query and batch id of the last epoch planned, None if none is.
    """
    streams = dict(start.streams)
    dropped = dict(start.dropped)
    lost = dict(start.lost)
    for plan in planned:
        known = streams.get(plan.stream)
        from_ = plan.from_ if known is None or plan.has_gap else known.from_
        streams[plan.stream] = Position(from_=from_, next=plan.next)
        if plan.dropped[0]:
            epochs, rows = dropped.get(plan.stream, (0, 0))
            dropped[plan.stream] = (epochs + plan.dropped[0], rows + plan.dropped[1])
        if plan.lost[0]:
            lost[plan.stream] = sum_losses([lost.get(plan.stream, (0, 0)), plan.lost])
    lasts = dict(start.last)
    lasts[export] = last if last is not None else lasts.get(export)
    return replace(start, streams=streams, dropped=dropped, last=lasts, lost=lost)


def forget_streams(offset: Offset, streams: Iterable[str]) -> Offset:
    """Return an offset without positions in some streams; what they lost stays, under no stream."""
    gone = set(streams)
    dropped = {s: n for s, n in offset.dropped.items() if s not in gone}
    lost = {s: n for s, n in offset.lost.items() if s not in gone}
    of_gone = [offset.dropped[s] for s in sorted(gone | {""}) if s in offset.dropped]
    if of_gone:
        dropped[""] = (sum(n[0] for n in of_gone), sum(n[1] for n in of_gone))
    lost_gone = [offset.lost[s] for s in sorted(gone | {""}) if s in offset.lost]
    if lost_gone:
        lost[""] = sum_losses(lost_gone)
    positions = {s: p for s, p in offset.streams.items() if s not in gone}
    return replace(offset, streams=positions, dropped=dropped, lost=lost)


def find_never_read(offset: Offset, routed: Collection[str], homes: Mapping[str, str]) -> set[str]:
    """Return the exports that an offset need not know any more.

    They have no route, no position, and no epoch of them was ever read, so nothing can be read
    twice: one that comes back begins as ``start`` says, as it began before. Of one that was read
    ``last`` alone tells, once its positions are forgotten, which epochs were read: the export may
    come back with them in its log, or publish its last batch again over a lost one.

    Args:
        offset: the reader's.
        routed: exports with a route.
        homes: export by stream, as far as it is known.
    """
    kept = {*routed, *(homes[s] for s in offset.streams if s in homes)}
    return {export for export, last in offset.last.items() if last is None and export not in kept}


def without_exports(offset: Offset, exports: Collection[str]) -> Offset:
    """Return an offset that does not know some exports."""
    return replace(offset, last={e: b for e, b in offset.last.items() if e not in exports})


def sum_losses(losses: Iterable[Loss]) -> Loss:
    """Return the sum of losses; its rows are not known where those of one are not."""
    epochs, rows = 0, 0
    known = True
    for more, of in losses:
        epochs, rows, known = epochs + more, rows + (of or 0), known and of is not None
    return epochs, rows if known else None


def ranges(start: Offset, end: Offset) -> dict[str, tuple[int, int]]:
    """Return ``{stream: (first, next)}``: what the batch from ``start`` to ``end`` reads.

    Streams with nothing to read are left out. A pure function of the two offsets.
    """
    result: dict[str, tuple[int, int]] = {}
    for stream, position in end.streams.items():
        before = start.streams.get(stream)
        first = position.from_ if before is None else max(before.next, position.from_)
        if first < position.next:
            result[stream] = (first, position.next)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRange:
    """Blocks ``[first, last)`` of one epoch."""

    epoch: int
    first: int
    last: int


SLICE_BYTES = 32 * 1024 * 1024


def cut_slices(
    epochs: Mapping[int, list[int]], *, slice_bytes: int = SLICE_BYTES
) -> list[list[BlockRange]]:
    """Cut epochs into slices at block boundaries, about equal in bytes, in order.

    A block belongs to the slice in which its middle lies.

    Args:
        epochs: bytes of each block, by epoch number in ascending order.
        slice_bytes: the largest slice aimed at; a single block may be larger.

    Returns:
        Slices of pieces; a pure function of the manifests, so that a replay cuts alike.
    """
    total = sum(sum(blocks) for blocks in epochs.values())
    count = max(1, -(-total // slice_bytes))
    slices: list[list[BlockRange]] = []
    taken = index = 0
    for epoch, blocks in epochs.items():
        for number, size in enumerate(blocks):
            middle = (2 * taken + size) * count // (2 * total) if total else 0
            if not slices or middle > index:
                slices.append([])
                index = middle
            taken += size
            _append_block(slices[-1], epoch, number)
    return slices


def _append_block(pieces: list[BlockRange], epoch: int, block: int) -> None:
    """Add the next block to a slice, to the piece it continues if there is one."""
    if pieces and pieces[-1].epoch == epoch:
        pieces[-1] = replace(pieces[-1], last=block + 1)
    else:
        pieces.append(BlockRange(epoch=epoch, first=block, last=block + 1))
