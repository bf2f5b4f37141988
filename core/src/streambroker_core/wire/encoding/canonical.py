"""Canonical bytes of a JSON value, so that all replicas compute equal hashes and signatures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

JsonValue: TypeAlias = (
    "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
)
"""A value that JSON can express."""
JsonObject: TypeAlias = "Mapping[str, JsonValue]"
"""An object of such values, as messages have it."""

DIGEST_CHARS = 32
"""Length of a content digest: 128 bits in hexadecimal."""


def canonical(value: Any) -> bytes:
    """Return JSON with sorted keys and without spaces, in ASCII.

    Raises:
        ValueError: the value contains NaN or infinity.

    >>> canonical({"b": 1, "a": [2.0, None]})
    b'{"a":[2.0,null],"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def without_none(**members: JsonValue) -> dict[str, JsonValue]:
    """Return a JSON object of the members that have a value."""
    return {key: value for key, value in members.items() if value is not None}


def digest(value: Any) -> str:
    """Return the SHA-256 of the canonical form, cut to `DIGEST_CHARS`."""
    return hashlib.sha256(canonical(value)).hexdigest()[:DIGEST_CHARS]
