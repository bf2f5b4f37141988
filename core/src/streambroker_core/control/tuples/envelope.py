"""JSON form of a control tuple, for people and protocols.

``{"v": 1, "type", "id", "delivery", "epoch", "emitter", "seq", "payload"}``, with ``at`` and
``target`` if present. Decoding gives an equal tuple; a newer version is rejected by name. The Arrow
form is in ``runtime.control_rows``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streambroker_core.control.tuples import (
    MAX_PAYLOAD,
    ControlTuple,
    Delivery,
    KeyValue,
    Target,
)
from streambroker_core.errors import FormatTooNewError
from streambroker_core.wire.encoding.canonical import JsonObject, canonical, without_none
from streambroker_core.wire.encoding.fields import Fields

VERSION = 1
MAX_ID = 1024
WHAT = "control tuple"

_KEYS = ("v", "type", "id", "delivery", "at", "epoch", "emitter", "seq", "payload", "target")
_LARGEST = (1 << 63) - 1
DELIVERIES: Mapping[str, Delivery] = {one.value: one for one in Delivery}


def encode(control: ControlTuple) -> JsonObject:
    """Return the JSON object of a control tuple."""
    return {
        "v": VERSION,
        "type": control.type,
        "id": control.id,
        "delivery": control.delivery.value,
        "epoch": control.epoch,
        "emitter": control.emitter,
        "seq": control.seq,
        "payload": control.payload,
        **without_none(at=control.at, target=encode_target(control.target) or None),
    }


def decode(data: Any, path: str = "") -> ControlTuple:
    """Read the JSON object of a control tuple.

    Raises:
        FormatTooNewError: it has a higher ``v`` than this release reads.
        ManifestError: a field is wrong; the error has its path.
    """
    version = data.get("v") if isinstance(data, Mapping) else None
    if isinstance(version, int) and version > VERSION:
        raise FormatTooNewError(
            path=f"{path}.v" if path else "v", found=version, newest=VERSION, what=WHAT
        )
    fields = Fields(data, path)
    fields.allow_only(_KEYS)
    fields.integer("v", low=1, high=VERSION)
    delivery, at = read_delivery(fields)
    try:
        text = canonical(fields.get("payload")).decode()
    except ValueError as error:
        raise fields.error_at("payload", f"cannot be written as JSON: {error}") from error
    if len(text) > MAX_PAYLOAD:
        raise fields.error_at("payload", f"has {len(text)} bytes, the limit is {MAX_PAYLOAD}")
    return ControlTuple(
        type=fields.text("type", longest=MAX_ID),
        id=fields.text("id", longest=MAX_ID),
        delivery=delivery,
        at=at,
        epoch=fields.integer("epoch", high=_LARGEST),
        emitter=fields.text("emitter", longest=MAX_ID),
        seq=fields.integer("seq", high=_LARGEST),
        text=text,
        target=decode_target(fields.child("target")),
    )


def read_delivery(fields: Fields, default: str | None = None) -> tuple[Delivery, int | None]:
    """Read a delivery and its event time; raise ManifestError if they are wrong."""
    name = fields.text("delivery", default)
    if name not in DELIVERIES:
        raise fields.error_at("delivery", f"is {name!r}; it has to be {' or '.join(DELIVERIES)}")
    has_time = DELIVERIES[name] is Delivery.AT_TIME
    if fields.has("at") != has_time:
        raise fields.error_at("at", "is required with AT_TIME" if has_time else "needs AT_TIME")
    at = fields.integer("at", low=-_LARGEST, high=_LARGEST) if has_time else None
    return DELIVERIES[name], at


def encode_target(target: Target) -> JsonObject:
    """Return the JSON object of a target; empty if it addresses all."""
    key = None if target.key is None else list(target.key)
    return without_none(operator=target.operator, bucket=target.bucket, key=key)


def decode_target(fields: Fields) -> Target:
    """Read the JSON object of a target; raise ManifestError if a field is wrong."""
    fields.allow_only(("operator", "bucket", "key"))
    key: tuple[KeyValue, ...] | None = None
    if fields.has("key"):
        key = tuple(fields.items("key", max_items=64))
        for one in key:
            if not isinstance(one, str | int | float | bool):
                raise fields.error_at("key", f"holds {one!r}: neither text, number nor boolean")
    return Target(
        operator=fields.optional_text("operator"),
        bucket=fields.integer("bucket", high=1 << 20) if fields.has("bucket") else None,
        key=key,
    )
