"""Which epochs of a stream are retained, noted durably before others lose their bytes.

The log alone does not say whether an epoch that is not in it was removed or got lost: its files
may have been deleted or cut off while no agent ran. So what is to be removed is noted first, here
and for the parts of epochs that lie at fellows. A note only ever takes epochs away, so an older
one never replaces a newer one.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from pe_agent.agent.state.store import Store
from streambroker_core.ledger.epochs import Stream

RetainedLevel: TypeAlias = "dict[str, Any]"
"""``next`` of the stream; ``kept``, the epochs below that are retained or missing, as ascending
ranges; ``rows`` before each of these and before ``next``; ``sealed``."""


def current_level(stream: Stream) -> RetainedLevel:
    """Return what is retained of a stream; what is missing from its log is still expected there."""
    whole = [(stream.complete_from, stream.next)] if stream.complete_from < stream.next else []
    kept = sorted([*stream.missing, *((n, n + 1) for n in stream.isolated), *whole])
    return {
        "next": stream.next,
        "kept": [list(one) for one in kept],
        "rows": [*(stream.rows_before(first) for first, _ in kept), stream.rows],
        "sealed": stream.sealed,
    }


def record(store: Store, id_: str, level: RetainedLevel) -> None:
    """Note durably what is retained of a stream, if more is removed than was noted before."""
    before = read(store, id_)
    if before is not None and _count_removed(level) <= _count_removed(before):
        return
    with store.transaction(durable=True) as db:
        row = db.execute("SELECT value FROM meta WHERE name = ?", (_meta_key(id_),)).fetchone()
        if row is None or _count_removed(level) > _count_removed(json.loads(row[0])):
            write(id_, level, db)


def write(id_: str, level: RetainedLevel, db: sqlite3.Connection) -> None:
    """Note what is retained of a stream in a transaction."""
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_meta_key(id_), json.dumps(level)))


def forget(id_: str, db: sqlite3.Connection) -> None:
    """Forget what was noted of a stream, in a transaction."""
    db.execute("DELETE FROM meta WHERE name = ?", (_meta_key(id_),))


def read(store: Store, id_: str) -> RetainedLevel | None:
    """Return what was noted of a stream; None where nothing was."""
    level: RetainedLevel | None = store.value(_meta_key(id_), json.loads, None)
    return level


def restore_missing(stream: Stream, level: RetainedLevel) -> None:
    """Find out what a stream has lost, whose epochs in the log were added."""
    starts = [*(first for first, _ in level["kept"]), level["next"]]
    for number, rows in zip(starts, level.get("rows", ()), strict=False):
        stream.restore_sum(number, rows)
    stream.set_expected(
        [*((low, high) for low, high in level["kept"]), (level["next"], stream.next)]
    )


def is_retained(number: int, level: Mapping[str, Any]) -> bool:
    """Whether an epoch is retained."""
    return number >= level["next"] or is_in_ranges(number, level["kept"])


def is_in_ranges(number: int, ranges: Sequence[Sequence[int]]) -> bool:
    """Whether a number is in one of some ranges."""
    return any(first <= number < next_ for first, next_ in ranges)


def _count_removed(level: Mapping[str, Any]) -> int:
    kept: int = sum(next_ - first for first, next_ in level["kept"])
    return int(level["next"]) - kept


def _meta_key(stream: str) -> str:
    return f"released/{stream}"
