"""Errors of the broker itself; the core defines the others.

::

    StreambrokerError
    ├── StoreError      code StoreUnusable: the database file cannot be used
    ├── AddressError    code AddressUnusable: the broker cannot listen on the address
    ├── OpenError       code NotSecured: reachable from other machines without tokens or TLS
    ├── TokensError     code TokensUnusable: the token file cannot be used
    ├── ClusterError    code ClusterUnusable: no API server, or no access to it
    └── RequestError    a request that fails with an HTTP status
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from streambroker_core.errors import StreambrokerError

if TYPE_CHECKING:
    from streambroker_core.model import Kind, PortKey, RuleKey


class StoreError(StreambrokerError):
    """The database file is locked, of a newer release, or not a database."""

    code = "StoreUnusable"


class AddressError(StreambrokerError):
    """The address is taken, or does not belong to this machine."""

    code = "AddressUnusable"


class OpenError(StreambrokerError):
    """The address is reachable from other machines, and tokens or TLS are missing or unusable."""

    code = "NotSecured"


class TokensError(StreambrokerError):
    """The token file is missing or invalid; messages show no token of it."""

    code = "TokensUnusable"


class ClusterError(StreambrokerError):
    """There is no Kubernetes API server, or no supported way to authenticate."""

    code = "ClusterUnusable"


class RequestError(StreambrokerError):
    """A request that fails with an HTTP status.

    Attributes:
        status: of the HTTP response.
        code: reason code.
        headers: additional response headers.
        facts: additional members of the problem document.
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
    """Return the 404 error for an undeclared port."""
    return RequestError(404, "UnknownPort", f"{key.owner} has no {kind.lower()} {key.port!r}.")


def unknown_rule(key: RuleKey) -> RequestError:
    """Return the 404 error for an unknown rule."""
    return RequestError(
        404, "UnknownRule", f"The job {key.namespace}/{key.job} has no rule {key.id!r}."
    )


def not_declared(what: str) -> RequestError:
    """Return the 409 error for a release of what only the broker declares."""
    return RequestError(
        409,
        "NotDeclared",
        f"{what} was declared through the broker alone: there is no declaration to restore."
        " Apply its earlier manifest with `streambroker apply -f FILE`. The broker's page and"
        " `GET /history` show its last changes since the broker started.",
    )
