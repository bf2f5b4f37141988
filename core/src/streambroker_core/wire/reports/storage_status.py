"""How far an export is in the object storage of its agent, as the agent reports it to the broker.

A report has the exact lag. `stored_state` rounds it, so that a lag that grows changes a status a
few times and not with each report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from streambroker_core.model import Durability
from streambroker_core.wire.encoding.canonical import JsonObject
from streambroker_core.wire.encoding.fields import Fields

BEHIND_SECONDS = 60
"""Age of the oldest bytes from which on an export is behind."""
MAX_ERROR = 500
"""Characters of an error in a report."""
_LARGEST = (1 << 63) - 1
_SIZES = (
    *((1 << 40, "1 TiB"), (64 << 30, "64 GiB"), (4 << 30, "4 GiB"), (256 << 20, "256 MiB")),
    *((16 << 20, "16 MiB"), (1 << 20, "1 MiB"), (64 << 10, "64 KiB")),
)
_AGES = (
    *((604_800, "1 week"), (86_400, "1 day"), (21_600, "6 hours"), (3_600, "1 hour")),
    *((600, "10 minutes"), (BEHIND_SECONDS, "1 minute")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageStatus:
    """Uploads of one export.

    Attributes:
        bytes: synced on the disk and not in the bucket.
        seconds: for how long the oldest of them have waited.
        error: why the last upload failed; empty after one that succeeded.
        superseded: another agent has taken over, and this one uploads nothing more.
        exists: the agent has object storage; without it all other values are defaults.
    """

    bytes: int = 0
    seconds: int = 0
    error: str = ""
    superseded: bool = False
    exists: bool = True


StorageStatusMap: TypeAlias = "Mapping[str, StorageStatus]"
"""Uploads by port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """Whether the bucket has an export, as its status shows it.

    Attributes:
        reason: ``UpToDate``, or why it is not.
        message: lag, error and remedy as sentences.
    """

    reason: str
    message: str

    @property
    def is_stored(self) -> bool:
        """Whether the bucket has all but what was published a moment ago."""
        return self.reason == "UpToDate"


def stored_state(storage: StorageStatus, durability: Durability) -> StoredState | None:
    """Return what the status of an export shows of its uploads; None without object storage."""
    if not storage.exists:
        return _MISSING if durability == "stored" else None
    if storage.superseded:
        return _SUPERSEDED
    if storage.error:
        message = f"{storage.error} {_lag_text(storage)} {_OUTAGES[durability]}"
        return StoredState(reason="StorageUnavailable", message=message)
    if storage.seconds >= BEHIND_SECONDS:
        message = f"{_lag_text(storage)} {_BEHIND}"
        return StoredState(reason="Behind", message=message)
    return StoredState(reason="UpToDate", message="")


_MISSING = StoredState(
    reason="StorageMissing",
    message="It has the durability `stored`, and its agent has no object storage, so nothing can be"
    " published. Start the job with `storage=` or $STREAMBROKER_STORAGE, or set the durability to"
    " `local`.",
)
_SUPERSEDED = StoredState(
    reason="Superseded",
    message="Another agent of this PE has taken over its exports in the bucket, and this one"
    " publishes no more. Stop this one; if both are meant to run, give each its own job or PE.",
)
_OUTAGES: Mapping[Durability, str] = {
    "local": "Publishing goes on, and what is not uploaded is lost if the disk is lost. Uploads"
    " continue once the bucket answers.",
    "stored": "Nothing is published until the bucket answers. Then start the queries that failed.",
}
_BEHIND = (
    "The export publishes faster than the bucket takes it. Give the agent a faster connection to"
    " the bucket, or publish less."
)


def _lag_text(storage: StorageStatus) -> str:
    size, age = _step(storage.bytes, _SIZES), _step(storage.seconds, _AGES)
    since = f", for at least {age}" if age else ""
    return f"{f'At least {size}' if size else 'Less than 64 KiB'} are not uploaded{since}."


def _step(value: int, steps: tuple[tuple[int, str], ...]) -> str:
    """Return the name of the largest step that a value reaches; an empty text for none."""
    return next((name for least, name in steps if value >= least), "")


def write_storage(storage: StorageStatus) -> JsonObject | None:
    """Return JSON-like data without default values; None without object storage."""
    if not storage.exists:
        return None
    values = {name: getattr(storage, name) for name in ("bytes", "seconds", "error", "superseded")}
    return {name: value for name, value in values.items() if value}


def read_storage(export: Fields) -> StorageStatus:
    """Read ``storage`` of an export in a report; without it the agent has no object storage.

    Raises:
        ManifestError: a field is wrong; the error names it.
    """
    if not export.has("storage"):
        return StorageStatus(exists=False)
    fields = export.child("storage")
    return StorageStatus(
        bytes=fields.integer("bytes", 0, high=_LARGEST),
        seconds=fields.integer("seconds", 0, high=_LARGEST),
        error=fields.text("error", "", longest=4 * MAX_ERROR),
        superseded=fields.boolean("superseded", False),
    )
