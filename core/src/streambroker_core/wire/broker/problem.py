"""Problem documents (RFC 9457): the broker's HTTP error responses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from streambroker_core.errors import (
    ExpressionError,
    ManifestError,
    PropertyError,
    StreambrokerError,
)

CONTENT_TYPE = "application/problem+json"

_STANDARD_MEMBERS = ("type", "title", "status", "detail", "code")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An HTTP error response.

    Attributes:
        status: HTTP status.
        code: the reason word.
        detail: a whole sentence.
        facts: further members, such as ``position`` and ``hint`` of an expression.
    """

    status: int
    code: str
    detail: str
    facts: Mapping[str, Any] = field(default_factory=dict)


def from_error(error: StreambrokerError, status: int) -> Problem:
    """Return the problem with all facts of an error."""
    facts: dict[str, Any] = {}
    if isinstance(error, ExpressionError):
        facts = {
            "position": dict(error.position),
            "found": error.found,
            "expected": error.expected,
            "hint": error.hint,
        }
    elif isinstance(error, PropertyError):
        facts = {"property": error.name}
    elif isinstance(error, ManifestError):
        facts = {"path": error.path}
    return Problem(status=status, code=error.code, detail=str(error), facts=facts)


def encode(problem: Problem) -> dict[str, Any]:
    """Return the body of the response."""
    return {
        **problem.facts,
        "type": f"urn:streambroker:problem:{problem.code}",
        "title": problem.code,
        "status": problem.status,
        "detail": problem.detail,
        "code": problem.code,
    }


def decode(body: object, *, status: int) -> Problem:
    """Read the body of a response; anything but a problem document gets the code ``Failed``.

    ``status`` is the HTTP status; that of the body is ignored.
    """
    if not isinstance(body, Mapping) or not isinstance(body.get("code"), str):
        return Problem(status=status, code="Failed", detail=f"The broker answered {status}.")
    facts = {str(name): value for name, value in body.items() if name not in _STANDARD_MEMBERS}
    detail = str(body.get("detail") or body.get("title") or f"The broker answered {status}.")
    return Problem(status=status, code=body["code"], detail=detail, facts=facts)
