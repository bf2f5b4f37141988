"""Control tuples that a program sends: to importers of an export, or to its own operators."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pe_agent.job.applied import wait_applied
from pe_agent.job.context import JobContext
from pe_agent.job.statuses import ControlStatus
from pe_agent.transport.agent_client import send
from streambroker_core.control.tuples import (
    ALL_TARGETS,
    ControlError,
    Delivery,
    Target,
    check_target,
)
from streambroker_core.control.tuples.envelope import encode_target
from streambroker_core.control.tuples.payloads import Codec, default_delivery, encode
from streambroker_core.control.tuples.request import parse_control_request
from streambroker_core.model.durations import Duration
from streambroker_core.wire.agent_rpc.codec import Request
from streambroker_core.wire.agent_rpc.job import (
    ControlAppend,
    ControlEntry,
    ExportEmit,
    ExportEmitted,
)

POLL_SECONDS = 0.1


class SentControl:
    """A control tuple that was sent; it is durable at the agent. ``id`` is its identity."""

    def __init__(self, job: JobContext, id_: str, request: Request[dict[str, Any]]) -> None:
        self.id = id_
        self._job, self._request = job, request

    def __repr__(self) -> str:
        return f"SentControl({self.id!r})"

    def state(self) -> ControlStatus:
        """Return its position and which readers have applied it.

        Raises:
            AgentRefusedError: ``NotEmitted``, it is too old and was removed.
        """
        state = send(self._job.agent, self._request)
        return ControlStatus.from_json(state)

    def applied(self) -> bool:
        """Return whether all readers have finished a window with it; False without readers."""
        return self.state().applied

    def wait_applied(self, timeout: Duration = "30s") -> ControlStatus:
        """Wait until all readers have finished a window with it.

        Raises:
            NotAppliedError: not within ``timeout``, for instance because there are no readers.
        """
        return wait_applied(self._applied_state, timeout, self._explain_wait, every=POLL_SECONDS)

    def _explain_wait(self) -> str:
        missing = [reader for reader, applied in self.state().readers.items() if not applied]
        if missing:
            why = f"readers {', '.join(missing)} have not finished a window with it"
        else:
            why = "it has no reader (is a query running that was made with subscribe_stream?)"
        return f"control tuple {self.id} is sent, but {why}"

    def _applied_state(self) -> ControlStatus | None:
        state = self.state()
        return state if state.applied else None


class Operators:
    """The operators of a job's queries, as receivers of control tuples."""

    def __init__(self, job: JobContext) -> None:
        self._job = job

    def send(
        self,
        payload: object,
        *,
        operator: str | None = None,
        delivery: Delivery | str | None = None,
        at: int | None = None,
        target: Target = ALL_TARGETS,
        codecs: Sequence[Codec] = (),
        request: str | None = None,
    ) -> SentControl:
        """Send a control tuple to the job's own operators, through the agent's control log.

        It is delivered in the next window of each query with a source that carries the log.

        Args:
            payload: a dataclass, an object with a codec, or a mapping with ``type`` and
                ``payload``.
            operator: name of the operator; None for all.
            delivery: when it is delivered; ``IMMEDIATE`` is before all rows of the window. By
                default as the payload's type declares, else ``END_WINDOW``.
            at: event time in microseconds, with ``AT_TIME``.
            target: further restriction beyond ``operator``: a bucket, a key.
            codecs: how objects of other types are written.
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
                    f"the tuple is for operator {operator}, but its target names"
                    f" {target.operator}: remove one of the two."
                )
            target = replace(target, operator=operator)
        if delivery is None:
            delivery = default_delivery(payload, "pe.operators.send")
        append = ControlAppend(
            request=request or secrets.token_hex(16),
            what=build_request(payload, delivery, at, target, codecs),
        )
        answer = send(self._job.agent, append)
        return SentControl(self._job, str(answer["id"]), ControlEntry(seq=answer["seq"]))


def send_to_importers(
    job: JobContext, port: str, tuple_: dict[str, Any], request: str | None
) -> SentControl:
    """Send a tuple, as `build_request` returns it, to the importers of an export."""
    emit = ExportEmit(export=port, request=request or secrets.token_hex(16), what=tuple_)
    answer = send(job.agent, emit)
    return SentControl(job, str(answer["id"]), ExportEmitted(export=port, seq=answer["seq"]))


def build_request(
    payload: object,
    delivery: Delivery | str,
    at: int | None,
    target: Target,
    codecs: Sequence[Codec] = (),
) -> dict[str, Any]:
    """Return a tuple in the form of a request to an agent."""
    check_target(target)
    fields: dict[str, Any]
    if isinstance(payload, Mapping):
        fields = dict(payload)
    else:
        kind, text = encode(payload, codecs)
        fields = {"type": kind, "payload": json.loads(text)}
    fields["delivery"] = delivery.value if isinstance(delivery, Delivery) else delivery
    if at is not None:
        fields["at"] = at
    if target != ALL_TARGETS:
        fields["target"] = encode_target(target)
    return parse_control_request(fields).encode()
