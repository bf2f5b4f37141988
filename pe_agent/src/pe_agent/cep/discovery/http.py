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
"""Where a list of rules stands that is answered as an object."""


class HttpDiscoverer(PeriodicPatternProcessorDiscoverer):
    """Asks a URL again and again, with the ETag of what it has.

    A server that is away, refuses, or answers what is no list of rules keeps the rules, and is
    asked more rarely, up to every five minutes; ``problem`` says why. An item that is no rule is
    refused alone.
    """

    def __init__(
        self,
        url: str,
        interval: float = 10.0,
        *,
        token: Token | None = None,
        trust: BrokerTrust | None = None,
    ) -> None:
        """Define where.

        Args:
            url: ``http://`` or ``https://``; redirections are not followed.
            interval: seconds between two looks.
            token: what to show as ``Authorization: Bearer``; None for nothing.
            trust: from whom a certificate has to come; None for those whom the system trusts.

        Raises:
            ValueError: it is no such URL.
        """
        super().__init__(interval)
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no address of rules: give http://… or https://…")
        self._url, self._token = url, token or Token()
        self._trust = (trust or BrokerTrust()) if parts.scheme == "https" else None
        self._etag: str | None = None
        self._digest: bytes | None = None
        self._fetched: list[Any] | None = None
        self._failures, self._retry_after = 0, 0.0

    def check_pattern_processor_update(self) -> bool:
        """Tell whether the server has other rules."""
        self._fetched = self._fetch()
        return self._fetched is not None

    def latest_pattern_processors(self) -> Wanted:
        """Return the rules that the server has.

        Raises:
            DiscoveryError: it cannot be asked, or its answer is no list of rules.
        """
        if self._fetched is None:
            self._etag = self._digest = None
            self._fetched = self._fetch()
        found, self._fetched = self._fetched or [], None
        return [
            rule
            if isinstance(rule, dict)
            else UnreadableRule(
                rule=f"number {place}", problem=f"it is {rule!r:.80}, and no mapping"
            )
            for place, rule in enumerate(found)
        ]

    def poll(self, manager: PatternProcessorManager) -> None:
        """Look once, and count how often in a row that was in vain."""
        self._retry_after = 0.0
        super().poll(manager)
        self._failures = 0 if self.problem is None else self._failures + 1

    def pause(self) -> float:
        """Return the interval; longer, where the server was away or asked for that."""
        longer = self.interval * 2.0 ** min(self._failures, MAX_DOUBLINGS)
        bounded = max(self.interval, min(longer, MAX_PAUSE_SECONDS))
        return max(bounded, min(self._retry_after, MAX_PAUSE_SECONDS))

    def _fetch(self) -> list[Any] | None:
        """Return what the server has; None where that is what is known."""
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
        shown = self._token.current()
        if shown is not None:
            request.add_header("Authorization", f"Bearer {shown}")
        opener = OpenerDirector()
        secured = None if self._trust is None else self._trust.context()
        for handler in (HTTPHandler(), HTTPSHandler(context=secured), _StatusErrorProcessor()):
            opener.add_handler(handler)
        return opener.open(request, timeout=TIMEOUT_SECONDS)

    def _read(self, answer: Any, headers: Mapping[str, str]) -> list[Any] | None:
        body = answer.read(MAX_BYTES + 1)
        if len(body) > MAX_BYTES:
            raise DiscoveryError(f"{self._url} answers more than {MAX_BYTES} bytes")
        digest = hashlib.sha256(body).digest()
        found = None if digest == self._digest else self._parse_rules(body, headers)
        self._etag, self._digest = headers.get("ETag"), digest
        return found

    def _parse_rules(self, body: bytes, headers: Mapping[str, str]) -> list[Any]:
        try:
            text = body.decode()
        except UnicodeDecodeError as error:
            raise DiscoveryError(f"{self._url} answers what is no UTF-8") from error
        found = read_documents(text, self._url, yaml="yaml" in headers.get("Content-Type", ""))
        if (
            len(found) == 1
            and isinstance(found[0], dict)
            and isinstance(found[0].get(RULES_KEY), list)
        ):
            return [unwrap_rule(each) for each in found[0][RULES_KEY]]
        return found


class _StatusErrorProcessor(HTTPErrorProcessor):
    """Raises whatever is not 2xx; there is nobody who follows a redirection."""

    def http_response(self, request: Any, response: Any) -> Any:
        if 200 <= response.status < 300:
            return response
        raise HTTPError(
            request.full_url, response.status, response.reason, response.headers, response
        )

    https_response = http_response


def _parse_retry_after(text: str | None) -> float:
    """Return what ``Retry-After`` says in seconds; a date counts as nothing."""
    return float(text) if text is not None and text.isascii() and text.isdigit() else 0.0
