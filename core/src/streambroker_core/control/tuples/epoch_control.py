"""The control tuples of one epoch: each once, with its place between the rows, within limits.

A place is a number of rows: the tuple stands behind so many rows of the epoch, counted before any
filter. As JSON they are ``{"v": 1, "tuples": [[place, tuple], …]}``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from streambroker_core.control.tuples import (
    MAX_PAYLOAD,
    MAX_TUPLES,
    ControlError,
    ControlLimitError,
    ControlTuple,
    IdentityError,
    envelope,
)
from streambroker_core.errors import FormatTooNewError
from streambroker_core.wire.encoding.canonical import canonical

VERSION = 1
MAX_EPOCH_BYTES = 8 << 20
"""Bytes of payload that control tuples may have which a query emits into one epoch."""

IndexedControl = tuple[int, ControlTuple]


def deduplicate_indexed(
    indexed: Iterable[IndexedControl], rows: int, epoch_name: str, query: str
) -> list[IndexedControl]:
    """Return the tuples of an epoch by their places; of copies of one the first place counts.

    Tuples of one place stay in the order in which they are given: it is that of their emission.

    Args:
        indexed: as the tasks of the epoch have them.
        rows: how many rows the epoch has.
        epoch_name: whose epoch it is, for messages.
        query: id of the query that publishes it.

    Raises:
        ControlError: a place is not in the epoch.
        IdentityError: two tuples with one identity differ.
        ControlLimitError: a payload is too large, or the query has emitted too many.
    """
    first: dict[str, IndexedControl] = {}
    for at, one in indexed:
        if not 0 <= at <= rows:
            raise ControlError(
                f"control tuple {one.id} stands behind {at} rows of {epoch_name}, which has {rows}."
            )
        known = first.get(one.id)
        if known is not None and known[1].differs_from(one):
            raise IdentityError(known[1], one)
        if known is None or at < known[0]:
            first[one.id] = (at, one)
    check_epoch([one for _, one in first.values()], epoch_name, query)
    return sorted(first.values(), key=lambda p: p[0])


def check_epoch(
    controls: Sequence[ControlTuple], epoch_name: str, query: str | None = None
) -> None:
    """Refuse more control tuples than are emitted into one epoch.

    Args:
        controls: those of the epoch.
        epoch_name: whose epoch it is, for messages.
        query: id of the query that publishes it. What it was sent, and passes on, is let through:
            it would come again with each try. None if all of them are new.

    Raises:
        ControlLimitError: they are too many, or one is too large.
    """
    large = next((one for one in controls if len(one.text) > MAX_PAYLOAD), None)
    if large is not None:
        raise ControlLimitError(
            f"control tuple {large.id} of {epoch_name} has a payload of {len(large.text)} bytes;"
            f" the"
            f" limit is {MAX_PAYLOAD}. Send the data as rows, and a tuple that names them."
        )
    new = [one for one in controls if query is None or one.is_emitted_by(query)]
    size = sum(len(one.text) for one in new)
    if len(new) <= MAX_TUPLES and size <= MAX_EPOCH_BYTES:
        return
    (name, most), *_ = Counter(one.emitter for one in new).most_common(1)
    raise ControlLimitError(
        f"{epoch_name} has {len(new)} new control tuples of {size} bytes; the limit is {MAX_TUPLES}"
        f" tuples, {MAX_EPOCH_BYTES} bytes. {most} are from {name}. Let it send rows instead, or"
        " one tuple that says it for many."
    )


def encode(indexed: Iterable[IndexedControl]) -> bytes:
    """Return placed tuples as JSON."""
    tuples = [[at, envelope.encode(one)] for at, one in indexed]
    return canonical({"v": VERSION, "tuples": tuples})


def decode(text: bytes) -> list[IndexedControl]:
    """Read placed tuples.

    Raises:
        FormatTooNewError: they are of a newer release.
        ControlError: they are none.
    """
    try:
        data = json.loads(text)
        version = data["v"]
        if isinstance(version, int) and version > VERSION:
            raise FormatTooNewError(
                path="v", found=version, newest=VERSION, what="control tuples of an epoch"
            )
        return parse_indexed(data["tuples"])
    except (ValueError, TypeError, KeyError) as error:
        raise ControlError(f"the control tuples of an epoch cannot be read: {error!r}.") from error


def parse_indexed(data: Any) -> list[IndexedControl]:
    """Read ``[[place, tuple], …]``.

    Raises:
        ManifestError, FormatTooNewError: an entry is wrong; the error has its path.
        ControlError: it is no such list.
    """
    if not isinstance(data, list):
        raise ControlError("control tuples have to be a list of places and tuples.")
    found: list[IndexedControl] = []
    for number, entry in enumerate(data):
        if not isinstance(entry, list) or len(entry) != 2 or not _is_row_index(entry[0]):
            raise ControlError(f"entry {number} is no place and control tuple: {entry!r:.80}")
        if not isinstance(entry[1], Mapping):
            raise ControlError(f"entry {number} has no control tuple: {entry[1]!r:.80}")
        found.append((entry[0], envelope.decode(entry[1], f"control[{number}]")))
    return found


def _is_row_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
