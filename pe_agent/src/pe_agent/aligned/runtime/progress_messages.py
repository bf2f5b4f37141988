"""Progress messages between the operators of one query.

They travel as control rows to every bucket of the operators that follow; users never see them.

- ``tick``: the watermark that an operator has reached.
- ``hold``: the earliest event time that a bucket of an operator holds back; None for nothing.
- ``latest``: the latest event time of an input, sent if any input may be idle.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from streambroker_core.control.operators.operator import OperatorError
from streambroker_core.wire.encoding.canonical import canonical

CLOCK_BUCKET = -1
"""The bucket of an operator without rows: it forwards the time, and checks the checkpoint."""
PROGRESS_ROW = -1
"""Number of rows in a packed row that marks progress messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkUpdate:
    """An operator's watermark, in microseconds."""

    operator: str
    watermark: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkHold:
    """The earliest event time that a bucket of an operator holds back; None for nothing."""

    operator: str
    bucket: int
    at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestEventTime:
    """The latest event time of an input in a micro-batch, in microseconds."""

    port: str
    at: int


ProgressMessage = WatermarkUpdate | WatermarkHold | LatestEventTime

_KINDS: dict[str, type] = {
    "tick": WatermarkUpdate,
    "hold": WatermarkHold,
    "latest": LatestEventTime,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def encode(messages: Iterable[ProgressMessage]) -> bytes:
    """Return progress messages as canonical JSON."""
    return canonical([[_NAMES[type(one)], asdict(one)] for one in messages])


def decode(data: bytes) -> list[ProgressMessage]:
    """Decode progress messages; raise OperatorError if the data is no list of them."""
    try:
        return [_KINDS[kind](**fields) for kind, fields in json.loads(data)]
    except (KeyError, TypeError, ValueError) as error:
        raise OperatorError(
            f"a row between two operators is not in the format of this release: {error!r}. Was"
            " the query changed under its checkpoint?"
        ) from error
