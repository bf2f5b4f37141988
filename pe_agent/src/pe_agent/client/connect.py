"""The client of the broker, with the settings of a job."""

from __future__ import annotations

import math
import os

from pe_agent.job.arguments import ArgumentError, seconds
from pe_agent.job.settings import BrokerAuth
from pe_agent.transport.broker_trust import resolve_broker_trust
from pe_agent.transport.tokens import resolve_token
from streambroker_client.broker import Broker
from streambroker_client.connection import Connection
from streambroker_core.model import DEFAULT_NAMESPACE
from streambroker_core.model.durations import Duration

URL_VARIABLE = "STREAMBROKER_URL"
DEFAULT_URL = "http://127.0.0.1:8470"


def connect(
    broker: str | None = None,
    *,
    namespace: str = DEFAULT_NAMESPACE,
    auth: BrokerAuth | None = None,
    timeout: Duration = "30s",
) -> Broker:
    """Return a client of the broker's control plane; sends no request.

    Args:
        broker: address of the broker; default ``$STREAMBROKER_URL`` or ``http://127.0.0.1:8470``.
        namespace: where ports and jobs are looked for; ``*`` for lists of all namespaces.
        auth: token and CA; default is the environment's.
        timeout: how long the broker may be silent.

    Raises:
        BrokerUnavailableError: the address is not one of a broker.
        TokenError, TrustError, ArgumentError: a setting is wrong.
    """
    auth = auth or BrokerAuth()
    timeout_s = seconds(timeout, "timeout")
    if not 0 < timeout_s < math.inf:
        raise ArgumentError(f"timeout is {timeout!r}; it has to be more than 0 and finite.")
    token = resolve_token(auth.token, auth.token_file)
    trust = resolve_broker_trust(auth.ca)
    return Broker(
        Connection(broker_url(broker), token.current, trust.context, timeout_s),
        namespace,
    )


def broker_url(broker: str | None) -> str:
    """Return the given address, else that of the environment, else the default."""
    return broker or os.environ.get(URL_VARIABLE) or DEFAULT_URL
