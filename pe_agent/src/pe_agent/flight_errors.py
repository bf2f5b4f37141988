"""Errors over Flight: a code and a sentence travel, a traceback does not."""

from __future__ import annotations

import json
from typing import Any

import pyarrow.flight as flight

from streambroker_core.errors import StreambrokerError


class AgentUnreachableError(StreambrokerError):
    """No agent answers at the address; the call may be tried again."""

    code = "AgentUnreachable"


class AgentRefusedError(StreambrokerError):
    """The agent answered with an error. ``code`` is its reason word, ``facts`` what it named."""

    def __init__(self, code: str, message: str, facts: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.facts = facts or {}


def to_flight(error: BaseException) -> flight.FlightError:
    """Translate an error for the wire."""
    code = getattr(error, "code", None) or "InternalError"
    text = (
        str(error) if isinstance(error, StreambrokerError) else f"{type(error).__name__}: {error}"
    )
    info = json.dumps({"code": code, "message": text}).encode()
    return flight.FlightServerError(f"{code}: {text}", extra_info=info)


def from_flight(error: Exception, location: str) -> StreambrokerError:
    """Translate what a Flight call raised."""
    info = getattr(error, "extra_info", b"")
    if info:
        try:
            facts = json.loads(info)
            return AgentRefusedError(facts["code"], facts["message"], facts)
        except (ValueError, KeyError, TypeError):
            pass
    text = str(error).partition(". gRPC client debug context")[0]
    return AgentUnreachableError(f"the agent at {location} does not answer: {text}")
