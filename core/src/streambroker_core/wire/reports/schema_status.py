"""Which version of its columns an export has published last, as its agent reports it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from streambroker_core.wire.encoding.canonical import JsonObject, without_none
from streambroker_core.wire.encoding.fields import Fields

TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
_LARGEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaStatus:
    """A version of the columns of an export's newest stream.

    Attributes:
        number: 1 for the first columns of a stream; 0 if it has published no rows, or if its agent
            is of a release that does not report versions.
        since: when it began, in UTC, such as ``2026-11-30T06:00:00Z``; None for the first columns.
    """

    number: int = 0
    since: str | None = None


NO_VERSION = SchemaStatus()

SchemaStatusMap: TypeAlias = "Mapping[str, SchemaStatus]"
"""Versions by port."""


def write_schema_status(schema: SchemaStatus) -> JsonObject | None:
    """Return JSON-like data; None without a version."""
    return without_none(number=schema.number, since=schema.since) if schema.number else None


def read_schema_status(export: Fields) -> SchemaStatus:
    """Read ``schemaVersion`` of an export in a report or a status; it may be absent.

    Raises:
        ManifestError: a field is wrong; the error names it.
    """
    if not export.has("schemaVersion"):
        return NO_VERSION
    fields = export.child("schemaVersion")
    number = fields.integer("number", low=1, high=_LARGEST)
    since = fields.optional_text("since")
    try:
        datetime.strptime(since or "1970-01-01T00:00:00Z", TIME_FORMAT)  # noqa: DTZ007 - only checked
    except ValueError as error:
        raise fields.error_at("since", "has to be like 2026-11-30T06:00:00Z") from error
    return SchemaStatus(number=number, since=since)
