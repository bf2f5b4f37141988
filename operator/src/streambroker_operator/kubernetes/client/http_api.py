"""What status, Lease, Events and reviews need of the Kubernetes API: one call.

It has connections of its own, so that a watch or a list in pages never stands before a renewal.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Protocol

import aiohttp

from streambroker_operator.kubernetes.client.connection import ConnectionPool
from streambroker_operator.kubernetes.client.kubeconfig import Access

CONNECTIONS = 16

_MAX_ERROR_CHARS = 300


class ApiUnreachableError(Exception):
    """The API server gave no answer in time, or none at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the API server answered, whatever its status.

    Attributes:
        retry_after_s: seconds after which it wants to be asked again, or None.
    """

    status: int
    body: Mapping[str, Any] = field(default_factory=dict)
    retry_after_s: float | None = None


def micro_time(seconds: float) -> str:
    """Return a time as Leases and Events carry it: UTC, with microseconds.

    Args:
        seconds: since 1970.
    """
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Api(Protocol):
    """Makes one call; does not repeat it."""

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        timeout_s: float = 10.0,
    ) -> Answer:
        """Return the answer, also where it is an error.

        Raises:
            ApiUnreachableError: there was none.
        """
        ...


class HttpApi:
    """Calls over HTTP.

    Args:
        access: where the API server is, and the credentials.
    """

    def __init__(self, access: Access) -> None:
        self._connection = ConnectionPool(access, CONNECTIONS)

    async def close(self) -> None:
        """Close all connections."""
        await self._connection.close()

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        timeout_s: float = 10.0,
    ) -> Answer:
        """Return the answer, also where it is an error.

        Raises:
            ApiUnreachableError: there was none, or none in time.
        """
        try:
            return await self._call(method, path, body, query or {}, content_type, timeout_s)
        except asyncio.TimeoutError as error:
            raise ApiUnreachableError(f"no answer within {timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ApiUnreachableError(f"{type(error).__name__}: {error}") from error

    async def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, str],
        content_type: str,
        timeout_s: float,
    ) -> Answer:
        headers = {"Accept": "application/json"}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = content_type
        # Not `asyncio.wait_for`, which before Python 3.12 may swallow a cancellation.
        limit = aiohttp.ClientTimeout(total=timeout_s)
        async with await self._connection.request(
            method, path, query=query, headers=headers, timeout=limit, data=data
        ) as answer:
            return Answer(
                status=answer.status,
                body=_parse_object(answer.status, await answer.read()),
                retry_after_s=_parse_seconds(answer.headers.get("Retry-After")),
            )


def _parse_object(status: int, text: bytes) -> Mapping[str, Any]:
    """Return the object that an answer is; of a refusal in other words, its message.

    Raises:
        ValueError: it says that all is well, and is no object.
    """
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    if status < 400:
        raise ValueError(f"the answer {status} is no JSON object")
    return {"message": text[:_MAX_ERROR_CHARS].decode(errors="replace").strip()}


def _parse_seconds(text: str | None) -> float | None:
    """Return what ``Retry-After`` says; None where it does not say seconds."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
