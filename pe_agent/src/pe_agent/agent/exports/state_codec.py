"""JSON encoding of an export's readers and publisher, for the agent's store."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from pe_agent.agent.exports.stream.delivery_counts import ReaderDelivery
from pe_agent.agent.exports.stream.export_stream import ExportStream
from pe_agent.agent.state.store import Store
from streambroker_core.ledger.publisher import LEASE_SECONDS, Published, Publisher
from streambroker_core.ledger.retention import Cursor, Reader

T = TypeVar("T")


def encode_reader(reader: Reader, delivery: ReaderDelivery) -> dict[str, Any]:
    """Encode a reader's claims and counts, for msgspec's JSON."""
    return {
        "id": reader.id,
        "import": reader.import_,
        "policy": reader.policy,
        "start": reader.start,
        "routed": reader.routed,
        "resume": reader.resume,
        "opened": reader.opened,
        "agreed": reader.agreed_losses,
        "archived": reader.archived,
        "cursors": {s: [c.next, c.planned, c.first] for s, c in reader.cursors.items()},
        "given": {s: c.granted_until for s, c in reader.cursors.items()},
        "query": reader.query,
        "turned": reader.demoted,
        "turns": reader.demotions,
        "control": reader.control,
        **({"once": True} if reader.once else {}),
        "delivery": delivery,
    }


def decode_reader(
    state: dict[str, Any], *, streams: Collection[str], now: float
) -> tuple[Reader, ReaderDelivery]:
    """Decode a reader as last seen ``now``; entries of streams removed since are dropped."""
    reader = Reader(
        id=state["id"],
        import_=state["import"],
        policy=state["policy"],
        start=state["start"],
        lease_expires=now,
        routed=state["routed"],
        resume=_only_existing(streams, state["resume"]),
        opened=state["opened"],
        agreed_losses=_only_existing(streams, state["agreed"]),
        archived=state.get("archived"),
        query=state.get("query"),
        last_progress=now,
        demoted=state.get("turned", False),
        demotions=state.get("turns", 0),
        control=state.get("control", False),
        once=state.get("once", False),
        cursors={
            s: Cursor(next=next_, planned=None if planned is None else tuple(planned), first=first)
            for s, (next_, planned, first) in _only_existing(streams, state["cursors"]).items()
        },
    )
    for name, cursor in reader.cursors.items():
        before = max(cursor.next, cursor.planned[1] if cursor.planned else 0)
        cursor.granted_until = state.get("given", {}).get(name, before)
    # Release 0.1.0 stored `owed`: counts due from other agents of the job.
    stored = {name: value for name, value in state["delivery"].items() if name != "owed"}
    delivery = ReaderDelivery(**stored)
    pending = _only_existing(streams, delivery.pending)
    delivery.pending = {s: tuple(n) for s, n in pending.items()}
    delivery.missed = {s: [(g[0], g[1], g[2]) for g in of] for s, of in delivery.missed.items()}
    delivery.counted = _only_existing(streams, delivery.counted)
    return reader, delivery


def _only_existing(streams: Collection[str], values: Mapping[str, T]) -> dict[str, T]:
    return {stream: value for stream, value in values.items() if stream in streams}


def encode_publisher(publisher: Publisher, *, lease_released: bool) -> dict[str, Any]:
    """Encode queries, runs and last batch."""
    return {
        "query": publisher.query,
        "schema": publisher.schema,
        "runs": publisher.runs,
        "last": None if publisher.last is None else _encode_published(publisher.last),
        "earlier": {q: _encode_published(last) for q, last in publisher.earlier.items()},
        "free": lease_released,
        "aborted": publisher.aborted,
        "gaps": publisher.gaps,
        "skipped": publisher.skipped,
        "ended": publisher.ended,
    }


def _encode_published(last: Published) -> dict[str, Any]:
    """Encode a batch; omit empty control, as an older release does."""
    return {k: v for k, v in asdict(last).items() if k != "control" or v}


def restore_publisher(
    publisher: Publisher, store: Store, streams: Iterable[ExportStream], *, now: float
) -> None:
    """Restore the publisher; epochs in the log take precedence over the store.

    Its lease starts again at ``now``, because it could not renew it without an agent.
    """
    rows = store.query("SELECT state FROM publishers WHERE export = ?", publisher.export)
    if rows:
        state = json.loads(rows[0][0])
        publisher.query, publisher.schema = state["query"], state["schema"]
        publisher.runs = dict(state["runs"])
        publisher.earlier = {q: Published(**last) for q, last in state["earlier"].items()}
        publisher.lease_expires = now if state["free"] else now + LEASE_SECONDS
        publisher.gaps = state.get("gaps", 0)
        publisher.skipped = state.get("skipped", 0)
        if state.get("ended"):
            publisher.ended = (state["ended"][0], state["ended"][1])
        if state.get("aborted"):
            publisher.aborted = (state["aborted"][0], state["aborted"][1])
        if state["last"] is not None:
            publisher.last = Published(**state["last"])
            publisher.history[publisher.last.batch] = publisher.last
    for stream in streams:
        for manifest in sorted(stream.manifests.values(), key=lambda m: m.epoch):
            if manifest.query != publisher.query:
                continue
            batch, count, ddl = manifest.batch, manifest.rows, manifest.ddl
            query_tuples = manifest.control.query_tuples if manifest.control else 0
            if publisher.last is None or batch >= publisher.last.batch:
                publisher.restore_batch(batch=batch, rows=count, schema=ddl, control=query_tuples)
            else:
                publisher.history[batch] = Published(
                    batch=batch, rows=count, schema=ddl, control=query_tuples
                )
