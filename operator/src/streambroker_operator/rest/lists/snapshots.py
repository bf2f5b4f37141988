"""Snapshots of lists, so that a list does not change while it is read page by page.

- The first page of a long list takes a snapshot: references to immutable items, not copies.
- Further pages are read from the snapshot, unaffected by later changes.
- Each reader keeps a few snapshots for a few minutes. If one has expired, the reader receives
  `ListExpired` and has to start again.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streambroker_core.wire.broker.hints import Point
from streambroker_core.wire.encoding.canonical import canonical
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.http.requests import query_error

MAX_SNAPSHOTS = 4
"""Maximum number of snapshots per reader."""
MAX_ITEMS = 4_000_000
"""Maximum number of items of all readers; the reader with most items loses its oldest snapshot."""
SNAPSHOT_TTL_S = 300.0
"""How long a snapshot is kept after the last read, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Identifies a list: its name, namespace and reader."""

    list_name: str
    namespace: str
    reader: str = ""


@dataclass(slots=True, kw_only=True)
class _Snapshot:
    items: Sequence[Any]
    point: Point
    read_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of a list.

    Attributes:
        items: in list order.
        point: of the board when the snapshot was taken.
        token: continues the list; None at its end.
        remaining: number of items that follow.
    """

    items: Sequence[Any]
    point: Point
    token: str | None = None
    remaining: int = 0


class Snapshots:
    """Snapshots of all readers.

    Args:
        session: unique for each run of the broker.
        secret: signs the continuation tokens.
    """

    def __init__(self, session: str, secret: bytes) -> None:
        self._session = session
        self._secret = secret
        # By reader, then by name; the most recently read is last.
        self._snapshots: dict[str, OrderedDict[str, _Snapshot]] = {}

    def first_page(
        self,
        selection: Selection,
        change: int,
        point: Point,
        items: Sequence[Any],
        limit: int | None,
        now: float,
    ) -> Page:
        """Return the first page of a list; take a snapshot if more pages follow.

        Lists at the same number `change` of the change log share a snapshot. `limit` None means all
        items; `now` is monotonic time in seconds.
        """
        if limit is None or len(items) <= limit:
            return Page(items=items, point=point)
        name = f"{self._session}.{change}.{selection.list_name}.{selection.namespace}"
        mine = self._snapshots.setdefault(selection.reader, OrderedDict())
        snapshot = mine.setdefault(name, _Snapshot(items=items, point=point, read_at=now))
        snapshot.read_at = now
        mine.move_to_end(name)
        self._evict(now)
        return self._page(name, snapshot, selection, 0, limit)

    def next_page(self, selection: Selection, token: str, limit: int | None, now: float) -> Page:
        """Return the page that a token continues with.

        Raises:
            RequestError: 400, the token is not of this list; 410, the snapshot has expired.
        """
        name, start = self._read(selection, token)
        self._evict(now)
        mine = self._snapshots.get(selection.reader, OrderedDict())
        snapshot = mine.get(name)
        if snapshot is None:
            raise RequestError(
                410,
                "ListExpired",
                "The list that this request continues is no longer stored; start again, without"
                " continue.",
            )
        snapshot.read_at = now
        mine.move_to_end(name)
        return self._page(name, snapshot, selection, start, limit)

    def _page(
        self, name: str, snapshot: _Snapshot, selection: Selection, start: int, limit: int | None
    ) -> Page:
        end = len(snapshot.items) if limit is None else min(start + limit, len(snapshot.items))
        remaining = len(snapshot.items) - end
        return Page(
            items=snapshot.items[start:end],
            point=snapshot.point,
            token=self._token(selection, name, end) if remaining else None,
            remaining=remaining,
        )

    def _evict(self, now: float) -> None:
        for reader, mine in list(self._snapshots.items()):
            expired = [
                name for name, snapshot in mine.items() if now - snapshot.read_at > SNAPSHOT_TTL_S
            ]
            for name in expired:
                del mine[name]
            while len(mine) > MAX_SNAPSHOTS:
                mine.popitem(last=False)
            if not mine:
                del self._snapshots[reader]
        counts = {reader: _count_items(mine) for reader, mine in self._snapshots.items()}
        while sum(counts.values()) > MAX_ITEMS:
            largest = max(counts, key=lambda who: counts[who])
            if len(self._snapshots[largest]) == 1:
                return
            self._snapshots[largest].popitem(last=False)
            counts[largest] = _count_items(self._snapshots[largest])

    def _token(self, selection: Selection, name: str, start: int) -> str:
        content = canonical([selection.list_name, selection.namespace, name, start])
        return base64.urlsafe_b64encode(self._signature(content) + content).decode().rstrip("=")

    def _signature(self, content: bytes) -> bytes:
        return hmac.digest(self._secret, b"continue:" + content, hashlib.sha256)[:16]

    def _read(self, selection: Selection, token: str) -> tuple[str, int]:
        try:
            raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        signature, content = raw[:16], raw[16:]
        if hmac.compare_digest(signature, self._signature(content)):
            list_name, namespace, name, start = json.loads(content)
            if (list_name, namespace) == (selection.list_name, selection.namespace):
                return str(name), int(start)
        raise query_error("continue= is not the value that the last page of this list returned.")


def _count_items(snapshots: Mapping[str, _Snapshot]) -> int:
    return sum(len(snapshot.items) for snapshot in snapshots.values())
