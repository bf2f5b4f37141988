"""Server of the admission webhook; maintains its certificate in the webhook configuration.

- Certificate and key are in a Secret, so all replicas use the same ones. A replica that finds them
  missing or about to expire writes new ones; the previous CA stays trusted.
- The path of reviews is secret: only the API server knows it.
- Failures here affect nothing else: the API server then stores resources without a review.
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
from urllib.parse import urlsplit

from aiohttp import web

from streambroker_operator.errors import OpenError, RequestError
from streambroker_operator.kubernetes.client.documents import WebhookClient
from streambroker_operator.kubernetes.client.objects import Objects, StaleError
from streambroker_operator.kubernetes.webhook.review import ReviewAnswer
from streambroker_operator.security.certificate import read_end
from streambroker_operator.security.self_signed import (
    CA,
    is_valid_for,
    issue_pair,
    subject_alt_name,
)

DAYS = 365
"""Validity of a certificate."""
RENEW_S = 120 * 86_400.0
"""Seconds before its expiry at which a certificate is renewed."""
RECONCILE_INTERVAL_S = 60.0
"""Interval of reconciliation, in seconds; after a failure `RETRY_S`."""
RETRY_S = 5.0
MAX_BODY = 8 * 1024 * 1024
"""Maximum bytes of a review, which contains the object before and after a change."""

_FILES = {"ca.crt": CA, "tls.crt": "server.crt", "tls.key": "server.key"}
"""Entries of the Secret, and their file names."""
_END = "-----END CERTIFICATE-----\n"
_RETRYABLE_ERRORS = (OSError, OpenError, RequestError, StaleError)

_log = logging.getLogger("streambroker.webhook")


class Webhook:
    """Admission webhook of this replica.

    Args:
        secret_name: name of the Secret, which must exist but may be empty.
        review: answers an AdmissionReview; raises ValueError for an invalid one.

    Attributes:
        tls: TLS context; without certificate until `run` has read it.
        valid_until: when the certificate ends, in Unix seconds; 0 without one.
    """

    def __init__(
        self,
        objects: Objects,
        *,
        namespace: str,
        secret_name: str,
        configuration: str,
        key: bytes,
        review: Callable[[object], ReviewAnswer],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._objects, self._review, self._clock = objects, review, clock
        self._namespace, self._secret_name = namespace, secret_name
        self._configuration = configuration
        self._path = f"/reviews/{hmac.new(key, b'webhook', hashlib.sha256).hexdigest()[:32]}"
        self._served_pair: Mapping[str, bytes] = {}
        self.valid_until = 0.0
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
        """Reconcile until cancelled."""
        problem = ""
        while True:
            try:
                await self.reconcile()
                problem, pause = "", RECONCILE_INTERVAL_S
            except _RETRYABLE_ERRORS as error:
                if str(error) != problem:
                    _log.warning("resources are stored without being reviewed: %s", error)
                problem, pause = str(error), RETRY_S
            await asyncio.sleep(pause)

    async def reconcile(self) -> None:
        """Read the Secret and the configuration, and correct both if needed.

        Raises:
            OpenError: the certificate cannot be created.
            RequestError: the API server rejects a request or is unavailable.
            StaleError: another replica changed the Secret.
        """
        document = await self._objects.read_webhook(self._configuration)
        if document is None:
            raise _missing_error(f"ValidatingWebhookConfiguration {self._configuration}")
        clients = {
            webhook["name"]: webhook["clientConfig"] for webhook in document.get("webhooks", ())
        }
        names = sorted({subject_alt_name(_client_host(client)) for client in clients.values()})
        pair = await self._get_pair(names)
        desired = {name: self._client_config(client, pair) for name, client in clients.items()}
        if desired != clients:
            await self._objects.update_webhook(self._configuration, desired)
        if pair != self._served_pair:
            with tempfile.TemporaryDirectory() as folder:
                _write(Path(folder), pair)
                _load(self.tls, Path(folder))
            self._served_pair, self.valid_until = pair, read_end(pair["tls.crt"].decode())
            _log.info("resources are reviewed before they are stored, by %s", self._configuration)

    async def _get_pair(self, names: list[str]) -> Mapping[str, bytes]:
        """Return the pair of the Secret; issue a new one if it is invalid or expires soon."""
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

    def _client_config(self, now: WebhookClient, pair: Mapping[str, bytes]) -> WebhookClient:
        """Return the ``clientConfig`` of a webhook with our CA bundle and path."""
        client: WebhookClient = {**now, "caBundle": base64.b64encode(pair["ca.crt"]).decode()}
        if "url" in now:
            return {**client, "url": urlsplit(now["url"])._replace(path=self._path).geturl()}
        return {**client, "service": {**now["service"], "path": self._path}}


def _missing_error(what: str) -> RequestError:
    return RequestError(404, "NotFound", f"The {what} does not exist. The chart creates it.")


def _client_host(client: WebhookClient) -> str:
    """Return the host name by which the API server calls a webhook."""
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
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        _write(folder, pair)
        try:
            _load(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), folder)
        except ssl.SSLError:
            return False
        return all(is_valid_for(folder, name, at) for name in names)


def _load(context: ssl.SSLContext, folder: Path) -> None:
    context.load_cert_chain(folder / "server.crt", folder / "server.key")


def _issue_fresh(before: Mapping[str, bytes], names: list[str]) -> Mapping[str, bytes]:
    """Return a new pair that still trusts the previous CA, which other replicas may use briefly."""
    with tempfile.TemporaryDirectory() as directory:
        issue_pair(Path(directory), names, DAYS)
        fresh = {name: Path(directory, file).read_bytes() for name, file in _FILES.items()}
    previous_ca, end, _ = before["ca.crt"].partition(_END.encode())
    return {**fresh, "ca.crt": fresh["ca.crt"] + (previous_ca + end if end else b"")}
