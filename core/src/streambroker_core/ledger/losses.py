"""Losses of an export's log: which epochs a reader misses, and which loss stops it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.epochs import Epoch, RestoredLog, Stream, holes
from streambroker_core.ledger.plan import PlanRequest
from streambroker_core.ledger.plan_budget import is_republished
from streambroker_core.ledger.retention import Reader

MissingRange = tuple[int, int, int | None]
"""Missing epochs ``[first, next)`` and their rows; rows are None if unknown."""


class DataLossError(StreambrokerError):
    """Unexpected data loss: epochs that the reader has to read are gone. Nothing is skipped."""

    code = "DataLoss"

    def __init__(self, stream: str, first: int, last: int | None, why: str) -> None:
        self.stream, self.first, self.last = stream, first, last
        which = f"epochs from {first} on" if last is None else f"epochs {first} to {last - 1}"
        super().__init__(
            f"{which} of stream {stream} are gone: {why}. Nothing was skipped;"
            " the query stops here. Restore the exporter's data directory, or start the importer"
            " with a new checkpoint, or continue without them: fail_on_data_loss=False."
        )


def _check_restored(
    restored: RestoredLog, streams: Mapping[str, Stream], request: PlanRequest
) -> None:
    """Raise `DataLossError` for a reader that has read batches that are in no log.

    Batches with the same ids may have other rows now.
    """
    is_beyond = any(s in request.positions for s in streams.keys() - restored.streams)
    if request.last is None or is_beyond:
        return
    query, batch = request.last
    if batch > restored.batches.get(query, -1):
        stream, first = max(request.positions.items(), default=("", 0))
        raise DataLossError(
            stream,
            first,
            None,
            f"the reader has read batch {batch} of query {query}, and an older copy of the"
            " exporter's data directory was restored, which does not have it",
        )


def count_lost_between(
    streams: Mapping[str, Stream],
    reader: Reader,
    request: PlanRequest,
    unknown_streams: tuple[str, ...],
    restored: RestoredLog | None = None,
) -> int | None:
    """Return the minimum number of epochs missing between a lost log and the present one.

    Epochs that the present one has had and removed are not among them. None while nothing new has
    been published. Raises `DataLossError` if a reader that does not skip losses may have missed
    epochs.
    """
    if restored is not None and not (reader.is_dropping or request.skip_lost):
        _check_restored(restored, streams, request)
    if not unknown_streams or reader.is_dropping or any(s in request.positions for s in streams):
        return 0
    epochs = [e for s in streams.values() for e in s.epochs.values() if e.query]
    first = next((e for e in epochs if not is_republished(e, request.last)), None)
    if first is None:
        return None
    same = request.last is not None and first.query == request.last[0]
    between = first.batch - request.last[1] - 1 if request.last is not None and same else 1
    if between <= 0:
        return between
    if request.skip_lost:
        return max(0, between - _count_removed(streams, first)) if same else between
    raise DataLossError(
        unknown_streams[-1],
        request.positions[unknown_streams[-1]],
        None,
        f"the exporter has lost its log; it continues with batch {first.batch} of query"
        f" {first.query}, the last one read was {request.last}",
    )


def _count_removed(streams: Mapping[str, Stream], first: Epoch) -> int:
    """Return how many epochs the streams had before the first one that they still have."""
    removed = 0
    for stream in streams.values():
        if stream.epochs.get(first.number) is first:
            break
        removed += stream.next
    return removed + first.number


def count_skipped(reader: Reader, stream: Stream, request: PlanRequest) -> int:
    """Return how many batches between a reader's position and a stream are in no log."""
    epoch = stream.epochs.get(reader.next_epoch(stream.id))
    if epoch is None or not epoch.gap or reader.is_dropping or stream.id in reader.agreed_losses:
        return 0
    gap = epoch.gap
    if request.last is not None and request.last[0] == epoch.query:
        gap = min(gap, epoch.batch - request.last[1] - 1)
    return max(gap, 0)


def skipped_error(streams: Mapping[str, Stream], stream: Stream, skipped: int) -> DataLossError:
    """Return the error for batches before a stream that are in no log."""
    names = list(streams)
    previous = streams[names[max(0, names.index(stream.id) - 1)]]
    epoch = next(iter(stream.epochs.values()))
    return DataLossError(
        previous.id,
        previous.next,
        None,
        f"batches {epoch.batch - skipped} to {epoch.batch - 1} of query {epoch.query} were"
        f" published and are in no log; it continues with batch {epoch.batch} (was an older"
        " copy of the exporter's data directory restored?)",
    )


def find_missing(
    streams: Mapping[str, Stream],
    ranges: Mapping[str, tuple[int, int]],
    *,
    before: Mapping[str, Sequence[MissingRange]] | None = None,
) -> dict[str, list[MissingRange]]:
    """Return which of these epochs are gone, by stream, in order.

    Args:
        streams: of the export, by id.
        ranges: epochs ``(first, next)`` to check, by stream.
        before: what was left out of these ranges before. It stays left out with the same row
            counts, even if it is readable again.
    """
    result: dict[str, list[MissingRange]] = {}
    for name, (first, next_) in ranges.items():
        stream = streams.get(name)
        missing = [r for r in (before or {}).get(name, ()) if first <= r[0] and r[1] <= next_]
        retained = stream.retained_ranges(first, next_) if stream else ()
        covered = sorted([*retained, *((r[0], r[1]) for r in missing)])
        for start, end in holes(covered, first, next_):
            known_rows = stream is not None and end <= stream.next
            rows = stream.rows_between(start, end) if stream and known_rows else None
            missing.append((start, end, rows))
        if missing:
            result[name] = sorted(missing, key=lambda g: g[0])
    return result
