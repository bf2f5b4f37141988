"""Owner of the resources of a job in Kubernetes: they are deleted with it.

A driver pod cannot be the owner: its restart would delete all routes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from streambroker_core.errors import StreambrokerError

VARIABLE = "STREAMBROKER_OWNER"
FIELDS = ("apiVersion", "kind", "name", "uid")


class OwnerError(StreambrokerError):
    """The owner cannot be used; nothing was started."""

    code = "OwnerInvalid"


def resolve_owner(owner: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return the owner, or that of ``$STREAMBROKER_OWNER`` (JSON), or raise OwnerError."""
    if owner is not None:
        return _check_owner(owner, "owner")
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise OwnerError(f"${VARIABLE} is not JSON: {error}.") from error
    return _check_owner(parsed, f"${VARIABLE}")


def _check_owner(owner: object, where: str) -> dict[str, str]:
    requirement = f"{where} has to have exactly {', '.join(FIELDS)}, each a text that is not empty."
    if not isinstance(owner, Mapping) or set(owner) != set(FIELDS):
        raise OwnerError(requirement)
    if not all(isinstance(value, str) and value for value in owner.values()):
        raise OwnerError(requirement)
    if owner["kind"] == "Pod":
        raise OwnerError(
            f"{where} is a pod, whose restart would delete the routes; name an object that"
            " outlives it, for instance the SparkApplication."
        )
    return {name: owner[name] for name in FIELDS}
