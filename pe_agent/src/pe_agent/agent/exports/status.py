"""Parts of the status report of an export: damage, readers and their lag."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pe_agent.agent.exports.export_state import ExportState
from pe_agent.agent.exports.stream.delivery_counts import ReaderDelivery
from pe_agent.agent.exports.stream.export_stream import VisibleStream
from streambroker_core.ledger.epochs import Stream
from streambroker_core.ledger.retention import Reader
from streambroker_core.model.schema import parse_ddl, to_items


def list_damaged_segments(export: ExportState) -> list[str]:
    """Return the damaged segments that the scrub found, as paths in the export's log."""
    return [segment for stream in export.streams.values() for segment in stream.damaged_segments()]


def list_missing_epochs(stream: Stream) -> list[str]:
    """Describe the ranges of epochs that are missing although nothing removed them."""
    return [
        f"epochs {first} to {next_ - 1} of stream {stream.id}"
        f" ({stream.rows_between(first, next_):,} rows) are missing"
        for first, next_ in stream.missing
    ]


def list_damage(export: ExportState) -> list[str]:
    """Describe the damage of an export's log: missing epochs and damaged segments."""
    missing = [text for s in export.ledger.streams.values() for text in list_missing_epochs(s)]
    return [*missing, *list_damaged_segments(export)]


def reader_metrics(reader: Reader, delivery: ReaderDelivery, now: float) -> dict[str, Any]:
    """Return a reader's positions and delivery counts; rows are counted before the filter."""
    return {
        "import": reader.import_,
        "policy": reader.policy,
        "turned": reader.demoted,
        "turns": reader.demotions,
        "archived": reader.archived is not None,
        "routed": reader.routed,
        "alive": now <= reader.lease_expires,
        "positions": {s: c.next for s, c in reader.cursors.items()},
        "planned": {s: list(c.planned) for s, c in reader.cursors.items() if c.planned},
        "delivered": delivery.delivered,
        "filtered": delivery.filtered,
        "dropped": [delivery.dropped_epochs, delivery.dropped_rows],
        "duplicates": [delivery.duplicate_epochs, delivery.duplicate_rows],
        "lost": [delivery.lost_epochs, delivery.lost_rows],
        "sentRows": delivery.sent_rows,
        "sentBytes": delivery.sent_bytes,
        "plannedSince": format_time(delivery.planned_since),
        "releasedPlans": delivery.released_plans,
        "filter": delivery.filter,
    }


def lag_metrics(export: ExportState, reader: Reader, now: float) -> dict[str, Any]:
    """Return what a reader has still to finish, and its share of the buffer.

    ``congestion`` is the percentage of ``buffer.maxBytes`` or of the memory limit, whichever is
    higher. At 100 the export waits for the reader, or drops its oldest epochs. It is 0 while the
    reader reads the archive, which does neither. ``stalledSeconds`` is how long a reader that is
    not away has finished no epoch although there were some to read.
    """
    lag = export.ledger.retention.lag(reader)
    lag_seconds = 0.0 if lag.since is None else round(max(0.0, now - lag.since), 3)
    stalled = min(lag_seconds, now - reader.last_progress) if now <= reader.lease_expires else 0.0
    full = int(100 * export.ledger.retention.fullness(lag.bytes, lag.memory))
    return {
        "lag": [lag.epochs, lag.bytes],
        "lagRows": lag.rows,
        "lagSeconds": lag_seconds,
        "stalledSeconds": round(stalled, 3),
        "congestion": 0 if reader.archived is not None else min(100, full),
    }


def format_time(at: float | None) -> str | None:
    """Format a time on the export's clock in UTC, to the second."""
    if at is None:
        return None
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"


def storage_metrics(state: ExportState) -> dict[str, Any] | None:
    """Return how far the uploads of all streams are; None without object storage.

    ``error`` is that of a stream, or else of the agent's state, without which no stream continues.
    """
    if state.storage is None:
        return None
    uploaders = [stream.log.uploader for stream in state.streams.values()]
    uploads = [one.status() for one in uploaders if one is not None]
    return {
        "bytes": sum(one.bytes for one in uploads),
        "seconds": round(max((one.seconds for one in uploads), default=0.0), 1),
        "error": next((one.error for one in uploads if one.error), state.storage.error),
        "superseded": any(one.is_superseded for one in uploads),
    }


def list_versions(stream: VisibleStream) -> list[dict[str, Any]]:
    """Return the versions of a stream's columns, the oldest first, with the time of each."""
    return [
        {
            "version": v.number,
            "firstEpoch": v.first_epoch,
            "since": format_time(v.opened) if v.opened else None,
            "columns": to_items(parse_ddl(v.ddl)),
        }
        for v in stream.versions.all
    ]
