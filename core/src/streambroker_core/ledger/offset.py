"""Offset of a reader, as Spark writes it into the checkpoint; it alone decides what is read.

``{"v": 1, "reader", "filter", "columns", "streams": {id: {"from", "next"}},
"control": {log: seq}, "dropped": {id: [epochs, rows]}, "lost": {id: [epochs, rows | null]},
"last": {export: [query id, batch id] | null}}``, keys sorted, because Spark compares offsets as
JSON text. ``lost`` is left out while it is empty. A reader that pins rules has ``"v": 2`` and
``"rules": {"log", "next", "relevant", "own"}``.

Rule 1: a batch reads of stream s the epochs ``[max(start.s.next, end.s.from), end.s.next)``.
Rule 2: filter and columns of the *end* offset apply to the whole batch.
Rule 3: ``last`` has a key for every export the reader ever opened, also while nothing was read.
Rule 4: an export of which nothing was read leaves ``last`` when it has neither route nor
position. One that was read stays, see :func:`find_never_read`.
Rule 5: with ``rules`` the filter combines the Import's own and that of the rules; the batch's
rules are those up to ``next``. So rows are never read under an older set than their rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from streambroker_core.errors import StreambrokerError
from streambroker_core.wire.agent_rpc.peer import PlannedRange

VERSION = 2
VERSION_WITHOUT_RULES = 1
"""Format version of an offset without rules, which earlier releases can read."""

Loss = tuple[int, int | None]
"""Lost epochs and rows. If rows is None (unknown), epochs is a minimum."""


class OffsetError(StreambrokerError):
    """The offset cannot be read; the checkpoint is not changed."""

    code = "OffsetInvalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Position of a reader in one stream.

    Attributes:
        from_: first epoch of the reader; moves past epochs dropped by agreement or not subscribed.
        next: first unread epoch.
    """

    from_: int
    next: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedRules:
    """Position of a reader in a rules log, and the filters that apply there.

    Attributes:
        log: id of the log.
        next: first unread entry.
        relevant: filter that passes every row that some rule has to see; None for all rows.
        own: the Import's filter.
    """

    log: str
    next: int
    relevant: str | None = None
    own: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """Positions, and the filter and columns under which the rows up to them were read."""

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
        """The Import's own filter, without that of the rules."""
        return self.filter if self.rules is None else self.rules.own

    def encode(self) -> dict[str, Any]:
        """Return the JSON object with sorted keys, as Spark's comparison needs."""
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
        """Decode the JSON object; None is the initial offset.

        Raises:
            OffsetError: a newer release wrote it, or it is not an offset of this source.
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
    """Return column names from JSON in comparable form; None for all columns."""
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


def advance(
    start: Offset,
    export: str,
    planned: Sequence[PlannedRange],
    last: tuple[str, int] | None,
) -> Offset:
    """Return ``start`` with the plan of one export applied; the export then counts as opened.

    ``export`` is ``namespace/job/pe/port``. ``last`` has query and batch id of the last planned
    epoch, None if there is none.
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
    """Return an offset without some streams; their losses are added up under stream ``""``."""
    forgotten = set(streams)
    dropped = {s: n for s, n in offset.dropped.items() if s not in forgotten}
    lost = {s: n for s, n in offset.lost.items() if s not in forgotten}
    dropped_there = [offset.dropped[s] for s in sorted(forgotten | {""}) if s in offset.dropped]
    if dropped_there:
        dropped[""] = (sum(n[0] for n in dropped_there), sum(n[1] for n in dropped_there))
    lost_there = [offset.lost[s] for s in sorted(forgotten | {""}) if s in offset.lost]
    if lost_there:
        lost[""] = sum_losses(lost_there)
    positions = {s: p for s, p in offset.streams.items() if s not in forgotten}
    return replace(offset, streams=positions, dropped=dropped, lost=lost)


def find_never_read(offset: Offset, routed: Collection[str], homes: Mapping[str, str]) -> set[str]:
    """Return the exports that an offset may forget: no route, no position, nothing ever read.

    Such an export cannot be read twice: if it returns, it begins by its ``start`` policy again.
    One that was read has to stay. It may return with the same epochs in its log, or republish its
    last batch after a lost log. Without positions, only ``last`` shows what was read.

    ``routed`` are the exports with a route, ``homes`` is the export by stream, as far as known.
    """
    kept = {*routed, *(homes[s] for s in offset.streams if s in homes)}
    return {export for export, last in offset.last.items() if last is None and export not in kept}


def without_exports(offset: Offset, exports: Collection[str]) -> Offset:
    """Return an offset without some exports in ``last``."""
    return replace(offset, last={e: b for e, b in offset.last.items() if e not in exports})


def sum_losses(losses: Iterable[Loss]) -> Loss:
    """Return the sum of losses; its rows are None if those of one loss are."""
    epochs, rows = 0, 0
    known = True
    for n_epochs, n_rows in losses:
        epochs, rows, known = epochs + n_epochs, rows + (n_rows or 0), known and n_rows is not None
    return epochs, rows if known else None


def ranges(start: Offset, end: Offset) -> dict[str, tuple[int, int]]:
    """Return the epochs that a batch reads, as ``{stream: (first, next)}``, without empty ranges.

    A pure function of the two offsets.
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

    A block belongs to the slice that contains its middle. A pure function of the manifests, so
    that a replay cuts the same slices.

    Args:
        epochs: bytes of each block, by epoch number in ascending order.
        slice_bytes: target for the largest slice; a single block may be larger.
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
    """Append a block to a slice, and extend the last range if it is of the same epoch."""
    if pieces and pieces[-1].epoch == epoch:
        pieces[-1] = replace(pieces[-1], last=block + 1)
    else:
        pieces.append(BlockRange(epoch=epoch, first=block, last=block + 1))
