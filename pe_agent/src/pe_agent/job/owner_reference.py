"""What the resources of a job belong to in Kubernetes: it goes, they go.

A driver pod is no owner: its restart would take all routes down.
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
    """Return the owner that a job was given, or that of ``$STREAMBROKER_OWNER``, JSON; or None.

    Raises:
        OwnerError: it has not the four fields, or is a pod.
    """
    if owner is not None:
        return _check_owner(owner, "owner")
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise OwnerError(f"${VARIABLE} is not JSON: {error}.") from error
    return _check_owner(found, f"${VARIABLE}")


def _check_owner(owner: object, where: str) -> dict[str, str]:
    wanted = f"{where} has to have {', '.join(FIELDS)}, each a text that is not empty, and no more."
    if not isinstance(owner, Mapping) or set(owner) != set(FIELDS):
        raise OwnerError(wanted)
    if not all(isinstance(value, str) and value for value in owner.values()):
        raise OwnerError(wanted)
    if owner["kind"] == "Pod":
        raise OwnerError(
            f"{where} is a pod, whose restart would take the routes down; name what outlives it,"
            " for instance the SparkApplication."
        )
    return {name: owner[name] for name in FIELDS}
