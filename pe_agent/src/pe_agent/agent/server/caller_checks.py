"""Who calls an agent: what is checked of each call before its handler runs.

Flight reads a unary request whole before anything of ours sees it, whatever its size. Where other
machines reach the agent, TLS asks for a certificate before that (decision 0050). Rows that a task
sends are a stream: here they are refused before their first message is read.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence

import pyarrow.flight as flight

from pe_agent.agent.server.plan_request import BodyInvalidError
from pe_agent.transport.agent_client import AUTHORIZATION, bearer
from pe_agent.transport.flight_errors import to_flight
from streambroker_core.errors import StreambrokerError

CALLER = "caller"
"""Name of the middleware."""
MAX_PEER_BODY = 256 << 10
"""Bytes of a request without the agent's token: nothing larger is copied or parsed."""
MAX_BODY = 16 << 20
MAX_BODY_BY_ACTION = {"publisher.publish": 64 << 20}
"""Bytes of a request; a batch is published with all control tuples that its query passes on."""

_SERVED = (flight.FlightMethod.DO_ACTION, flight.FlightMethod.DO_GET, flight.FlightMethod.DO_PUT)


class TokenWrongError(StreambrokerError):
    """The caller does not know the agent's token; nothing was done."""

    code = "TokenWrong"

    def __init__(self) -> None:
        super().__init__(
            "the agent's token is missing or wrong: start the query through pe_agent, or set"
            " STREAMBROKER_AGENT_TOKEN to the token in the agent's data directory."
        )


class Caller(flight.ServerMiddleware):  # type: ignore[misc]  # pyarrow has no types
    """One call; ``has_token`` if its header has the agent's token."""

    def __init__(self, has_token: bool) -> None:
        self.has_token = has_token


class CallerFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """Looks at the headers of each call, before a streamed request is read."""

    def __init__(self, token: str) -> None:
        self._token = token

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, Sequence[str]]) -> Caller:
        """Return who calls.

        Raises:
            FlightError: the method is not served, or rows come without the agent's token.
        """
        if info.method not in _SERVED:
            raise to_flight(BodyInvalidError("an agent serves actions, DoGet and DoPut only"))
        shown = [str(value) for value in headers.get(AUTHORIZATION, ())]
        known = any(equal_in_constant_time(value, bearer(self._token)) for value in shown)
        if info.method == flight.FlightMethod.DO_PUT and not known:
            raise to_flight(TokenWrongError())
        return Caller(known)


def equal_in_constant_time(candidate: str, secret: str) -> bool:
    """Whether two texts are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(candidate.encode(), secret.encode())


def max_body_for(action: str, *, has_token: bool) -> int:
    """Return how many bytes the request of an action may have.

    Args:
        action: its name.
        has_token: whether the caller's header has the agent's token.
    """
    if action.startswith("peer.") or not has_token:
        return MAX_PEER_BODY
    return MAX_BODY_BY_ACTION.get(action, MAX_BODY)
