"""Rules behind a URL: a rule, a list of rules, or an object with ``patterns``, as JSON or YAML."""

from __future__ import annotations

import hashlib
import http.client
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import (
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    Request,
)

from pe_agent.cep.discovery.directory import read_documents, unwrap_rule
from pe_agent.cep.discovery.discoverer import (
    DiscoveryError,
    PeriodicPatternProcessorDiscoverer,
    Wanted,
)
from pe_agent.cep.discovery.manager import PatternProcessorManager
from pe_agent.transport.broker_trust import BrokerTrust
from pe_agent.transport.tokens import Token
from streambroker_core.cep.rules.rule_set import UnreadableRule

TIMEOUT_SECONDS = 10.0
MAX_BYTES = 16 << 20
MAX_PAUSE_SECONDS = 300.0
MAX_DOUBLINGS = 8
RULES_KEY = "patterns"
"""Key of the list of rules in a response that is an object."""


class HttpDiscoverer(PeriodicPatternProcessorDiscoverer):
    """Polls a URL, with the ETag of the last response.

    If the server is unreachable, refuses, or returns no list of rules, the rules stay; ``problem``
    has the reason. It is then polled less often, down to every five minutes. An item that is no
    rule is refused alone.
    """

    def __init__(
        self,
        url: str,
        interval: float = 10.0,
        *,
        token: Token | None = None,
        trust: BrokerTrust | None = None,
    ) -> None:
        """Set the URL.

        Args:
            url: ``http://`` or ``https://``; redirects are not followed.
            interval: seconds between two polls.
            token: token for ``Authorization: Bearer``; None for no such header.
            trust: trusted CA certificates of the server; None for those that the system trusts.

        Raises:
            ValueError: it is no such URL.
        """
        super().__init__(interval)
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an address of rules: give http://… or https://…")
        self._url, self._token = url, token or Token()
        self._trust = (trust or BrokerTrust()) if parts.scheme == "https" else None
        self._etag: str | None = None
        self._digest: bytes | None = None
        self._fetched: list[Any] | None = None
        self._failures, self._retry_after = 0, 0.0

    def check_pattern_processor_update(self) -> bool:
        """Return whether the server has other rules."""
        self._fetched = self._fetch()
        return self._fetched is not None

    def latest_pattern_processors(self) -> Wanted:
        """Return the server's rules; raise DiscoveryError if it returns no list of rules."""
        if self._fetched is None:
            self._etag = self._digest = None
            self._fetched = self._fetch()
        items, self._fetched = self._fetched or [], None
        return [
            rule
            if isinstance(rule, dict)
            else UnreadableRule(
                rule=f"number {number}", problem=f"it is {rule!r:.80}, not a mapping"
            )
            for number, rule in enumerate(items)
        ]

    def poll(self, manager: PatternProcessorManager) -> None:
        """Poll once, and count consecutive failures."""
        self._retry_after = 0.0
        super().poll(manager)
        self._failures = 0 if self.problem is None else self._failures + 1

    def pause(self) -> float:
        """Return the interval; longer after failures, or if the server asked for it."""
        longer = self.interval * 2.0 ** min(self._failures, MAX_DOUBLINGS)
        bounded = max(self.interval, min(longer, MAX_PAUSE_SECONDS))
        return max(bounded, min(self._retry_after, MAX_PAUSE_SECONDS))

    def _fetch(self) -> list[Any] | None:
        try:
            with self._open() as answer:
                return self._read(answer, answer.headers)
        except HTTPError as error:
            with error:
                if error.code == 304:
                    return None
                self._retry_after = _parse_retry_after(error.headers.get("Retry-After"))
                raise DiscoveryError(f"{self._url} answers {error.code} {error.reason}") from error
        except (OSError, URLError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, URLError) else error
            raise DiscoveryError(f"{self._url} does not answer: {reason}") from error

    def _open(self) -> Any:
        request = Request(self._url)  # noqa: S310 - its scheme is checked, and no other is handled
        request.add_header("Accept", "application/json, application/yaml;q=0.9")
        if self._etag is not None:
            request.add_header("If-None-Match", self._etag)
        token = self._token.current()
        if token is not None:
            request.add_header("Authorization", f"Bearer {token}")
        opener = OpenerDirector()
        tls_context = None if self._trust is None else self._trust.context()
        for handler in (HTTPHandler(), HTTPSHandler(context=tls_context), _StatusErrorProcessor()):
            opener.add_handler(handler)
        return opener.open(request, timeout=TIMEOUT_SECONDS)

    def _read(self, answer: Any, headers: Mapping[str, str]) -> list[Any] | None:
        body = answer.read(MAX_BYTES + 1)
        if len(body) > MAX_BYTES:
            raise DiscoveryError(f"the answer of {self._url} has more than {MAX_BYTES} bytes")
        digest = hashlib.sha256(body).digest()
        documents = None if digest == self._digest else self._parse_rules(body, headers)
        self._etag, self._digest = headers.get("ETag"), digest
        return documents

    def _parse_rules(self, body: bytes, headers: Mapping[str, str]) -> list[Any]:
        try:
            text = body.decode()
        except UnicodeDecodeError as error:
            raise DiscoveryError(f"the answer of {self._url} is not UTF-8") from error
        documents = read_documents(text, self._url, yaml="yaml" in headers.get("Content-Type", ""))
        if (
            len(documents) == 1
            and isinstance(documents[0], dict)
            and isinstance(documents[0].get(RULES_KEY), list)
        ):
            return [unwrap_rule(each) for each in documents[0][RULES_KEY]]
        return documents


class _StatusErrorProcessor(HTTPErrorProcessor):
    """Raise on every non-2xx status; do not follow redirects."""

    def http_response(self, request: Any, response: Any) -> Any:
        if 200 <= response.status < 300:
            return response
        raise HTTPError(
            request.full_url, response.status, response.reason, response.headers, response
        )

    https_response = http_response


def _parse_retry_after(text: str | None) -> float:
    """Return the seconds of ``Retry-After``; 0 if it is missing or a date."""
    return float(text) if text is not None and text.isascii() and text.isdigit() else 0.0
