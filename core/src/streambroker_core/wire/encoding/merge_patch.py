"""Merge patches: how a part of a document is changed without sending all of it (RFC 7396)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streambroker_core.errors import ManifestError

MAX_DEPTH = 32
"""How deep the objects of a patch may be nested; no manifest is nearly as deep."""


def merge_patch(target: Any, patch: Any, *, path: str = "", depth: int = 0) -> Any:
    """Return a document with a patch merged in; neither of the two is changed.

    A null removes, an object is merged, anything else replaces.

    Raises:
        ManifestError: the objects of the patch are nested too deep.

    >>> merged({"a": 1, "b": {"c": 2, "d": 3}}, {"a": None, "b": {"c": 4}})
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
