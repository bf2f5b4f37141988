"""Durable record of a stream's retained epochs, written before epochs are removed.

The log alone cannot distinguish removed epochs from lost ones: its files may have been deleted or
truncated while no agent ran. So removals are recorded first.
Retention only shrinks, so an older record never replaces a newer one.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from pe_agent.agent.state.store import Store
from streambroker_core.ledger.epochs import Stream

RetainedLevel: TypeAlias = "dict[str, Any]"
"""``next`` of the stream; ``kept``, ascending ranges of earlier epochs that are retained or
missing; ``rows`` before each range and before ``next``; ``sealed``."""


def current_level(stream: Stream) -> RetainedLevel:
    """Return the retained epochs of a stream, including those missing from its log."""
    complete = [(stream.complete_from, stream.next)] if stream.complete_from < stream.next else []
    ranges = sorted([*stream.missing, *((n, n + 1) for n in stream.isolated), *complete])
    return {
        "next": stream.next,
        "kept": [list(epoch_range) for epoch_range in ranges],
        "rows": [*(stream.rows_before(first) for first, _ in ranges), stream.rows],
        "sealed": stream.sealed,
    }


def record(store: Store, id_: str, level: RetainedLevel) -> None:
    """Store the level durably if it removes more epochs than the stored one."""
    before = read(store, id_)
    if before is not None and _count_removed(level) <= _count_removed(before):
        return
    with store.transaction(durable=True) as db:
        row = db.execute("SELECT value FROM meta WHERE name = ?", (_meta_key(id_),)).fetchone()
        if row is None or _count_removed(level) > _count_removed(json.loads(row[0])):
            write(id_, level, db)


def write(id_: str, level: RetainedLevel, db: sqlite3.Connection) -> None:
    """Store the level in a transaction."""
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_meta_key(id_), json.dumps(level)))


def forget(id_: str, db: sqlite3.Connection) -> None:
    """Delete the stored level, in a transaction."""
    db.execute("DELETE FROM meta WHERE name = ?", (_meta_key(id_),))


def read(store: Store, id_: str) -> RetainedLevel | None:
    """Return the stored level of a stream; None if there is none."""
    level: RetainedLevel | None = store.value(_meta_key(id_), json.loads, None)
    return level


def restore_missing(stream: Stream, level: RetainedLevel) -> None:
    """Determine a stream's missing epochs; its present epochs must be added before."""
    starts = [*(first for first, _ in level["kept"]), level["next"]]
    for number, rows in zip(starts, level.get("rows", ()), strict=False):
        stream.restore_sum(number, rows)
    stream.set_expected(
        [*((low, high) for low, high in level["kept"]), (level["next"], stream.next)]
    )


def is_retained(number: int, level: Mapping[str, Any]) -> bool:
    """Return whether an epoch is retained."""
    return number >= level["next"] or is_in_ranges(number, level["kept"])


def is_in_ranges(number: int, ranges: Sequence[Sequence[int]]) -> bool:
    """Return whether a number is in one of the ranges."""
    return any(first <= number < next_ for first, next_ in ranges)


def _count_removed(level: Mapping[str, Any]) -> int:
    retained: int = sum(next_ - first for first, next_ in level["kept"])
    return int(level["next"]) - retained


def _meta_key(stream: str) -> str:
    return f"released/{stream}"
