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

from pe_agent.cep.discovery.directory import read_documents, rule_in
from pe_agent.cep.discovery.discoverer import (
    DiscoveryError,
    PeriodicPatternProcessorDiscoverer,
    Wanted,
)
from pe_agent.cep.discovery.manager import PatternProcessorManager
from pe_agent.transport.broker_trust import Trust
from pe_agent.transport.tokens import Token
from streambroker_core.cep.rules.rule_set import Unreadable

TIMEOUT_SECONDS = 10.0
MAX_BYTES = 16 << 20
LONGEST_PAUSE_SECONDS = 300.0
MOST_DOUBLED = 8
LIST = "patterns"
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
        trust: Trust | None = None,
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
        self._trust = (trust or Trust()) if parts.scheme == "https" else None
        self._tag: str | None = None
        self._digest: bytes | None = None
        self._fresh: list[Any] | None = None
        self._failures, self._asked_to_wait = 0, 0.0

    def check_pattern_processor_update(self) -> bool:
        """Tell whether the server has other rules."""
        self._fresh = self._fetch()
        return self._fresh is not None

    def latest_pattern_processors(self) -> Wanted:
        """Return the rules that the server has.

        Raises:
            DiscoveryError: it cannot be asked, or its answer is no list of rules.
        """
        if self._fresh is None:
            self._tag = self._digest = None
            self._fresh = self._fetch()
        found, self._fresh = self._fresh or [], None
        return [
            rule
            if isinstance(rule, dict)
            else Unreadable(rule=f"number {place}", problem=f"it is {rule!r:.80}, and no mapping")
            for place, rule in enumerate(found)
        ]

    def look(self, manager: PatternProcessorManager) -> None:
        """Look once, and count how often in a row that was in vain."""
        self._asked_to_wait = 0.0
        super().look(manager)
        self._failures = 0 if self.problem is None else self._failures + 1

    def pause(self) -> float:
        """Return the interval; longer, where the server was away or asked for that."""
        longer = self.interval * 2.0 ** min(self._failures, MOST_DOUBLED)
        bounded = max(self.interval, min(longer, LONGEST_PAUSE_SECONDS))
        return max(bounded, min(self._asked_to_wait, LONGEST_PAUSE_SECONDS))

    def _fetch(self) -> list[Any] | None:
        """Return what the server has; None where that is what is known."""
        try:
            with self._open() as answer:
                return self._read(answer, answer.headers)
        except HTTPError as error:
            with error:
                if error.code == 304:
                    return None
                self._asked_to_wait = _seconds(error.headers.get("Retry-After"))
                raise DiscoveryError(f"{self._url} answers {error.code} {error.reason}") from error
        except (OSError, URLError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, URLError) else error
            raise DiscoveryError(f"{self._url} does not answer: {reason}") from error

    def _open(self) -> Any:
        request = Request(self._url)  # noqa: S310 - its scheme is checked, and no other is handled
        request.add_header("Accept", "application/json, application/yaml;q=0.9")
        if self._tag is not None:
            request.add_header("If-None-Match", self._tag)
        shown = self._token.current()
        if shown is not None:
            request.add_header("Authorization", f"Bearer {shown}")
        opener = OpenerDirector()
        secured = None if self._trust is None else self._trust.context()
        for handler in (HTTPHandler(), HTTPSHandler(context=secured), _Refusals()):
            opener.add_handler(handler)
        return opener.open(request, timeout=TIMEOUT_SECONDS)

    def _read(self, answer: Any, headers: Mapping[str, str]) -> list[Any] | None:
        body = answer.read(MAX_BYTES + 1)
        if len(body) > MAX_BYTES:
            raise DiscoveryError(f"{self._url} answers more than {MAX_BYTES} bytes")
        digest = hashlib.sha256(body).digest()
        found = None if digest == self._digest else self._rules(body, headers)
        self._tag, self._digest = headers.get("ETag"), digest
        return found

    def _rules(self, body: bytes, headers: Mapping[str, str]) -> list[Any]:
        try:
            text = body.decode()
        except UnicodeDecodeError as error:
            raise DiscoveryError(f"{self._url} answers what is no UTF-8") from error
        found = read_documents(text, self._url, yaml="yaml" in headers.get("Content-Type", ""))
        if len(found) == 1 and isinstance(found[0], dict) and isinstance(found[0].get(LIST), list):
            return [rule_in(each) for each in found[0][LIST]]
        return found


class _Refusals(HTTPErrorProcessor):
    """Raises whatever is not 2xx; there is nobody who follows a redirection."""

    def http_response(self, request: Any, response: Any) -> Any:
        if 200 <= response.status < 300:
            return response
        raise HTTPError(
            request.full_url, response.status, response.reason, response.headers, response
        )

    https_response = http_response


def _seconds(text: str | None) -> float:
    """Return what ``Retry-After`` says in seconds; a date counts as nothing."""
    return float(text) if text is not None and text.isascii() and text.isdigit() else 0.0
