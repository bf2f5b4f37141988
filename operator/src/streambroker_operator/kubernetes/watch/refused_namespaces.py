"""Watched namespaces that the API server does not let the broker list.

A Role is deleted with its namespace, so a deleted namespace first answers 403. A separate request
finds out whether it exists; the chart grants `get` on the configured namespaces for that.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Literal, TypeAlias

from streambroker_core.model import AnyKind
from streambroker_operator.kubernetes.client.watch_client import (
    OBJECT_METADATA,
    ApiClient,
    ApiError,
)

_log = logging.getLogger("streambroker.kubernetes")

Refusal: TypeAlias = Literal["Forbidden", "NamespaceGone"]
"""Why a watched namespace is not followed."""

_EFFECTS: Mapping[Refusal, str] = {
    "Forbidden": "cannot be listed (403); their last known state is kept",
    "NamespaceGone": "were deleted with it",
}


async def refusal_reason(client: ApiClient, namespace: str) -> Refusal:
    """Return why a namespace cannot be listed; if uncertain, assume that it still exists."""
    try:
        await client.get(f"/api/v1/namespaces/{namespace}", accept=OBJECT_METADATA)
    except ApiError as error:
        if error.status == 404:
            return "NamespaceGone"
    return "Forbidden"


def log_changes(kind: AnyKind, before: Mapping[str, Refusal], after: Mapping[str, Refusal]) -> None:
    """Log namespaces that are newly refused, refused for another reason, or followed again."""
    for namespace, why in after.items():
        if before.get(namespace) != why:
            _log.warning("namespace %s: %ss %s", namespace, kind, _EFFECTS[why])
    for namespace in before.keys() - after.keys():
        _log.info("namespace %s: %ss are watched again", namespace, kind)
