"""Errors over Flight: code and message are sent, tracebacks are not."""

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
    """No agent responds at the address; the caller may retry."""

    code = "AgentUnreachable"


CODE_NOTE = "Error code: "
"""Start of the note with the code of an error that an agent has sent."""


class AgentRefusedError(StreambrokerError):
    """The agent responded with an error: its ``code`` and all its ``facts``."""

    def __init__(self, code: str, message: str, facts: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.add_note(f"{CODE_NOTE}{code}")  # part of a traceback, which is all that Spark keeps
        self.code = code
        self.facts = facts or {}


MAX_REASON = 100_000
"""Maximum characters of a reason; the middle of a longer one is omitted."""
METADATA_BYTES = 4 << 20
"""Metadata limit of a caller: gRPC sends errors as metadata, and drops all of it beyond."""
_TOO_LONG = "metadata size exceeds"


def to_flight(error: BaseException) -> flight.FlightError:
    """Encode an error for Flight.

    Flight repeats the message several times in the metadata, so the message is cut to its
    beginning. ``extra_info`` has the whole reason.
    """
    code, text = to_facts(error)
    info = json.dumps({"code": code, "message": text}, ensure_ascii=False)
    return flight.FlightServerError(f"{code}: {text:.200}", extra_info=info.encode())


def to_facts(error: BaseException) -> tuple[str, str]:
    """Return code and text of an error; the middle of a long text is omitted."""
    code = getattr(error, "code", None) or "InternalError"
    text = (
        str(error) if isinstance(error, StreambrokerError) else f"{type(error).__name__}: {error}"
    )
    text = text.encode(errors="backslashreplace").decode()  # lone surrogates cannot be encoded
    if len(text) > MAX_REASON:
        text = f"{text[: MAX_REASON // 2]} … {text[-MAX_REASON // 2 :]}"
    return code, text


def from_flight(error: Exception, location: str) -> StreambrokerError:
    """Decode the error that a Flight call raised."""
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
            f"the agent at {location} refuses the request, but its reason is too long to be"
            " received: see its log. Is that agent of an older release?",
        )
    return AgentUnreachableError(
        f"the agent at {location} does not answer: {text}{_remedy(location, text)}"
    )


def _remedy(location: str, text: str) -> str:
    if not location.startswith(AGENT_TLS):
        return ""
    if "is not in peer certificate" in text:
        return (
            ". Its certificate is not one of an agent: it has to contain the DNS name"
            f" {AGENT_NAME}."
        )
    if "certificate verify failed" in text:
        return (
            ". Its certificate has expired, or is not signed by a trusted CA: give the CA's file"
            f" with `AgentTls.ca` or {AGENT_CA_VARIABLE}."
        )
    if "Socket closed" in text:  # gRPC's only hint that the caller's certificate is missing
        return (
            ". If it requires certificates of its callers, present one of its CA:"
            f" `AgentTls.certificate` and `AgentTls.key`, or {CERTIFICATE_VARIABLE} and"
            f" {KEY_VARIABLE}; also on executors."
        )
    return ""
