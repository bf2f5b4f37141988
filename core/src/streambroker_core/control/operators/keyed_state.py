"""Keyed state of one bucket: a sorted map in blobs, of which a window reads and writes few.

A *root* blob maps ranges of keys to blocks. A *block* holds up to ``BLOCK_KEYS`` keys with their
values. A window reads the root and the blocks of the keys that it uses, and writes the blocks that
it changed. The root is written when a block was added or removed.

Keys and values are bytes; keys are compared as bytes. For entries that are due at a time, use keys
that begin with :func:`time_key`, and :meth:`KeyedState.scan`.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from streambroker_core.control.operators.operator import Blobs, Changes, StateError

BLOCK_KEYS = 256
BLOCK_BYTES = 64 * 1024
_VERSION = 2
_HEAD = struct.Struct("<BII")
_ENTRY = struct.Struct("<II")
_BLOCK = struct.Struct("<II")
_MARK = 2**32 - 1
"""First field of a block of format 2; in format 1 it is the size of a key."""
_SIGN = 1 << 63


def time_key(time: int) -> bytes:
    """Return eight bytes that compare like the times."""
    return (time + _SIGN).to_bytes(8, "big")


def time_from_key(key: bytes) -> int:
    """Return the time with which a key begins."""
    return int.from_bytes(key[:8], "big") - _SIGN


@dataclass(slots=True)
class _Block:
    """Sorted keys, their values, and their approximate size in bytes."""

    keys: list[bytes] = field(default_factory=list)
    values: dict[bytes, bytes] = field(default_factory=dict)
    size: int = 0

    def put(self, key: bytes, value: bytes) -> None:
        old = self.values.get(key)
        if old is None:
            insort(self.keys, key)
            self.size += len(key) + _ENTRY.size
        self.size += len(value) - len(old or b"")
        self.values[key] = value

    def remove(self, key: bytes) -> None:
        del self.keys[bisect_left(self.keys, key)]
        self.size -= len(key) + _ENTRY.size + len(self.values.pop(key))

    def split_upper(self) -> _Block:
        """Remove and return the upper half of the keys."""
        middle = len(self.keys) // 2
        keys = self.keys[middle:]
        del self.keys[middle:]
        values = {key: self.values.pop(key) for key in keys}
        size = sum(map(len, keys)) + sum(map(len, values.values())) + len(keys) * _ENTRY.size
        self.size -= size
        return _Block(keys, values, size)

    def is_too_big(self) -> bool:
        return len(self.keys) > 1 and (len(self.keys) > BLOCK_KEYS or self.size > BLOCK_BYTES)


class KeyedState:
    """A sorted map from bytes to bytes, in the blobs that begin with a name.

    An operator creates it in ``restore`` (or, without state, in ``begin_window``), and adds
    :meth:`changes` to the result of ``snapshot``. Each name is a separate map.
    """

    def __init__(self, name: str, blobs: Blobs | None = None) -> None:
        """Restore the map.

        Args:
            name: begins with a letter; its blobs are ``<name>`` and ``<name>/<number>``.
            blobs: the bucket's state; None for none.

        Raises:
            StateError: the root is damaged, or of a newer release.
        """
        self._name, self._blobs = name, blobs if blobs is not None else {}
        self._first: list[bytes] = []
        self._numbers: list[int] = []
        self._next = 0
        self._loaded: dict[int, _Block] = {}
        self._changed: set[int] = set()
        self._removed: set[int] = set()
        self._root_changed = False
        self._format = _VERSION
        root = self._blobs.get(name)
        if root is not None:
            self._read_root(root)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if there is none."""
        first = self._first
        if not first:
            return None
        at = bisect_right(first, key) - 1
        return self._block(at if at > 0 else 0).values.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of a key."""
        at = self._find_block(key)
        if at is None:
            at = self._add(0, _Block(), b"")
        block = self._block(at)
        if block.values.get(key) == value:
            return
        block.put(key, value)
        self._changed.add(self._numbers[at])
        if block.is_too_big():
            self._split(at)

    def delete(self, key: bytes) -> bool:
        """Remove a key; False if there is none."""
        at = self._find_block(key)
        if at is None or key not in self._block(at).values:
            return False
        block = self._block(at)
        block.remove(key)
        self._changed.add(self._numbers[at])
        if len(block.keys) < BLOCK_KEYS // 8:
            self._merge_small(at)
        return True

    def scan(self, start: bytes = b"", below: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values in order, from ``start`` up to but excluding ``below``.

        Keys may be put and deleted meanwhile; the scan may or may not yield such keys that are
        still ahead. Reads one block at a time.
        """
        cursor = self._find_from(start, below)
        while cursor is not None:
            block, low = cursor
            high = len(block.keys) if below is None else bisect_left(block.keys, below)
            keys = block.keys[low:high]
            if not keys:
                return
            for key in keys:
                value = block.values.get(key)
                if value is not None:
                    yield key, value
            cursor = self._find_from(keys[-1] + b"\0", below)

    def first(self) -> bytes | None:
        """Return the lowest key; None if there is none."""
        return next((key for key, _ in self.scan()), None)

    def changes(self) -> Changes:
        """Return the blobs to write; None marks a removed blob."""
        out: Changes = {
            f"{self._name}/{number}": None
            for number in sorted(self._removed)
            if f"{self._name}/{number}" in self._blobs
        }
        for number in sorted(self._changed - self._removed):
            out[f"{self._name}/{number}"] = _write(self._loaded[number])
        if self._root_changed or (self._changed and self._format < _VERSION):
            out[self._name] = self._write_root()
        return out

    def _find_block(self, key: bytes) -> int | None:
        return max(0, bisect_right(self._first, key) - 1) if self._first else None

    def _find_from(self, start: bytes, below: bytes | None) -> tuple[_Block, int] | None:
        at = self._find_block(start)
        while at is not None and at < len(self._numbers):
            if below is not None and at and self._first[at] >= below:
                return None
            block = self._block(at)
            low = bisect_left(block.keys, start)
            if low < len(block.keys):
                return block, low
            at += 1
        return None

    def _block(self, at: int) -> _Block:
        number = self._numbers[at]
        block = self._loaded.get(number)
        if block is None:
            name = f"{self._name}/{number}"
            data = self._blobs.get(name)
            if data is None:
                raise StateError(f"state {name} is missing: the store has lost a blob.")
            block = self._loaded[number] = _read(data, name)
        return block

    def _add(self, at: int, block: _Block, first: bytes) -> int:
        self._first.insert(at, first)
        self._numbers.insert(at, self._next)
        self._loaded[self._next] = block
        self._changed.add(self._next)
        self._next += 1
        self._root_changed = True
        return at

    def _split(self, at: int) -> None:
        upper = self._block(at).split_upper()
        self._add(at + 1, upper, upper.keys[0])

    def _merge_small(self, at: int) -> None:
        """Merge a small block into the previous one if there is room; drop an empty one."""
        block = self._block(at)
        if block.keys:
            if not at:
                return
            previous = self._block(at - 1)
            if len(previous.keys) + len(block.keys) > BLOCK_KEYS // 2:
                return
            if previous.size + block.size > BLOCK_BYTES // 2:
                return
            for key in block.keys:
                previous.put(key, block.values[key])
            self._changed.add(self._numbers[at - 1])
        self._removed.add(self._numbers.pop(at))
        del self._first[at]
        self._root_changed = True

    def _read_root(self, data: bytes) -> None:
        try:
            self._format, self._next, count = _HEAD.unpack_from(data)
            if self._format > _VERSION:
                raise StateError(
                    f"state {self._name} has form {self._format}, of a newer release; this one"
                    f" reads"
                    f" up to {_VERSION}. Start that release."
                )
            at = _HEAD.size
            for _ in range(count):
                size, number = _ENTRY.unpack_from(data, at)
                at += _ENTRY.size
                self._first.append(bytes(data[at : at + size]))
                self._numbers.append(number)
                at += size
        except struct.error as error:
            raise StateError(f"state {self._name} is damaged: {error}.") from error

    def _write_root(self) -> bytes:
        parts = [_HEAD.pack(_VERSION, self._next, len(self._numbers))]
        for first, number in zip(self._first, self._numbers, strict=True):
            parts += (_ENTRY.pack(len(first), number), first)
        return b"".join(parts)


