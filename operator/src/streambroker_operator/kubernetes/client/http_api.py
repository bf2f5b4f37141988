"""Single calls to the Kubernetes API, for status, Lease, Events and reviews.

It has its own connections, so that watches and paged lists never delay the renewal of the Lease.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import aiohttp

from streambroker_operator.kubernetes.client.connection import ConnectionPool
from streambroker_operator.kubernetes.client.documents import Document
from streambroker_operator.kubernetes.client.kubeconfig import Access

CONNECTIONS = 16

_MAX_ERROR_CHARS = 300


class ApiUnreachableError(Exception):
    """No response from the API server, or none in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Response of the API server with any status.

    Attributes:
        retry_after_s: seconds that the server asks to wait, or None.
    """

    status: int
    body: Document = field(default_factory=Document)
    retry_after_s: float | None = None

    @property
    def is_overloaded(self) -> bool:
        """Whether the server could not handle the request: 429 or 5xx."""
        return self.status == 429 or self.status >= 500


def micro_time(seconds: float) -> str:
    """Format a time (seconds since 1970) for Leases and Events: UTC, with microseconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def object_at(value: object, *path: str) -> Mapping[str, Any]:
    """Return the object at a path of a document; empty if there is none."""
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


class HttpApi:
    """Calls over HTTP."""

    def __init__(self, access: Access) -> None:
        self._connection = ConnectionPool(access, CONNECTIONS)

    async def close(self) -> None:
        """Close all connections."""
        await self._connection.close()

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        timeout_s: float = 10.0,
    ) -> Answer:
        """Make one call without retries; return the response, including errors.

        Raises:
            ApiUnreachableError: no response, or none in time.
        """
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            # Not `asyncio.wait_for`, which before Python 3.12 may swallow a cancellation.
            async with await self._connection.request(
                method,
                path,
                query=query or {},
                headers=headers,
                limits=aiohttp.ClientTimeout(total=timeout_s),
                data=None if body is None else json.dumps(body).encode(),
            ) as response:
                return Answer(
                    status=response.status,
                    body=_parse_object(response.status, await response.read()),
                    retry_after_s=parse_seconds(response.headers.get("Retry-After")),
                )
        except TimeoutError as error:
            raise ApiUnreachableError(f"no answer within {timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ApiUnreachableError(f"{type(error).__name__}: {error}") from error


def _parse_object(status: int, text: bytes) -> Document:
    """Return the object in a body; for an error without JSON object, one with its message.

    Raises:
        ValueError: a successful response is no JSON object.
    """
    try:
        result = json.loads(text)
    except ValueError:
        result = None
    if isinstance(result, dict):
        return cast(Document, result)
    if status < 400:
        raise ValueError(f"the answer {status} is not a JSON object")
    return {"message": text[:_MAX_ERROR_CHARS].decode(errors="replace").strip()}


def parse_seconds(text: str | None) -> float | None:
    """Return the seconds of a ``Retry-After`` header; None if it has another form."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
