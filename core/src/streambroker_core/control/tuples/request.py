"""Request to emit a control tuple from outside of operators; it has no identity yet.

``{"type", "payload", "delivery", "at", "target"}`` as JSON; only the type is required. The log that
accepts it assigns its identity, which is the log's id and a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streambroker_core.control.tuples import (
    ALL_TARGETS,
    MAX_PAYLOAD,
    ControlLimitError,
    ControlTuple,
    Delivery,
    Target,
    make_logged_tuple,
)
from streambroker_core.control.tuples.envelope import (
    MAX_ID,
    decode_target,
    encode_target,
    read_delivery,
)
from streambroker_core.wire.encoding.canonical import JsonValue, canonical, without_none
from streambroker_core.wire.encoding.fields import Fields

_FIELDS = ("type", "payload", "delivery", "at", "target")


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRequest:
    """A control tuple without identity; for the attributes see :class:`ControlTuple`."""

    type: str
    text: str = "null"
    delivery: Delivery = Delivery.END_WINDOW
    at: int | None = None
    target: Target = ALL_TARGETS

    def with_identity(self, log: str, seq: int) -> ControlTuple:
        """Return the tuple with the identity that a log assigns.

        Raises:
            ControlError: an event time is missing with ``AT_TIME``, or present without.
        """
        return make_logged_tuple(
            log,
            seq,
            type_=self.type,
            text=self.text,
            delivery=self.delivery,
            at=self.at,
            target=self.target,
        )

    def encode(self) -> dict[str, JsonValue]:
        """Return the JSON object that :func:`parse_control_request` reads."""
        named = self.with_identity("log", 0)
        return {
            "type": self.type,
            "payload": named.payload,
            "delivery": self.delivery.value,
            **without_none(at=self.at, target=encode_target(self.target) or None),
        }


def parse_control_request(data: object) -> ControlRequest:
    """Read a request. Without ``delivery`` it is ``END_WINDOW``.

    Raises:
        ManifestError: a field is missing or wrong; the error names it.
        ControlLimitError: the payload is too large.
    """
    fields = Fields(data)
    fields.allow_only(_FIELDS)
    if not fields.has("type"):
        raise fields.error_at("type", "is required")
    delivery, at = read_delivery(fields, Delivery.END_WINDOW.value)
    kind = fields.text("type", longest=MAX_ID)
    return ControlRequest(
        type=kind,
        text=_read_payload(fields, kind),
        delivery=delivery,
        at=at,
        target=decode_target(fields.child("target")) if fields.has("target") else ALL_TARGETS,
    )


def _read_payload(fields: Fields, kind: str) -> str:
    try:
        text = canonical(fields.get("payload")).decode()
    except (ValueError, TypeError, RecursionError) as error:
        raise fields.error_at("payload", f"cannot be written as JSON: {error}") from error
    if len(text) > MAX_PAYLOAD:
        raise ControlLimitError(
            f"the payload of a control tuple {kind} has {len(text)} bytes; the limit is"
            f" {MAX_PAYLOAD}. Send the data as rows, and a tuple that names them."
        )
    return text


def canonical_text(data: Mapping[str, Any]) -> str:
    """Return the canonical text of a request, by which two requests are compared."""
    return canonical(data).decode()
