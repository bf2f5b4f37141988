"""The control tuples of one epoch: each once, with its row index, within limits.

A row index is the number of rows of the epoch before the tuple, counted before any filter. The JSON
form is ``{"v": 1, "tuples": [[row index, tuple], …]}``.
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
"""Limit on the payload bytes of control tuples that a query emits into one epoch."""

IndexedControl = tuple[int, ControlTuple]


def deduplicate_indexed(
    indexed: Iterable[IndexedControl], rows: int, epoch_name: str, query: str
) -> list[IndexedControl]:
    """Return the tuples of an epoch by row index; of copies the lowest index counts.

    Tuples with one index keep their order, which is that of their emission.

    Args:
        indexed: the tuples from the tasks of the epoch.
        rows: number of rows of the epoch.
        epoch_name: the epoch, for messages.
        query: id of the query that publishes it.

    Raises:
        ControlError: an index is not in the epoch.
        IdentityError: two tuples with one identity differ.
        ControlLimitError: a payload is too large, or the query has emitted too many.
    """
    first: dict[str, IndexedControl] = {}
    for index, control in indexed:
        if not 0 <= index <= rows:
            raise ControlError(
                f"control tuple {control.id} is placed after {index} rows of {epoch_name}, which"
                f" has {rows}."
            )
        existing = first.get(control.id)
        if existing is not None and existing[1].differs_from(control):
            raise IdentityError(existing[1], control)
        if existing is None or index < existing[0]:
            first[control.id] = (index, control)
    check_epoch([control for _, control in first.values()], epoch_name, query)
    return sorted(first.values(), key=lambda p: p[0])


def check_epoch(
    controls: Sequence[ControlTuple], epoch_name: str, query: str | None = None
) -> None:
    """Check the limits on the control tuples of one epoch.

    Args:
        controls: the tuples of the epoch.
        epoch_name: the epoch, for messages.
        query: id of the query that publishes it. Tuples that the query received and passes on do
            not count: they would arrive again with each retry. None if all of them are new.

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
        f"{epoch_name} has {len(new)} new control tuples of {size} bytes; the limit is"
        f" {MAX_TUPLES} tuples, {MAX_EPOCH_BYTES} bytes. {most} are from {name}. Let it send rows"
        " instead, or one tuple in place of many."
    )


def encode(indexed: Iterable[IndexedControl]) -> bytes:
    """Return indexed tuples as JSON."""
    tuples = [[index, envelope.encode(one)] for index, one in indexed]
    return canonical({"v": VERSION, "tuples": tuples})


def decode(text: bytes) -> list[IndexedControl]:
    """Read indexed tuples.

    Raises:
        FormatTooNewError: they are of a newer release.
        ControlError: they cannot be read.
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
    """Read ``[[row index, tuple], …]``.

    Raises:
        ManifestError, FormatTooNewError: an entry is wrong; the error has its path.
        ControlError: it is not such a list.
    """
    if not isinstance(data, list):
        raise ControlError("control tuples have to be a list of positions and tuples.")
    result: list[IndexedControl] = []
    for number, entry in enumerate(data):
        if not isinstance(entry, list) or len(entry) != 2 or not _is_row_index(entry[0]):
            raise ControlError(
                f"entry {number} is not a position and a control tuple: {entry!r:.80}"
            )
        if not isinstance(entry[1], Mapping):
            raise ControlError(f"entry {number} has no control tuple: {entry[1]!r:.80}")
        result.append((entry[0], envelope.decode(entry[1], f"control[{number}]")))
    return result


def _is_row_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
