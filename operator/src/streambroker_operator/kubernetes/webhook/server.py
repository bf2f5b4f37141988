"""Serve the admission webhook, with a certificate that the API server trusts by the configuration.

Rule 1: certificate and key are in a Secret, so that all replicas serve the same ones. The replica
that finds them missing, or soon to end, writes new ones; the authority before stays trusted.
Rule 2: only the API server knows the path at which reviews are answered.
Rule 3: what fails here fails alone: the API server stores resources without an answer.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import logging
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from streambroker_operator.errors import OpenError, RequestError
from streambroker_operator.kubernetes.client.objects import Objects, StaleError
from streambroker_operator.security.self_signed import (
    CA,
    is_valid_for,
    issue_pair,
    subject_alt_name,
)

DAYS = 365
"""For how long a certificate holds."""
RENEW_S = 120 * 86_400.0
"""How long before its end it is renewed, in seconds."""
RECONCILE_INTERVAL_S = 60.0
"""How often Secret and configuration are read, in seconds; after a failure, `RETRY_S`."""
RETRY_S = 5.0
MAX_BODY = 8 * 1024 * 1024
"""Bytes of a review, which has the object before and after a change."""

_FILES = {"ca.crt": CA, "tls.crt": "server.crt", "tls.key": "server.key"}
"""Entries of the Secret, and the files that they are."""
_END = "-----END CERTIFICATE-----\n"
_RETRYABLE_ERRORS = (OSError, OpenError, RequestError, StaleError)

_log = logging.getLogger("streambroker.webhook")


class Webhook:
    """The admission webhook of this replica.

    Args:
        objects: reads and writes the Secret and the configuration.
        namespace: of the Secret.
        secret_name: of the Secret, which has to exist; it may be empty.
        configuration: name of the ValidatingWebhookConfiguration.
        key: the broker's secret.
        review: answers an AdmissionReview; raises ValueError for what is none.
        clock: seconds since 1970.

    Attributes:
        tls: shows the certificate; has none until `run` has read it.
        app: answers reviews.
    """

    def __init__(
        self,
        objects: Objects,
        *,
        namespace: str,
        secret_name: str,
        configuration: str,
        key: bytes,
        review: Callable[[object], Mapping[str, Any]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._objects, self._review, self._clock = objects, review, clock
        self._namespace, self._secret_name = namespace, secret_name
        self._configuration = configuration
        self._path = f"/reviews/{hmac.new(key, b'webhook', hashlib.sha256).hexdigest()[:32]}"
        self._served_pair: Mapping[str, bytes] = {}
        self.tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.tls.minimum_version = ssl.TLSVersion.TLSv1_2
        self.app = web.Application(client_max_size=MAX_BODY)
        self.app.add_routes([web.post(self._path, self._answer)])

    async def _answer(self, request: web.Request) -> web.Response:
        try:
            return web.json_response(self._review(json.loads(await request.read())))
        except ValueError as error:
            return web.Response(status=400, text=f"{error}\n")

    async def run(self) -> None:
        """Keep the certificate and the configuration right, until cancelled."""
        trouble = ""
        while True:
            try:
                await self.reconcile()
                trouble, pause = "", RECONCILE_INTERVAL_S
            except _RETRYABLE_ERRORS as error:
                if str(error) != trouble:
                    _log.warning("resources are stored without being reviewed: %s", error)
                trouble, pause = str(error), RETRY_S
            await asyncio.sleep(pause)

    async def reconcile(self) -> None:
        """Read the Secret and the configuration, and change what is not right.

        Raises:
            OpenError: no certificate can be made.
            RequestError: the API server refuses something, or cannot be asked now.
            StaleError: another replica has changed the Secret meanwhile.
        """
        found = await self._objects.read_webhook(self._configuration)
        if found is None:
            raise _missing_error(f"ValidatingWebhookConfiguration {self._configuration}")
        clients = {each["name"]: each["clientConfig"] for each in found.get("webhooks", ())}
        names = sorted({subject_alt_name(_client_host(client)) for client in clients.values()})
        pair = await self._get_pair(names)
        wanted = {name: self._client_config(client, pair) for name, client in clients.items()}
        if wanted != clients:
            await self._objects.update_webhook(self._configuration, wanted)
        if pair != self._served_pair:
            with tempfile.TemporaryDirectory() as place:
                _write(Path(place), pair)
                _load(self.tls, Path(place))
            self._served_pair = pair
            _log.info("resources are reviewed before they are stored, by %s", self._configuration)

    async def _get_pair(self, names: list[str]) -> Mapping[str, bytes]:
        """Return what the Secret has; new entries if those that it has are not good."""
        document = await self._objects.read_secret(self._namespace, self._secret_name)
        if document is None:
            raise _missing_error(f"Secret {self._namespace}/{self._secret_name}")
        pair = _decode(document.get("data") or {})
        at = self._clock() + RENEW_S
        if await asyncio.to_thread(_is_valid, pair, names, at):
            return pair
        fresh = await asyncio.to_thread(_issue_fresh, pair, names)
        data = {name: base64.b64encode(value).decode() for name, value in fresh.items()}
        await self._objects.update_secret(self._namespace, document, data)
        return fresh

    def _client_config(self, now: Mapping[str, Any], pair: Mapping[str, bytes]) -> dict[str, Any]:
        """Return how the API server has to call a webhook that it calls as it does now."""
        trusted = {"caBundle": base64.b64encode(pair["ca.crt"]).decode()}
        if "url" in now:
            return {
                **now,
                **trusted,
                "url": urlsplit(now["url"])._replace(path=self._path).geturl(),
            }
        return {**now, **trusted, "service": {**now["service"], "path": self._path}}


def _missing_error(what: str) -> RequestError:
    return RequestError(404, "NotFound", f"The {what} is not there. The chart makes it.")


def _client_host(client: Mapping[str, Any]) -> str:
    """Return by which name the API server knows a webhook."""
    if "url" in client:
        return str(urlsplit(client["url"]).hostname)
    return f"{client['service']['name']}.{client['service']['namespace']}.svc"


def _decode(data: Mapping[str, str]) -> Mapping[str, bytes]:
    try:
        return {name: base64.b64decode(data.get(name, ""), validate=True) for name in _FILES}
    except binascii.Error:
        return dict.fromkeys(_FILES, b"")


def _write(folder: Path, pair: Mapping[str, bytes]) -> None:
    for name, file in _FILES.items():
        (folder / file).write_bytes(pair[name])


def _is_valid(pair: Mapping[str, bytes], names: list[str], at: float) -> bool:
    if not all(pair.values()):
        return False
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        _write(folder, pair)
        try:
            _load(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), folder)
        except ssl.SSLError:
            return False
        return all(is_valid_for(folder, name, at) for name in names)


def _load(context: ssl.SSLContext, folder: Path) -> None:
    context.load_cert_chain(folder / "server.crt", folder / "server.key")


def _issue_fresh(before: Mapping[str, bytes], names: list[str]) -> Mapping[str, bytes]:
    """Return a new pair; other replicas serve the one before for a moment, which stays trusted."""
    with tempfile.TemporaryDirectory() as place:
        issue_pair(Path(place), names, DAYS)
        fresh = {name: Path(place, file).read_bytes() for name, file in _FILES.items()}
    last, end, _ = before["ca.crt"].partition(_END.encode())
    return {**fresh, "ca.crt": fresh["ca.crt"] + (last + end if end else b"")}
