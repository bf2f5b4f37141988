"""Merge patches (RFC 7396): partial changes of a document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streambroker_core.errors import ManifestError

MAX_DEPTH = 32
"""Maximum nesting depth of a patch; manifests are much flatter."""


def merge_patch(target: Any, patch: Any, *, path: str = "", depth: int = 0) -> Any:
    """Return a copy of a document with a patch merged in.

    A null removes, an object is merged, anything else replaces.

    Raises:
        ManifestError: the patch is nested deeper than `MAX_DEPTH` objects.

    >>> merge_patch({"a": 1, "b": {"c": 2, "d": 3}}, {"a": None, "b": {"c": 4}})
    {'b': {'c': 4, 'd': 3}}
    """
    if not isinstance(patch, Mapping):
        return patch
    if depth >= MAX_DEPTH:
        raise ManifestError(path=path, reason=f"is nested deeper than {MAX_DEPTH} objects")
    result = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            below = f"{path}.{name}" if path else str(name)
            result[name] = merge_patch(result.get(name), value, path=below, depth=depth + 1)
    return result
