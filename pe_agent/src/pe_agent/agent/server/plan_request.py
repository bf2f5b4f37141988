"""Plan requests of importers' agents: all fields are validated before any use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from streambroker_core.control.tuples import MAX_BYTES, MAX_TUPLES
from streambroker_core.errors import ManifestError, StreambrokerError
from streambroker_core.ledger.plan import PlanRequest
from streambroker_core.ledger.wait_chains import MAX_CHAIN
from streambroker_core.wire.broker.view import STARTS
from streambroker_core.wire.encoding.fields import Fields

MAX_LEASE = 60.0
MAX_READER_ID = 64
"""Maximum characters of a reader id; agents create ids of 32."""
_MAX_INT64 = (1 << 63) - 1
_MAX_TEXT = 16 << 20


class BodyInvalidError(StreambrokerError):
    """A request is not the JSON that this agent expects; nothing was done."""

    code = "BodyInvalid"


def parse_plan_request(body: Mapping[str, Any], request_name: str) -> PlanRequest:
    """Validate a request and decode its plan; :func:`with_policy` fills in the policy.

    Raises:
        BodyInvalidError: a field is missing or invalid.
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
            f"the fields of {request_name} are invalid: {error} Nothing was planned; are both"
            " agents of one release?"
        ) from None


def with_policy(request: PlanRequest, policy: str, *, granted: bool) -> PlanRequest:
    """Return the request with the export's policy; without ``granted`` it acknowledges nothing."""
    positions = request.positions if granted else {}
    return replace(request, policy=policy, positions=positions, granted=granted)


def read_ranges(body: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return the epochs ``[first, next)`` of a plan that is registered again, by stream.

    Raises:
        BodyInvalidError: a range is not two ascending numbers.
    """
    ranges: dict[str, tuple[int, int]] = {}
    ranges_by_stream = body.get("ranges")
    for stream, pair in (
        ranges_by_stream.items() if isinstance(ranges_by_stream, Mapping) else [("", None)]
    ):
        numbers = list(pair) if isinstance(pair, list | tuple) else []
        if len(numbers) != 2 or not all(_is_number(n) for n in numbers) or numbers[0] > numbers[1]:
            raise BodyInvalidError(
                f"ranges of peer.replan have to be [first, next] by stream, not {stream!r}:"
                f" {pair!r:.80}. Nothing was planned; are both agents of one release?"
            )
        ranges[stream] = (numbers[0], numbers[1])
    return ranges


def read_chains(body: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the exports that readers' queries wait for, by reader; older agents send none.

    Raises:
        BodyInvalidError: the field is invalid.
    """
    try:
        fields = Fields(body).child("waits")
        return {r: _read_texts(fields, r, MAX_CHAIN) or [] for r in fields.names()}
    except ManifestError as error:
        raise BodyInvalidError(f"`waits` of peer.watch is invalid: {error}") from None


def _check_filter_and_columns(fields: Fields) -> None:
    fields.optional_text("filter", longest=_MAX_TEXT)
    fields.optional_text("schema", longest=_MAX_TEXT)
    _read_texts(fields, "columns")


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_INT64


def _read_last_batch(fields: Fields) -> tuple[str, int] | None:
    value = fields.get("last")
    if value is None:
        return None
    if (
        not isinstance(value, list | tuple)
        or [type(v) for v in value] != [str, int]
        or not -1 <= value[1] <= _MAX_INT64
    ):
        raise fields.error_at("last", "has to be a query id and the id of a batch")
    return value[0], value[1]


def _read_call(fields: Fields) -> tuple[str, int] | None:
    value = fields.get("call")
    if value is None:
        return None
    if (
        not isinstance(value, list | tuple)
        or [type(v) for v in value] != [str, int]
        or not (len(value[0]) <= MAX_READER_ID and _is_number(value[1]))
    ):
        raise fields.error_at(
            "call", "has to be an incarnation of an agent and the number of a call in it"
        )
    return value[0], value[1]


def _read_numbers(fields: Fields, key: str, *, required: bool = False) -> dict[str, int]:
    if required and not fields.has(key):
        raise fields.error_at(key, "is required")
    child = fields.child(key)
    return {stream: child.integer(stream, high=_MAX_INT64) for stream in child.names()}


def _read_texts(fields: Fields, key: str, limit: int = _MAX_INT64) -> list[str] | None:
    if not fields.has(key):
        return None
    texts = fields.items(key, max_items=limit)
    if not all(isinstance(one, str) for one in texts):
        raise fields.error_at(key, "has to be a list of texts")
    return texts


def _read_control_types(fields: Fields) -> frozenset[str] | None:
    """Return the control types that do not cut batches, None for a reader without control."""
    types = _read_texts(fields, "control")
    return None if types is None else frozenset(types)


def _read_seconds(fields: Fields, key: str) -> float:
    seconds = fields.get(key)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise fields.error_at(key, "has to be a number of seconds")
    if not (math.isfinite(seconds) and seconds >= 0):
        raise fields.error_at(key, f"is {seconds}, which is not a valid lifetime")
    return float(seconds)
