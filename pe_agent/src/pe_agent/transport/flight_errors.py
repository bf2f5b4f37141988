"""Errors over Flight: a code and a sentence travel, a traceback does not."""

from __future__ import annotations

import json
from typing import Any

import pyarrow.flight as flight

from pe_agent.transport.broker_trust import (
    AGENT_CA_VARIABLE,
    AGENT_NAME,
    AGENT_TLS,
    CERTIFICATE_VARIABLE,
    KEY_VARIABLE,
)
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


MAX_REASON = 100_000
"""Characters of a reason; the middle of a longer one is left out."""
METADATA_BYTES = 4 << 20
"""What a caller takes of an error: gRPC sends it as metadata, and drops it all beyond its limit."""
_TOO_LONG = "metadata size exceeds"


def to_flight(error: BaseException) -> flight.FlightError:
    """Translate an error for the wire.

    Flight repeats the message several times in the metadata, so that has only the beginning; the
    whole reason is in ``extra_info``.
    """
    code = getattr(error, "code", None) or "InternalError"
    text = (
        str(error) if isinstance(error, StreambrokerError) else f"{type(error).__name__}: {error}"
    )
    text = text.encode(errors="backslashreplace").decode()  # half of a surrogate pair does not go
    if len(text) > MAX_REASON:
        text = f"{text[: MAX_REASON // 2]} … {text[-MAX_REASON // 2 :]}"
    info = json.dumps({"code": code, "message": text}, ensure_ascii=False)
    return flight.FlightServerError(f"{code}: {text:.200}", extra_info=info.encode())


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
    if _TOO_LONG in text:
        return AgentRefusedError(
            "ReasonUnread",
            f"the agent at {location} refuses, and its reason is too long to be received: its log"
            " has the request. Is that agent of an older release?",
        )
    return AgentUnreachableError(
        f"the agent at {location} does not answer: {text}{_remedy(location, text)}"
    )


def _remedy(location: str, text: str) -> str:
    """Return what to do about a call that failed, if TLS may be the reason; else nothing."""
    if not location.startswith(AGENT_TLS):
        return ""
    if "is not in peer certificate" in text:
        return f". Its certificate is none of an agent: it has to carry the DNS name {AGENT_NAME}."
    if "certificate verify failed" in text:
        return (
            ". Its certificate has ended, or comes from nobody who is trusted here: give the CA's"
            f" file with `agent_ca=` or {AGENT_CA_VARIABLE}."
        )
    if "Socket closed" in text:  # all that gRPC tells a caller whose certificate is missing
        return (
            ". If it asks its callers for certificates, show one of its CA: `agent_certificate=`"
            f" and `agent_key=`, or {CERTIFICATE_VARIABLE} and {KEY_VARIABLE}; executors, too."
        )
    return ""
