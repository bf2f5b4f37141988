"""Requests to one API server with the current credentials."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import aiohttp

from streambroker_operator.kubernetes.client.kubeconfig import Access, Credentials

DEFAULT_LIMIT = 100
"""Maximum connections of one pool; the default of aiohttp."""


class ConnectionPool:
    """Connection pool."""

    def __init__(self, access: Access, limit: int = DEFAULT_LIMIT) -> None:
        self._server = access.server
        self._credentials = Credentials(access)
        self._limit = limit
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        limits: aiohttp.ClientTimeout,
        data: bytes | None = None,
    ) -> aiohttp.ClientResponse:
        """Return an open response; the caller has to close it.

        Raises:
            OSError: connecting failed, or the credentials cannot be read.
            aiohttp.ClientError: the request failed.
            asyncio.TimeoutError: no response in time.
        """
        credentials = self._credentials
        token = (
            await asyncio.to_thread(credentials.token)
            if credentials.is_slow
            else credentials.token()
        )
        authorization = {} if token is None else {"Authorization": f"Bearer {token}"}
        response = await self._get_session().request(
            method,
            self._server + path,
            params=query,
            data=data,
            headers={**headers, **authorization},
            timeout=limits,
            ssl=self._credentials.tls() if self._server.startswith("https:") else False,
            allow_redirects=False,
        )
        if response.status == 401:
            credentials.on_unauthorised()
        return response

    def _get_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            # Compression costs more time than it saves here; proxy settings are ignored.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._limit),
                trust_env=False,
                headers={"Accept-Encoding": "identity", "User-Agent": "streambroker"},
            )
        return self._session
