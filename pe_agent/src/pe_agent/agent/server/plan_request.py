"""What importers' agents ask: the fields of a plan, checked before anything is done with them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from streambroker_core.control.tuples import MAX_BYTES, MAX_TUPLES
from streambroker_core.errors import ManifestError, StreambrokerError
from streambroker_core.ledger.ledger import PlanRequest
from streambroker_core.ledger.wait_chains import MAX_CHAIN
from streambroker_core.wire.broker.view import STARTS
from streambroker_core.wire.encoding.fields import Fields

MAX_LEASE = 60.0
MAX_READER_ID = 64
"""Characters of a reader's id; an agent makes them of 32."""
_MAX_INT64 = (1 << 63) - 1
_MAX_TEXT = 16 << 20


class BodyInvalidError(StreambrokerError):
    """A request that is not the JSON this agent understands; nothing was done."""

    code = "BodyInvalid"


def parse_plan_request(body: Mapping[str, Any], request_name: str) -> PlanRequest:
    """Read who asks and from where; its policy is the export's to say.

    Args:
        body: of the request; what it says beyond an ask is checked, too.
        request_name: the request, as its error names it.

    Raises:
        BodyInvalidError: a field is missing, or is not what it has to be.
    """
    try:
        fields = Fields(body)
        _check_filter_and_columns(fields)
        return PlanRequest(
            reader=fields.text("reader", longest=MAX_READER_ID),
            import_=fields.text("import", longest=_MAX_TEXT),
            policy="",
            start=fields.word("start", STARTS, "latest"),
            has_opened=fields.boolean("known", True),
            last=_read_last_batch(fields),
            positions=_read_numbers(fields, "positions", required=True),
            own_streams=frozenset(_read_texts(fields, "own") or ()),
            limit=_read_numbers(fields, "limit") if fields.has("limit") else None,
            budget=fields.integer("budget", 0, high=_MAX_INT64),
            at_least_one=fields.boolean("one", True),
            lease=min(MAX_LEASE, _read_seconds(fields, "lease")),
            skip_lost=fields.boolean("lossy", False),
            call=_read_call(fields),
            control=_read_control_types(fields),
            tuples=fields.integer("tuples", MAX_TUPLES, high=_MAX_INT64),
            payload=fields.integer("payload", MAX_BYTES, high=_MAX_INT64),
        )
    except ManifestError as error:
        raise BodyInvalidError(
            f"the fields of {request_name} are not as they have to be: {error} Nothing was"
            f" planned; are"
            " both agents of one release?"
        ) from None


def with_policy(request: PlanRequest, policy: str, *, granted: bool) -> PlanRequest:
    """Return what is asked under the policy that the export has for it.

    Without a capability it acknowledges nothing.
    """
    positions = request.positions if granted else {}
    return replace(request, policy=policy, positions=positions, granted=granted)


def read_ranges(body: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return the epochs ``[first, next)`` of a plan that is registered again, by stream.

    Raises:
        BodyInvalidError: they are not two numbers each, in order.
    """
    ranges: dict[str, tuple[int, int]] = {}
    found = body.get("ranges")
    for stream, pair in found.items() if isinstance(found, Mapping) else [("", None)]:
        numbers = list(pair) if isinstance(pair, list | tuple) else []
        if len(numbers) != 2 or not all(_is_number(n) for n in numbers) or numbers[0] > numbers[1]:
            raise BodyInvalidError(
                f"ranges of peer.replan have to be [first, next] by stream, not {stream!r}:"
                f" {pair!r:.80}. Nothing was planned; are both agents of one release?"
            )
        ranges[stream] = (numbers[0], numbers[1])
    return ranges


def read_chains(body: Mapping[str, Any]) -> dict[str, list[str]]:
    """Read for which exports the queries of readers wait, by reader; an older agent says nothing.

    Raises:
        BodyInvalidError: it is something else.
    """
    try:
        fields = Fields(body).child("waits")
        return {r: _read_texts(fields, r, MAX_CHAIN) or [] for r in fields.names()}
    except ManifestError as error:
        raise BodyInvalidError(f"`waits` of peer.watch is not as it has to be: {error}") from None


def _check_filter_and_columns(fields: Fields) -> None:
    fields.optional_text("filter", longest=_MAX_TEXT)
    fields.optional_text("schema", longest=_MAX_TEXT)
    _read_texts(fields, "columns")


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_INT64


def _read_last_batch(fields: Fields) -> tuple[str, int] | None:
    found = fields.get("last")
    if found is None:
        return None
    if (
        not isinstance(found, list | tuple)
        or [type(v) for v in found] != [str, int]
        or not -1 <= found[1] <= _MAX_INT64
    ):
        raise fields.error_at("last", "has to be a query id and the id of a batch")
    return found[0], found[1]


def _read_call(fields: Fields) -> tuple[str, int] | None:
    found = fields.get("call")
    if found is None:
        return None
    if (
        not isinstance(found, list | tuple)
        or [type(v) for v in found] != [str, int]
        or not (len(found[0]) <= MAX_READER_ID and _is_number(found[1]))
    ):
        raise fields.error_at("call", "has to be a life of an agent and the number of a call in it")
    return found[0], found[1]


def _read_numbers(fields: Fields, key: str, *, required: bool = False) -> dict[str, int]:
    """Return epochs by stream."""
    if required and not fields.has(key):
        raise fields.error_at(key, "is required")
    child = fields.child(key)
    return {stream: child.integer(stream, high=_MAX_INT64) for stream in child.names()}


def _read_texts(fields: Fields, key: str, limit: int = _MAX_INT64) -> list[str] | None:
    if not fields.has(key):
        return None
    found = fields.items(key, max_items=limit)
    if not all(isinstance(one, str) for one in found):
        raise fields.error_at(key, "has to be a list of texts")
    return found


def _read_control_types(fields: Fields) -> frozenset[str] | None:
    """Return the control types that do not cut, None from one who reads no control."""
    found = _read_texts(fields, "control")
    return None if found is None else frozenset(found)


def _read_seconds(fields: Fields, key: str) -> float:
    found = fields.get(key)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise fields.error_at(key, "has to be a number of seconds")
    if not (math.isfinite(found) and found >= 0):
        raise fields.error_at(key, f"is {found}, which is no time to live")
    return float(found)
