"""Checks of each call to an agent before its handler runs.

Flight reads a whole unary request, of any size, before our code runs. Where other machines reach
the agent, TLS therefore requires a client certificate (decision 0050). Rows of a task are streamed;
unauthorized streams are refused here before their first message is read.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.flight as flight

from pe_agent.transport.agent_client import AUTHORIZATION, bearer
from pe_agent.transport.flight_errors import to_flight
from streambroker_core.errors import StreambrokerError
from streambroker_core.wire.agent_rpc.codec import Actions, MessageInvalidError

CALLER = "caller"
"""Name of the middleware."""
MAX_PEER_BODY = 256 << 10
"""Maximum bytes of a request without the agent's token; larger ones are not copied or parsed."""
MAX_BODY = 16 << 20
MAX_BODY_BY_ACTION = {"publisher.publish": 64 << 20}
"""Maximum bytes of a request; a commit includes all control tuples of its batch."""

MAX_LEASE = 60.0
"""Maximum seconds of a lease that another agent asks for."""

_SERVED = (flight.FlightMethod.DO_ACTION, flight.FlightMethod.DO_GET, flight.FlightMethod.DO_PUT)


class BodyInvalidError(StreambrokerError):
    """A request is not the JSON that this agent expects; nothing was done."""

    code = "BodyInvalid"


class TokenWrongError(StreambrokerError):
    """The caller's token is missing or wrong; nothing was done."""

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
    """Checks the headers of each call, before a streamed request is read."""

    def __init__(self, token: str) -> None:
        self._token = token

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, Sequence[str]]) -> Caller:
        """Authenticate a call.

        Raises:
            FlightError: the method is not served, or a DoPut lacks the agent's token.
        """
        if info.method not in _SERVED:
            raise to_flight(BodyInvalidError("an agent serves actions, DoGet and DoPut only"))
        tokens = [str(value) for value in headers.get(AUTHORIZATION, ())]
        has_token = any(equal_in_constant_time(value, bearer(self._token)) for value in tokens)
        if info.method == flight.FlightMethod.DO_PUT and not has_token:
            raise to_flight(TokenWrongError())
        return Caller(has_token)


def equal_in_constant_time(candidate: str, secret: str) -> bool:
    """Return whether two texts are equal, in constant time."""
    return hmac.compare_digest(candidate.encode(), secret.encode())


def max_body_for(action: str, *, has_token: bool) -> int:
    """Return the maximum bytes of an action's request; ``has_token`` as in `Caller`."""
    if action.startswith("peer.") or not has_token:
        return MAX_PEER_BODY
    return MAX_BODY_BY_ACTION.get(action, MAX_BODY)


def perform(actions: Actions, action: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Perform an action.

    Raises:
        BodyInvalidError: another agent's request lacks a field, or has an invalid one.
        MessageInvalidError: the same of the own job, which is logged with its trace.
    """
    try:
        return actions.handle(action, body)
    except MessageInvalidError as error:
        if not action.startswith("peer."):
            raise
        raise BodyInvalidError(
            f"the fields of {action} are invalid: {error}. Nothing was done; are both agents of one"
            " release?"
        ) from None
