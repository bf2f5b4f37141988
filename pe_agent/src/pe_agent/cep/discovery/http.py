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
from pe_agent.cep.discovery.discoverer import DiscoveryError, Fetched
from pe_agent.transport.broker_trust import BrokerTrust
from pe_agent.transport.tokens import Token
from streambroker_core.cep.rules.rule_set import UnreadableRule

TIMEOUT_SECONDS = 10.0
MAX_BYTES = 16 << 20
RULES_KEY = "patterns"
"""Key of the list of rules in a response that is an object."""


class HttpSource:
    """Reads rules from a URL, with the ETag of the known ones."""

    def __init__(self, url: str, token: Token | None, trust: BrokerTrust | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an address of rules: give http://… or https://…")
        self._url, self._token = url, token or Token()
        self._trust = (trust or BrokerTrust()) if parts.scheme == "https" else None
        self._etag: str | None = None

    def fetch(self, known: str | None) -> Fetched | None:
        """Return the server's rules if they are not the known ones."""
        try:
            with self._open(None if known is None else self._etag) as answer:
                return self._read(answer, answer.headers, known)
        except HTTPError as error:
            with error:
                if error.code == 304:
                    return None
                problem = DiscoveryError(f"{self._url} answers {error.code} {error.reason}")
                problem.retry_after = _parse_retry_after(error.headers.get("Retry-After"))
                raise problem from error
        except (OSError, URLError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, URLError) else error
            raise DiscoveryError(f"{self._url} does not answer: {reason}") from error

    def _open(self, etag: str | None) -> Any:
        request = Request(self._url)  # noqa: S310 - its scheme is checked, and no other is handled
        request.add_header("Accept", "application/json, application/yaml;q=0.9")
        if etag is not None:
            request.add_header("If-None-Match", etag)
        token = self._token.current()
        if token is not None:
            request.add_header("Authorization", f"Bearer {token}")
        opener = OpenerDirector()
        tls_context = None if self._trust is None else self._trust.context()
        for handler in (HTTPHandler(), HTTPSHandler(context=tls_context), _StatusErrorProcessor()):
            opener.add_handler(handler)
        return opener.open(request, timeout=TIMEOUT_SECONDS)

    def _read(self, answer: Any, headers: Mapping[str, str], known: str | None) -> Fetched | None:
        body = answer.read(MAX_BYTES + 1)
        if len(body) > MAX_BYTES:
            raise DiscoveryError(f"the answer of {self._url} has more than {MAX_BYTES} bytes")
        version = hashlib.sha256(body).hexdigest()
        rules = None if version == known else self._parse_rules(body, headers)
        self._etag = headers.get("ETag")
        if rules is None:
            return None
        return Fetched([_check_rule(*each) for each in enumerate(rules)], version)

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


def _check_rule(number: int, rule: Any) -> Any:
    if isinstance(rule, dict):
        return rule
    problem = f"it is {rule!r:.80}, not a mapping"
    return UnreadableRule(rule=f"number {number}", problem=problem)


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
