"""Restores the files of a stream's log from object storage at an agent's start.

The growing segment is written from its parts. Of a full segment only the index is fetched, and a
file with the suffix `segments.REMOTE_SUFFIX` stands for it until one of its frames is read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from pe_agent.log import index, segments
from pe_agent.log.atomic_file import replace_file, sync_directory
from pe_agent.log.errors import LogCorrupt
from pe_agent.log.objects.bucket import Bucket
from pe_agent.log.objects.chain import body_of, read_links, seal
from pe_agent.log.objects.pieces import (
    Piece,
    Recorded,
    arrange,
    end_of,
    index_key,
    parse_segment_key,
    piece_of,
)

FETCHES = 16
"""Objects fetched at a time."""

_START_AGAIN = (
    "something else has deleted it; start the agent again, which reports its epochs as lost, so"
    " that readers that accept losses go on"
)

log = logging.getLogger("pe_agent")


@dataclass(slots=True, kw_only=True)
class StoredLog:
    """What the bucket has of a stream.

    Attributes:
        pieces: bytes by segment.
        uploaded: segment and offset behind the last one.
    """

    pieces: dict[int, list[Piece]] = field(default_factory=dict)
    bodies: dict[str, bytes] = field(default_factory=dict, repr=False)
    """Content of parts, by key."""

    @property
    def uploaded(self) -> tuple[int, int]:
        """Segment and offset behind the last byte; (0, 0) without any."""
        return end_of(self.pieces)

    def cut(self, position: tuple[int, int]) -> None:
        """Leave out what is behind a position."""
        number, end = position
        kept = {n: of for n, of in self.pieces.items() if n <= number}
        if number in kept:
            pieces = [one._replace(end=min(one.end, end)) for one in kept[number]]
            kept[number] = [one for one in pieces if one.start < one.end]
        self.pieces = {n: of for n, of in kept.items() if of}

    def inherited(self) -> list[Piece]:
        """Return all pieces."""
        return [piece for pieces in self.pieces.values() for piece in pieces]


def read_stored_log(bucket: Bucket, *, owner: int, by: int, recorded: Recorded) -> StoredLog:
    """End what an earlier owner may write of a stream; return what the bucket has of it.

    Args:
        bucket: folder of the stream.
        owner: the earlier owner.
        by: the owner that takes over.
        recorded: what its last snapshot has of the stream.

    Raises:
        Superseded: a later owner than ``by`` has taken over.
        BucketError: the store is unavailable.
    """
    numbers = seal(bucket, "parts", owner, by=by)
    own, bodies = [], {}
    for link in read_links(bucket, "parts", owner, numbers):
        if "start" not in link.head:
            continue
        piece = piece_of(link)
        own.append(piece)
        bodies[piece.key] = link.body
    # After the parts: a part is deleted once its segment is there.
    sizes = {f"segments/{name}": size for name, size in bucket.list("segments").items()}
    for key, size in sizes.items():
        number, written_by = parse_segment_key(key.removeprefix("segments/")) or (0, 0)
        if written_by == owner:
            own.append(Piece(number, segments.HEADER_BYTES, size, 0, key, is_whole=True))
    kept = [one for one in recorded.inherited if not one.is_whole or one.key in sizes]
    arranged = arrange(kept, own)
    return StoredLog(
        pieces={number: of for number, of in arranged.items() if recorded.has(number)},
        bodies=bodies,
    )


def restore_files(bucket: Bucket, stored: StoredLog, directory: Path) -> None:
    """Write the files that the directory lacks; existing ones that have as much stay.

    Raises:
        BucketError: the store is unavailable.
        OSError: the disk is full or fails.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _remove_stand_ins(directory, stored)
    local = [int(path.stem) for path in segments.list_paths(directory)]
    # What is only in part in the bucket, and older than what the disk has, was removed here.
    due = {
        number: pieces
        for number, pieces in stored.pieces.items()
        if _size(segments.segment_path(directory, number)) < pieces[-1].end
        and (pieces[0].is_whole or number in local or number >= max(local, default=0))
    }
    last = max(stored.pieces, default=0)

    def restore(number: int) -> None:
        path, pieces = segments.segment_path(directory, number), due[number]
        if number == last or not pieces[0].is_whole or not _stand_in(bucket, path, pieces[0]):
            data = _read(bucket, stored, number)
            if data is None:
                log.error("%s: %s is missing, its frames are lost", bucket.url, pieces[0].key)
            else:
                _write(path, data)

    with ThreadPoolExecutor(FETCHES) as pool:
        list(pool.map(restore, due))
    sync_directory(directory)


def _remove_stand_ins(directory: Path, stored: StoredLog) -> None:
    """Remove what stands for segments whose objects something else has deleted."""
    for path in segments.list_remote_ends(directory):
        if int(path.stem) not in stored.pieces and not path.exists():
            segments.remote_path(path).unlink()
            index.index_path(path).unlink(missing_ok=True)


def fetcher(bucket: Bucket, stored: StoredLog, directory: Path) -> Callable[[int], None]:
    """Return a function that brings a segment of which only the index is there."""

    def fetch(number: int) -> None:
        path = segments.segment_path(directory, number)
        if path.exists() or not segments.remote_path(path).exists():
            return
        data = _read(bucket, stored, number)
        if data is None:
            missing = f"{stored.pieces[number][0].key} is missing in {bucket.url}"
            raise LogCorrupt(path, offset=0, reason=missing, remedy=_START_AGAIN)
        _write(path, data)

    return fetch


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _stand_in(bucket: Bucket, path: Path, piece: Piece) -> bool:
    """Fetch the index of a segment; return whether it lists all of it."""
    number, owner = parse_segment_key(piece.key.removeprefix("segments/")) or (0, 0)
    entries = bucket.get(index_key(number, owner))
    if entries is None:
        return False
    index.index_path(path).write_bytes(entries)
    if index.end_of(path, begin=segments.HEADER_BYTES) != piece.end:
        return False
    replace_file(segments.remote_path(path), str(piece.end), durable=True)
    return True


def _read(bucket: Bucket, stored: StoredLog, number: int) -> bytes | None:
    """Return the content of a segment's file, up to a missing part; None without any object."""
    first, *_ = pieces = stored.pieces[number]
    if first.is_whole:
        return bucket.get(first.key)
    bodies = []
    for piece in pieces:
        body = stored.bodies.get(piece.key)
        if body is None and (data := bucket.get(piece.key)) is not None:
            body = body_of(data)
        if body is None:
            log.error("%s: %s is missing, frames behind it are lost", bucket.url, piece.key)
            break
        bodies.append(body[: piece.end - piece.start])
    return b"".join([segments.new_header(number, first.sequence), *bodies])


def _write(path: Path, data: bytes) -> None:
    """Write a segment's file, all of whose frames are safe in the bucket."""
    fresh = path.with_name(path.name + segments.NEW_SUFFIX)
    with fresh.open("w+b") as file:
        file.write(data)
        file.flush()
        segments.write_mark(file.fileno(), len(data))
    fresh.rename(path)
    segments.remote_path(path).unlink(missing_ok=True)
