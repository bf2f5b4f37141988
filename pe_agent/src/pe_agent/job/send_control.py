"""Control tuples that a program sends: to importers of an export, or to its own operators."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pe_agent.job.context import Job
from pe_agent.transport.agent_client import send
from streambroker_core.control.tuples import (
    ALL_TARGETS,
    ControlError,
    Delivery,
    Target,
    check_target,
)
from streambroker_core.control.tuples.envelope import encode_target
from streambroker_core.control.tuples.payloads import encode
from streambroker_core.control.tuples.request import parse_control_request
from streambroker_core.wire.agent_rpc.job import (
    ControlAppend,
    ControlEntry,
    ExportEmit,
    ExportEmitted,
)

POLL_SECONDS = 0.1


class SentControl:
    """A control tuple that was sent; it is durable at the agent. ``id`` is its identity."""

    def __init__(
        self, answer: Mapping[str, Any], fetch_state: Callable[[], dict[str, Any]]
    ) -> None:
        self.id = str(answer["id"])
        self._fetch_state = fetch_state

    def state(self) -> dict[str, Any]:
        """Return its position and which readers have applied it.

        Returns:
            ``id``, ``seq``, ``readers`` (each with ``applied``) and ``applied``. For importers of
            an export also ``stream`` and ``epoch``, null while it waits for the first stream.

        Raises:
            AgentRefusedError: ``NotEmitted``, it is too old and was removed.
        """
        return self._fetch_state()

    def wait_applied(self, timeout: float) -> bool:
        """Wait until all readers have finished a window with it; False after ``timeout`` seconds.

        Without readers it counts as not applied.
        """
        deadline = time.monotonic() + timeout
        while not self.state()["applied"]:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True


def emit_control(
    pe: Job,
    port: str,
    payload: object,
    *,
    delivery: Delivery | str = Delivery.BEGIN,
    at: int | None = None,
    target: Target = ALL_TARGETS,
    request: str | None = None,
) -> SentControl:
    """Send a control tuple to all importers of an export that read control.

    It gets an epoch of its own, after all that was published before.

    Args:
        pe: PE of the export.
        port: name of the export.
        payload: a dataclass, or a mapping with ``type`` and ``payload``.
        delivery: when it is delivered to operators.
        at: event time in microseconds, with ``AT_TIME``.
        target: the operators that it is for.
        request: id of the request; a repeated one sends nothing more. Random by default.

    Raises:
        ControlError, ControlLimitError, ManifestError: it cannot be a control tuple.
        AgentRefusedError: the export is not known, or full.
    """
    job = pe.context
    emit = ExportEmit(
        export=port,
        request=request or secrets.token_hex(16),
        what=_build_request(payload, delivery, at, target),
    )
    answer = send(job.agent, emit)
    emitted = ExportEmitted(export=port, seq=answer["seq"])
    return SentControl(answer, lambda: send(job.agent, emitted))


def send_control(
    pe: Job,
    payload: object,
    *,
    operator: str | None = None,
    delivery: Delivery | str = Delivery.BEGIN,
    at: int | None = None,
    target: Target = ALL_TARGETS,
    request: str | None = None,
) -> SentControl:
    """Send a control tuple to the job's own operators, through the agent's control log.

    It is delivered in the next window of each query with a source that carries the log.

    Args:
        pe: PE of the operators.
        payload: a dataclass, or a mapping with ``type`` and ``payload``.
        operator: name of the operator; None for all.
        delivery: when it is delivered to operators; ``IMMEDIATE`` is before all rows of the window.
        at: event time in microseconds, with ``AT_TIME``.
        target: further restriction beyond ``operator``: a bucket, a key.
        request: id of the request; a repeated one sends nothing more. Random by default.

    Raises:
        ControlError, ControlLimitError, ManifestError: it cannot be a control tuple, or
            ``operator`` and ``target`` name two operators.
        AgentRefusedError: the log is full of tuples that a query has not read.
    """
    check_target(target)
    if operator is not None:
        if target.operator not in (None, operator):
            raise ControlError(
                f"the tuple is for operator {operator}, but its target names {target.operator}:"
                " remove one of the two."
            )
        target = replace(target, operator=operator)
    job = pe.context
    append = ControlAppend(
        request=request or secrets.token_hex(16),
        what=_build_request(payload, delivery, at, target),
    )
    answer = send(job.agent, append)
    entry = ControlEntry(seq=answer["seq"])
    return SentControl(answer, lambda: send(job.agent, entry))


def _build_request(
    payload: object, delivery: Delivery | str, at: int | None, target: Target
) -> dict[str, Any]:
    """Return a tuple in the form of a request to an agent."""
    check_target(target)
    fields: dict[str, Any]
    if isinstance(payload, Mapping):
        fields = dict(payload)
    else:
        kind, text = encode(payload)
        fields = {"type": kind, "payload": json.loads(text)}
    fields["delivery"] = delivery.value if isinstance(delivery, Delivery) else delivery
    if at is not None:
        fields["at"] = at
    if target != ALL_TARGETS:
        fields["target"] = encode_target(target)
    return parse_control_request(fields).encode()
