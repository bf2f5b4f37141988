"""Which agent owns what a PE has in object storage.

Each agent takes a number at its start, one above all earlier ones. It then seals the chain of state
snapshots of the earlier owners, newest first, until it finds one that wrote a snapshot. That
owner's last snapshot is what it takes over. Every owner writes a snapshot before anything else, so
owners without one have written nothing, and now never will.
"""

from __future__ import annotations

import json
import secrets
import zlib
from dataclasses import dataclass, field
from typing import Any

from pe_agent.log.objects.bucket import Bucket, BucketUnfitError
from pe_agent.log.objects.chain import LinkUnreadable, read_links, seal
from pe_agent.log.objects.pieces import Recorded

STATE = "state"
FORMAT = 1
KEPT_SNAPSHOTS = 8
"""Newest snapshots of an owner that stay, so that an old listing still leads to the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """State of an agent's exports, as an owner wrote it.

    Attributes:
        owner: its number.
        database: content of ``state.sqlite`` without secrets.
        streams: pieces and segments of each stream, by id.
    """

    owner: int
    database: bytes = field(repr=False)
    streams: dict[str, Recorded]


def claim(bucket: Bucket) -> int:
    """Return a new owner number, greater than all before.

    Raises:
        BucketUnfitError: the store has no conditional puts.
        BucketError: the store is unavailable.
    """
    content = json.dumps({"nonce": secrets.token_hex(16)}).encode()
    number = 0
    while True:
        numbers = [int(name) for name in bucket.list("owners") if name.isdigit()]
        # A listing may be old: it may lack a number that was found to be taken.
        number = max(number, *numbers, 0) + 1
        key = f"owners/{number:010d}"
        if bucket.put_new(key, content):
            _check_conditional_put(bucket, key)
            return number


def _check_conditional_put(bucket: Bucket, key: str) -> None:
    """Try to write an object that exists."""
    if bucket.put_new(key, secrets.token_bytes(16)):
        raise BucketUnfitError(
            f"{bucket.url}: the object store ignores `If-None-Match: *`, so two agents could"
            " publish the same epoch. Use a store, or settings of it, with conditional puts."
        )


def take_over(bucket: Bucket, owner: int) -> Snapshot | None:
    """End the snapshots of all earlier owners; return the last one, None if there is none.

    Raises:
        Superseded: a later owner has taken over.
        LinkUnreadable: a newer release wrote the snapshot.
        BucketError: the store is unavailable.
    """
    for earlier in range(owner - 1, 0, -1):
        numbers = seal(bucket, STATE, earlier, by=owner)
        if numbers:
            (link,) = read_links(bucket, STATE, earlier, numbers[-1:])
            return _decode(bucket, earlier, link.head, link.body)
    return None


def delete_earlier(bucket: Bucket, owner: int) -> None:
    """Delete the snapshots of earlier owners, but not their seals; ``owner`` has its own by now.

    Raises:
        BucketError: the store is unavailable; call again, or leave them.
    """
    earlier = [key for key in sorted(bucket.list(STATE)) if int(key.partition("/")[0]) < owner]
    seals = {key.partition("/")[0]: key for key in earlier}
    bucket.delete(f"{STATE}/{key}" for key in earlier if key not in seals.values())
    claimed = sorted(bucket.list("owners"))
    bucket.delete(f"owners/{name}" for name in claimed[:-KEPT_SNAPSHOTS])


def encode(database: bytes, streams: dict[str, Recorded]) -> tuple[dict[str, Any], bytes]:
    """Return head and body of a snapshot."""
    return {"format": FORMAT, "streams": streams}, zlib.compress(database, 1)


def _decode(bucket: Bucket, owner: int, head: dict[str, Any], body: bytes) -> Snapshot:
    if head.get("format") != FORMAT:
        raise LinkUnreadable(
            f"{bucket.url}: the state of owner {owner} has format {head.get('format')}; this"
            f" release reads format {FORMAT}. Start the agent of the release that wrote it, or a"
            " newer one."
        )
    return Snapshot(
        owner=owner,
        database=zlib.decompress(body),
        streams={id_: Recorded.decode(one) for id_, one in head["streams"].items()},
    )
