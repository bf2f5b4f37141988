"""Requests to one API server, under the credentials as they are at that moment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import aiohttp

from streambroker_operator.kubernetes.client.kubeconfig import Access, Credentials

DEFAULT_LIMIT = 100
"""Connections of one pool, as aiohttp has them."""


class ConnectionPool:
    """A pool of connections.

    Args:
        access: where the API server is, and the credentials.
        limit: how many there are at the same time.
    """

    def __init__(self, access: Access, limit: int = DEFAULT_LIMIT) -> None:
        self._server = access.server
        self._credentials = Credentials(access)
        self._limit = limit
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close all of them."""
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
        timeout: aiohttp.ClientTimeout,
        data: bytes | None = None,
    ) -> aiohttp.ClientResponse:
        """Return an answer that has begun; whoever gets it has to close it.

        Raises:
            OSError: there is none, or the credentials cannot be read.
            aiohttp.ClientError: there is none.
            asyncio.TimeoutError: there is none in time.
        """
        found = self._credentials
        token = await asyncio.to_thread(found.token) if found.is_slow else found.token()
        shown = {} if token is None else {"Authorization": f"Bearer {token}"}
        answer = await self._get_session().request(
            method,
            self._server + path,
            params=query,
            data=data,
            headers={**headers, **shown},
            timeout=timeout,
            ssl=self._credentials.tls() if self._server.startswith("https:") else False,
            allow_redirects=False,
        )
        if answer.status == 401:
            found.on_unauthorised()
        return answer

    def _get_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            # Bytes cost less than the time to compress them, and no proxy stands in between.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._limit),
                trust_env=False,
                headers={"Accept-Encoding": "identity", "User-Agent": "streambroker"},
            )
        return self._session
