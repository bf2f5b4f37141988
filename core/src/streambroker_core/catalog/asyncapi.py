"""Exports as a document of AsyncAPI 3.0, as https://www.asyncapi.com/docs/reference describes it.

Each Export is a channel with one message, a row. It has an operation of the job that sends rows,
and one of any job that receives them. The key of a channel is that of the port, with ``.`` for
``/``: keys of AsyncAPI allow no slash.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from streambroker_core.model import Export
from streambroker_core.model.schema_texts import json_schema

OWNER = "x-streambroker-owner"
JOB = "x-streambroker-job"
PROPERTIES = "x-streambroker-properties"
"""Extensions of a channel: owner, ``namespace/job``, and properties of the Export."""


def asyncapi_document(exports: Iterable[Export], *, title: str, version: str) -> dict[str, Any]:
    """Return the document of Exports; ``version`` is that of the document."""
    channels, operations = {}, {}
    for export in exports:
        key = str(export.key).replace("/", ".")
        channel = {"$ref": f"#/channels/{key}"}
        channels[key] = _channel(export)
        for action, what in (("send", "publishes"), ("receive", "reads")):
            operations[f"{key}.{action}"] = {
                "action": action,
                "channel": channel,
                "summary": f"A job {what} rows.",
                "messages": [{"$ref": f"#/channels/{key}/messages/row"}],
            }
    return {
        "asyncapi": "3.0.0",
        "info": {"title": title, "version": version},
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
    }


def _channel(export: Export) -> dict[str, Any]:
    entry, job = export.catalog, export.key.owner
    channel: dict[str, Any] = {
        "address": str(export.key),
        "title": export.stream_id or export.key.port,
        "messages": {"row": _message(export)},
        JOB: f"{job.namespace}/{job.job}",
    }
    if entry.description is not None:
        channel["description"] = entry.description
    if entry.owner is not None:
        channel[OWNER] = entry.owner
    if entry.tags:
        channel["tags"] = [{"name": tag} for tag in entry.tags]
    if export.properties:
        channel[PROPERTIES] = dict(export.properties)
    return channel


def _message(export: Export) -> dict[str, Any]:
    payload = json_schema(export.schema or (), export.catalog.column_comments)
    return {"name": export.key.port, "title": f"Row of {export.key}", "payload": payload}