def _write(block: _Block) -> bytes:
    """Encode a block: sizes of all keys, sizes of all values, keys, values."""
    values = [block.values[key] for key in block.keys]
    sizes = [*map(len, block.keys), *map(len, values)]
    head = _BLOCK.pack(_MARK, len(values)), struct.pack(f"<{len(sizes)}I", *sizes)
    return b"".join((*head, *block.keys, *values))


def _read(data: bytes, name: str) -> _Block:
    try:
        mark, count = _BLOCK.unpack_from(data) if data else (0, 0)
        if mark != _MARK:
            return _read_format_1(data)
        sizes = struct.unpack_from(f"<{2 * count}I", data, _BLOCK.size)
    except struct.error as error:
        raise StateError(f"state {name} is damaged: {error}.") from error
    ends = list(accumulate(sizes, initial=_BLOCK.size + 4 * len(sizes)))
    if ends[-1] != len(data):
        raise StateError(f"state {name} is damaged: it has {len(data)} bytes and not {ends[-1]}.")
    content = bytes(data)
    parts = [content[low:high] for low, high in pairwise(ends)]
    return _Block(parts[:count], dict(zip(parts[:count], parts[count:], strict=True)), len(data))


def _read_format_1(data: bytes) -> _Block:
    """Read a block of format 1: for each key the sizes of key and value, the key, the value."""
    block, at = _Block(size=len(data)), 0
    while at < len(data):
        key_size, value_size = _ENTRY.unpack_from(data, at)
        at += _ENTRY.size
        if at + key_size + value_size > len(data):
            raise struct.error("it ends within a value")
        key = bytes(data[at : at + key_size])
        at += key_size
        block.keys.append(key)
        block.values[key] = bytes(data[at : at + value_size])
        at += value_size
    return block
