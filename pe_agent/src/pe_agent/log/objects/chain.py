"""Chains of immutable numbered objects, which fence their writers.

Each owner of a stream writes a chain of its own: ``<chain>/<owner>/<number>``, numbered from 0.
It never skips a number and never uses one again. A later owner ends the chain: it puts a *seal*
under the next number. Each of the two puts succeeds only if the object does not exist. So either
the seal is first, and the earlier owner learns that it is superseded, or its object is first, and
the later owner reads it. A seal is never deleted, therefore an owner that was suspended for any
length of time cannot write behind it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pe_agent.log.errors import Superseded
from pe_agent.log.objects.bucket import Bucket
from streambroker_core.errors import StreambrokerError


class LinkUnreadable(StreambrokerError):  # noqa: N818 - a state, shown as such
    """An object of a chain is not one of ours."""

    code = "StorageDamaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One object of a chain.

    Attributes:
        owner: number of the owner that wrote it.
        number: its place in the owner's chain.
        head: description of the body.
        body: content.
    """

    owner: int
    number: int
    head: dict[str, Any]
    body: bytes = field(repr=False)


class Chain:
    """The chain of one owner, for its writer. Not thread-safe."""

    def __init__(self, bucket: Bucket, name: str, owner: int) -> None:
        self._bucket = bucket
        self._name = name
        self._owner = owner
        self._unsure: bytes | None = None
        """Content of the next object, which may have been written already."""
        self.next = 0

    def append(self, head: dict[str, Any], body: bytes = b"") -> int:
        """Write the next object; return its number.

        If an earlier call failed with `BucketError`, its object is written first, unless this call
        repeats it.

        Raises:
            Superseded: a later owner has sealed the chain.
            BucketError: the store is unavailable; the object may have been written.
        """
        data = self._encode_next(head, body)
        if self._unsure is not None and self._unsure != data:
            self._put(self._unsure)
            data = self._encode_next(head, body)
        return self._put(data)

    def _encode_next(self, head: dict[str, Any], body: bytes) -> bytes:
        return _encode({**head, "owner": self._owner, "number": self.next}, body)

    def _put(self, data: bytes) -> int:
        number = self.next
        key = link_key(self._name, self._owner, number)
        self._unsure = data
        if not self._bucket.put_new(key, data):
            raise superseded_error(self._bucket, key)
        self._unsure = None
        self.next += 1
        return number

    def delete(self, numbers: Iterable[int]) -> None:
        """Delete objects that are no longer needed; the last one of the chain must stay."""
        self._bucket.delete(link_key(self._name, self._owner, one) for one in numbers)


def link_key(chain: str, owner: int, number: int) -> str:
    """Return the key of an object of a chain."""
    return f"{chain}/{owner:010d}/{number:012d}"


def seal(bucket: Bucket, chain: str, owner: int, *, by: int) -> list[int]:
    """End the chain of an earlier owner; return the numbers of its objects, without the seal.

    A listing may be old: what it lacks at the end is found by the put of the seal.

    Raises:
        Superseded: an owner later than ``by`` sealed the chain.
        BucketError: the store is unavailable.
    """
    numbers = _numbers(bucket, chain, owner)
    mark = _encode({"seal": by, "nonce": secrets.token_hex(8)}, b"")
    number = numbers[-1] + 1 if numbers else 0
    if numbers and (sealed_by := _sealed_by(bucket, chain, owner, numbers[-1])) is not None:
        _check_order(bucket, chain, sealed_by, by)
        return numbers[:-1]
    while True:
        while not bucket.put_new(link_key(chain, owner, number), mark):
            if (sealed_by := _sealed_by(bucket, chain, owner, number)) is not None:
                _check_order(bucket, chain, sealed_by, by)
                return numbers
            numbers.append(number)
            number += 1
        # The owner may have deleted this number meanwhile, but never its last one.
        later = [one for one in _numbers(bucket, chain, owner) if one > number]
        if not later:
            return numbers
        numbers += later
        number = later[-1] + 1


def _numbers(bucket: Bucket, chain: str, owner: int) -> list[int]:
    return sorted(int(key) for key in bucket.list(f"{chain}/{owner:010d}") if key.isdigit())


def read_links(bucket: Bucket, chain: str, owner: int, numbers: list[int]) -> Iterator[Link]:
    """Yield objects of a chain; those that were deleted meanwhile are left out.

    Raises:
        LinkUnreadable: an object has another format.
        BucketError: the store is unavailable.
    """
    for number in numbers:
        key = link_key(chain, owner, number)
        data = bucket.get(key)
        if data is not None:
            head, body = _decode(bucket, key, data)
            yield Link(owner=owner, number=number, head=head, body=body)


def body_of(data: bytes) -> bytes:
    """Return the body in an object's content."""
    return data.partition(b"\n")[2]


def superseded_error(bucket: Bucket, key: str) -> Superseded:
    """Return the error for an owner whose next object another one has written."""
    return Superseded(
        f"another agent of this PE has taken over its exports in {bucket.url} ({key} exists). This"
        " one publishes no more. Stop it; if both are meant to run, give each its own job or PE."
    )


def _check_order(bucket: Bucket, chain: str, sealed_by: int, by: int) -> None:
    if sealed_by > by:
        raise superseded_error(bucket, f"{chain}, sealed by owner {sealed_by}, later than {by},")


def _sealed_by(bucket: Bucket, chain: str, owner: int, number: int) -> int | None:
    key = link_key(chain, owner, number)
    data = bucket.get(key)
    if data is None:
        return None
    head, _ = _decode(bucket, key, data)
    return head.get("seal")


def _encode(head: dict[str, Any], body: bytes) -> bytes:
    return json.dumps(head, sort_keys=True).encode() + b"\n" + body


def _decode(bucket: Bucket, key: str, data: bytes) -> tuple[dict[str, Any], bytes]:
    line, _, body = data.partition(b"\n")
    try:
        head = json.loads(line)
    except ValueError as error:
        raise LinkUnreadable(f"{bucket.url}: {key} was not written by an agent: {error}") from error
    if not isinstance(head, dict):
        raise LinkUnreadable(f"{bucket.url}: {key} was not written by an agent")
    return head, body
