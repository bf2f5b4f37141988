"""Lists that stand still while they are read page by page.

The first page of a list that is cut off takes a snapshot: references to immutable
items, not copies. The following pages are read from it, however much the broker
changes meanwhile. A few snapshots of each reader are kept for a few minutes; one that is
gone is `ListExpired`, and the reader begins anew.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streambroker_core.wire.broker.hints import Point
from streambroker_core.wire.encoding.canonical import canonical
from streambroker_operator.errors import RequestError

MAX_SNAPSHOTS = 4
"""Of one reader."""
MAX_ITEMS = 4_000_000
"""Of all readers; who has most loses first what was not read for longest."""
SNAPSHOT_TTL_S = 300.0
"""How long a snapshot is kept after it was last read, in seconds."""

Item = Callable[[], Any]
"""Gives an item's JSON-like data, always the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which list is meant: what of which namespace, and who reads it."""

    list_name: str
    namespace: str
    reader: str = ""


@dataclass(slots=True, kw_only=True)
class _Snapshot:
    items: Sequence[Item]
    point: Point
    read_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A part of a list.

    Attributes:
        items: in their order.
        point: of the board when the list was taken.
        token: continues the list; None at its end.
        remaining: how many items follow.
    """

    items: Sequence[Item]
    point: Point
    token: str | None = None
    remaining: int = 0


class Snapshots:
    """The lists that are being read.

    Args:
        session: a text that no other run of the broker has.
        secret: signs the tokens.
    """

    def __init__(self, session: str, secret: bytes) -> None:
        self._session = session
        self._secret = secret
        # By reader, then by name; what was read last is last.
        self._snapshots: dict[str, OrderedDict[str, _Snapshot]] = {}

    def first_page(
        self,
        selection: Selection,
        change: int,
        point: Point,
        items: Sequence[Item],
        limit: int | None,
        now: float,
    ) -> Page:
        """Return the first page of a list; keep the list if that is not all.

        Args:
            selection: what is listed.
            change: counts the changes of the board; lists at the same count are one.
            point: of the board.
            items: the whole list.
            limit: items of a page; None for all.
            now: seconds of any clock that only goes forward.
        """
        if limit is None or len(items) <= limit:
            return Page(items=items, point=point)
        name = f"{self._session}.{change}.{selection.list_name}.{selection.namespace}"
        mine = self._snapshots.setdefault(selection.reader, OrderedDict())
        kept = mine.setdefault(name, _Snapshot(items=items, point=point, read_at=now))
        kept.read_at = now
        mine.move_to_end(name)
        self._evict(now)
        return self._page(name, kept, selection, 0, limit)

    def next_page(self, selection: Selection, token: str, limit: int | None, now: float) -> Page:
        """Return the page that a token continues with.

        Raises:
            RequestError: 400, the token is not of this list; 410, the list is gone.
        """
        name, start = self._read(selection, token)
        self._evict(now)
        mine = self._snapshots.get(selection.reader, OrderedDict())
        kept = mine.get(name)
        if kept is None:
            raise RequestError(
                410,
                "ListExpired",
                "The list that this continues is kept no longer; begin it anew, without continue.",
            )
        kept.read_at = now
        mine.move_to_end(name)
        return self._page(name, kept, selection, start, limit)

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
        for who, mine in list(self._snapshots.items()):
            old = [name for name, kept in mine.items() if now - kept.read_at > SNAPSHOT_TTL_S]
            for name in old:
                del mine[name]
            while len(mine) > MAX_SNAPSHOTS:
                mine.popitem(last=False)
            if not mine:
                del self._snapshots[who]
        held = {who: _count_items(mine) for who, mine in self._snapshots.items()}
        while sum(held.values()) > MAX_ITEMS:
            most = max(held, key=lambda who: held[who])
            if len(self._snapshots[most]) == 1:
                return
            self._snapshots[most].popitem(last=False)
            held[most] = _count_items(self._snapshots[most])

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
        mark, content = raw[:16], raw[16:]
        if hmac.compare_digest(mark, self._signature(content)):
            what, namespace, name, start = json.loads(content)
            if (what, namespace) == (selection.list_name, selection.namespace):
                return str(name), int(start)
        raise RequestError(
            400, "QueryInvalid", "continue= is not what the last page of this list answered."
        )


def _count_items(snapshots: Mapping[str, _Snapshot]) -> int:
    return sum(len(one.items) for one in snapshots.values())
