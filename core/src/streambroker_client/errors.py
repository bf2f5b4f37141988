"""Errors of requests to the broker: one family for jobs, programs and the command line.

::

    BrokerError
    ├── BrokerUnavailableError    no response, not ready, or overloaded
    └── BrokerRefusedError        the broker answered with a problem
        ├── UnknownPortError
        ├── WrongKindError
        ├── ChangeRefusedError
        └── NotAllowedError
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streambroker_core.errors import StreambrokerError

UNAVAILABLE = (0, 429, 503)
"""Statuses of a broker that may answer later; 0 is no response."""


class BrokerError(StreambrokerError):
    """A request to the broker failed.

    Attributes:
        status: HTTP status; 0 without a response.
        problem: members of the problem document, such as ``position`` of an invalid expression.
    """

    status: int
    problem: Mapping[str, Any]


class BrokerUnavailableError(BrokerError):
    """The broker does not respond, is not ready, or is overloaded.

    Attributes:
        sent: whether the request reached it, so that a change may have been made.
        busy: whether it refused the request because of the caller's rate limit.
    """

    code = "BrokerUnavailable"

    def __init__(
        self,
        message: str,
        *,
        sent: bool = False,
        busy: bool = False,
        status: int = 0,
        problem: Mapping[str, Any] | None = None,
    ) -> None:
        self.sent = sent
        self.busy = busy
        self.status = status
        self.problem = problem or {}
        self.code = str(self.problem.get("code") or type(self).code)
        super().__init__(message)


class BrokerRefusedError(BrokerError):
    """The broker answered with a problem.

    Attributes:
        challenge: the ``WWW-Authenticate`` header; empty if absent.
    """

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        self.status = status
        self.problem = problem
        self.challenge = ""
        self.code = str(problem.get("code") or f"Http{status}")
        super().__init__(str(problem.get("detail") or problem.get("title") or self.code))


class UnknownPortError(BrokerRefusedError):
    """The broker knows no such port, or no such PE."""


class WrongKindError(BrokerRefusedError):
    """The port exists and is of the other kind: by name, not by properties or subscription."""


class ChangeRefusedError(BrokerRefusedError):
    """The broker cannot apply the request; nothing was changed."""


class NotAllowedError(BrokerRefusedError):
    """The token is unknown, or has no permission for the request."""


def refusal_error(status: int, problem: dict[str, Any]) -> BrokerRefusedError:
    """Return the error for a problem document."""
    code = problem.get("code")
    if code in ("UnknownPort", "UnknownPE"):
        return UnknownPortError(status, problem)
    if code == "WrongKind":
        return WrongKindError(status, problem)
    if status in (401, 403):
        return NotAllowedError(status, problem)
    if status in (400, 413, 415, 422) and code not in ("RequestIdReused", None):
        return ChangeRefusedError(status, problem)
    return BrokerRefusedError(status, problem)


def broker_error(status: int, code: str, detail: str, **members: Any) -> BrokerError:
    """Return the error with a code, a sentence, and further members of its problem."""
    problem = {**members, "code": code, "detail": detail}
    if status in UNAVAILABLE:
        return BrokerUnavailableError(detail, busy=status == 429, status=status, problem=problem)
    return refusal_error(status, problem)


def with_members(error: BrokerError, **members: Any) -> BrokerError:
    """Return the error with other members, for instance another ``detail``."""
    return broker_error(
        error.status, **{**error.problem, "code": error.code, "detail": str(error), **members}
    )
