"""Where the bytes of a stream's segments are in a bucket.

A segment is either one object, or the parts that were uploaded while it grew. Its first
`HEADER_BYTES` are the header page, which is rebuilt from `Piece.sequence`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from pe_agent.log.objects.chain import Link, link_key
from pe_agent.log.segments import HEADER_BYTES


class Piece(NamedTuple):
    """Bytes of a segment in an object.

    Attributes:
        segment: number of the segment.
        start: offset of the first byte in the segment; `HEADER_BYTES` for a whole segment.
        end: offset behind the last one.
        sequence: sequence of the segment's first frame.
        key: key of the object, relative to the stream's folder.
        is_whole: the object is a segment file with its header page, not a part.
    """

    segment: int
    start: int
    end: int
    sequence: int
    key: str
    is_whole: bool


def segment_key(number: int, owner: int) -> str:
    """Return the key of a whole segment."""
    return f"segments/{number:010d}-{owner:010d}.segment"


def index_key(number: int, owner: int) -> str:
    """Return the key of a segment's index."""
    return f"segments/{number:010d}-{owner:010d}.index"


def index_of(key: str) -> str:
    """Return the key of the index of a whole segment's key."""
    return f"{key.removesuffix('.segment')}.index"


def parse_segment_key(name: str) -> tuple[int, int] | None:
    """Return number and owner of a segment's key without its folder, None for other keys."""
    stem, _, suffix = name.partition(".")
    number, _, owner = stem.partition("-")
    if suffix != "segment" or not (number.isdigit() and owner.isdigit()):
        return None
    return int(number), int(owner)


def piece_of(link: Link) -> Piece:
    """Return the piece that a part has."""
    head = link.head
    return Piece(
        head["segment"],
        head["start"],
        head["start"] + len(link.body),
        head["sequence"],
        link_key("parts", link.owner, link.number),
        is_whole=False,
    )


class Recorded(NamedTuple):
    """What a snapshot has of a stream.

    Attributes:
        inherited: pieces that its owner took over from earlier ones.
        segments: numbers of the segments in the log. Those below the last that are not listed were
            removed, even if the bucket still has objects of them.
    """

    inherited: list[Piece]
    segments: list[int]

    def has(self, segment: int) -> bool:
        """Return whether a segment was not removed."""
        return segment in self.segments or segment > max(self.segments, default=0)

    @staticmethod
    def decode(data: list[list[Any]]) -> Recorded:
        """Decode from JSON."""
        inherited, numbers = data
        return Recorded([Piece(*one) for one in inherited], list(numbers))


def arrange(inherited: Iterable[Piece], own: Iterable[Piece]) -> dict[int, list[Piece]]:
    """Return the pieces of each segment, in order and without gap or overlap.

    Args:
        inherited: pieces that the owner took over from earlier ones.
        own: pieces that it wrote. Where it wrote a whole segment, nothing else counts. Its parts
            continue what it inherited.
    """
    arranged: dict[int, list[Piece]] = {}
    for piece in sorted(inherited, key=_place):
        _continue(arranged.setdefault(piece.segment, []), piece)
    own = sorted(own, key=_place)
    for piece in own:
        if piece.is_whole:
            arranged[piece.segment] = [piece]
    for piece in own:
        if not piece.is_whole:
            _continue(arranged.setdefault(piece.segment, []), piece)
    return dict(sorted((number, pieces) for number, pieces in arranged.items() if pieces))


def end_of(arranged: dict[int, list[Piece]]) -> tuple[int, int]:
    """Return segment and offset behind the last byte; (0, 0) without pieces."""
    if not arranged:
        return 0, 0
    number = max(arranged)
    return number, arranged[number][-1].end


def _place(piece: Piece) -> tuple[int, int, bool]:
    return piece.segment, piece.start, not piece.is_whole


def _continue(pieces: list[Piece], piece: Piece) -> None:
    end = pieces[-1].end if pieces else HEADER_BYTES
    if piece.start == end:
        pieces.append(piece)
