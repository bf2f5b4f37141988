"""What can go wrong in the broker itself, beside the errors of the core.

::

    StreambrokerError
    ├── StoreError      code StoreUnusable: the database file cannot be used
    ├── AddressError    code AddressUnusable: the broker cannot listen there
    ├── OpenError       code NotSecured: others could reach a broker without tokens
    ├── TokensError     code TokensUnusable: the token file cannot be used
    ├── ClusterError    code ClusterUnusable: no API server can be found or asked
    └── RequestError    a request that cannot be fulfilled, with its HTTP status
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streambroker_core.errors import StreambrokerError
from streambroker_core.model import Kind, PortKey, RuleKey


class StoreError(StreambrokerError):
    """The database file is taken, of a newer release, or not a database."""

    code = "StoreUnusable"


class AddressError(StreambrokerError):
    """The address is taken, or is not of this machine."""

    code = "AddressUnusable"


class OpenError(StreambrokerError):
    """The address can be reached from elsewhere, and there are no tokens."""

    code = "NotSecured"


class TokensError(StreambrokerError):
    """The token file is not there or not one; no token of it is shown."""

    code = "TokensUnusable"


class ClusterError(StreambrokerError):
    """There is no Kubernetes API server, or no way in that the broker knows."""

    code = "ClusterUnusable"


class RequestError(StreambrokerError):
    """A request that cannot be fulfilled.

    Attributes:
        status: of the HTTP answer.
        code: the reason word.
        headers: to be sent with the answer.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        headers: Mapping[str, str] | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.status = status
        self.code = code
        self.headers = dict(headers or {})
        self.facts = dict(facts or {})
        super().__init__(message)


def unknown_port(kind: Kind, key: PortKey) -> RequestError:
    """Return the refusal of a port that nobody declares."""
    return RequestError(404, "UnknownPort", f"{key.owner} has no {kind.lower()} {key.port!r}.")


def unknown_rule(key: RuleKey) -> RequestError:
    """Return the refusal of a rule that is not there."""
    return RequestError(
        404, "UnknownRule", f"The job {key.namespace}/{key.job} has no rule {key.id!r}."
    )


def not_declared(what: str) -> RequestError:
    """Return the refusal to release what only the broker declares."""
    return RequestError(
        409,
        "NotDeclared",
        f"{what} was declared through the broker alone: there is nothing it could go back to."
        " DELETE withdraws it.",
    )
