"""Call a broker over HTTP from the command line."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from streambroker_core.model import PortKey
from streambroker_core.wire import problem as problems
from streambroker_operator.errors import RequestError

BASE = "/api/subscriptions"
TIMEOUT_S = 30.0


class Caller:
    """A broker's address.

    Args:
        url: such as ``http://127.0.0.1:8470``.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        if not self._url.startswith(("http://", "https://")):
            raise RequestError(0, "UrlInvalid", f"{url!r} is not an http:// address.")

    def call(self, method: str, path: str, body: object = None, **query: str) -> Any:
        """Return the answer's JSON; None where it has none.

        Raises:
            RequestError: the broker refuses or cannot be reached (status 0).
        """
        address = f"{self._url}{BASE}{path}"
        if query:
            address += "?" + urllib.parse.urlencode(query)
        data = None if method in ("GET", "DELETE") else json.dumps(body).encode()
        request = urllib.request.Request(address, data=data, method=method)  # noqa: S310 - checked
        request.add_header("Content-Type", "application/json")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=TIMEOUT_S) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise _refusal(error) from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise RequestError(
                0,
                "BrokerUnavailable",
                f"No broker answers at {self._url}: {reason}. Start one with `streambroker up`, or "
                "set STREAMBROKER_URL or --url.",
            ) from error
        return json.loads(text) if text else None


def _refusal(error: urllib.error.HTTPError) -> RequestError:
    with error:
        try:
            body: object = json.loads(error.read())
        except ValueError:
            body = None
    found = problems.decode(body, status=error.code)
    return RequestError(found.status, found.code, found.detail, facts=found.facts)


def port_path(kind: str, key: PortKey) -> str:
    """Return the path of a port below the base."""
    return f"/job/{key.job}/pe/{key.pe}/{kind.lower()}/{key.port}"
